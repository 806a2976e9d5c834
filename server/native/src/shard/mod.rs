//! The shard kernel: what a worker's event loop does for lookups. Python keeps clients, limits and all other commands.
//!
//! This is what Python sees of it. `turn` reads and writes sockets, `replies` makes replies.
mod replies;
mod turn;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::histograms::{self, add, cells};
use crate::python::PageWarmer;
use crate::reader::ShardFile;
use crate::values::Expander;
use replies::{Batch, Counts, Damaged, Limit, Reached, ReplyMaker, Shard};
use turn::{Bounds, Clients, Handed, Leftovers, Turn};

/// Add this module's class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ShardKernel>()
}

/// Indexes of lookups, misses, commands, sent bytes, and the first of the histograms, one for each kind of command. The
/// histograms are adjacent; each has buckets and a sum.
type Places = (usize, usize, usize, usize, usize);

/// A worker's slot of shared memory, and where its counters are.
struct Slot {
    numbers: PyBuffer<u64>,
    places: Places,
    bounds: histograms::Bounds,
}

/// A shard file, and all that answers lookups from it.
#[pyclass(module = "lookupdb._native")]
struct ShardKernel {
    shard: Shard,
    turn: Turn,
    slot: Slot,
    idle: Duration,
}

/// A turn that took longer may have waited for a disk.
const SLOW: Duration = Duration::from_millis(2);

/// The result of `run`: what is handed over, events, whether the last turn was slow, and when its requests arrived.
type GivenOut<'py> = (Bound<'py, PyList>, Vec<(i32, u32)>, bool, u64);
/// Replies, unanswered keys, the rest, whether the rest is only the beginning of a lookup, and whether the keys are of
/// an MGET.
type Answer<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyBytes>, bool, bool);

#[pymethods]
impl ShardKernel {
    /// `slot` is shared memory with the indexes of lookups, misses, commands, sent bytes and the first histogram, and the
    /// bounds of buckets, in nanoseconds. `error` is the reply for damage.
    /// Raises OSError, and ValueError for a file that is damaged or of an unknown format.
    #[new]
    #[pyo3(signature = (path, slot, error, *, read_bytes, chunk_bytes, slice_seconds))]
    fn new(
        path: PathBuf,
        slot: (PyBuffer<u64>, Places, Vec<u64>),
        error: Vec<u8>,
        read_bytes: usize,
        chunk_bytes: usize,
        slice_seconds: f64,
    ) -> PyResult<Self> {
        let file = Arc::new(ShardFile::open(&path)?);
        let expander = Expander::new(file.dictionary()).map_err(PyValueError::new_err)?;
        let (numbers, places, bounds) = slot;
        let time_slice = Duration::try_from_secs_f64(slice_seconds).unwrap_or_default();
        Ok(ShardKernel {
            shard: Shard { file, maker: ReplyMaker::new(expander, error) },
            turn: Turn::new(Bounds { read_bytes, chunk_bytes, time_slice }),
            slot: Slot { numbers, places, bounds: histograms::Bounds(bounds) },
            idle: Duration::ZERO,
        })
    }

    /// Wait on `epoll` and answer lookups for `seconds`, until Python has something to do, or until a turn was slow.
    /// Returns what is handed over (file descriptor, error number, and arguments of `RespConnection.resume`), events,
    /// whether the turn was slow, and when its requests arrived.
    fn run<'py>(
        &mut self,
        py: Python<'py>,
        epoll: i32,
        fast_path: PyBuffer<u8>,
        protocols: PyBuffer<u8>,
        seconds: f64,
    ) -> PyResult<GivenOut<'py>> {
        let until = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        loop {
            let waits_since = Instant::now();
            let time = until.saturating_duration_since(waits_since);
            let turn = &mut self.turn;
            let count = py.detach(|| turn.wait(epoll, time)).map_err(PyOSError::new_err)?;
            let began = Instant::now();
            self.idle += began - waits_since;
            self.shard.maker.note_wait(began - waits_since);
            let clients = Clients { fast_path: cells(py, &fast_path)?, protocols: cells(py, &protocols)? };
            let left = turn.take(&clients, &mut self.shard);
            self.slot.add(py, &mut self.shard.maker.counts)?;
            let ended = Instant::now();
            let is_slow = ended - began > SLOW;
            if count == 0 || !left.is_empty() || self.shard.maker.damaged.count > 0 || is_slow || ended >= until {
                return give_out(py, left, is_slow, self.turn.arrived);
            }
        }
    }

    /// Answer the lookups in `data`, which begins with a request and arrived at `arrived`, up to the size of one write.
    fn answer<'py>(&mut self, py: Python<'py>, data: &[u8], nil: &[u8], arrived: u64) -> PyResult<Answer<'py>> {
        let (mut batch, mut replies) = (Batch::default(), Vec::new());
        let reached = self.shard.answer(data, &mut batch, nil, &self.turn.bounds.limit(), &mut replies);
        if reached == Reached::Limit && !batch.is_mget {
            batch.note_done();
        }
        self.shard.maker.counts.observe(&mut batch.done, arrived);
        self.slot.add(py, &mut self.shard.maker.counts)?;
        Ok((
            PyBytes::new(py, &replies),
            PyList::new(py, batch.unanswered(data).map(|key| PyBytes::new(py, key)).collect::<Vec<_>>())?,
            PyBytes::new(py, batch.rest(data)),
            reached == Reached::Part,
            batch.is_mget,
        ))
    }

    /// The replies to the first of `keys`, as many as size and time allow, and their number. The caller has counted the
    /// keys.
    fn replies<'py>(
        &mut self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyBytes>>,
        nil: &[u8],
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let mut replies = Vec::new();
        let key = |place: usize| keys.get(place).map_or(&b""[..], |key| key.as_bytes());
        let limit = self.turn.bounds.limit();
        let count = self.shard.append_replies(keys.len(), key, nil, &limit, &mut replies);
        self.slot.add(py, &mut self.shard.maker.counts)?;
        Ok((PyBytes::new(py, &replies), count))
    }

    /// Count the lookup and return the reply to `key`, None if it is missing.
    fn find<'py>(&mut self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut reply = Vec::new();
        let limit = Limit { room: usize::MAX, until: Instant::now() };
        self.shard.maker.counts.lookups += 1;
        self.shard.append_replies(1, |_| key, b"", &limit, &mut reply);
        self.slot.add(py, &mut self.shard.maker.counts)?;
        Ok((!reply.is_empty()).then(|| PyBytes::new(py, &reply)))
    }

    /// The seconds that `run` has waited for clients so far.
    fn idle_seconds(&self) -> f64 {
        self.idle.as_secs_f64()
    }

    /// A warmer of this file's pages, for other threads.
    fn warmer(&self) -> PageWarmer {
        PageWarmer { file: Arc::clone(&self.shard.file) }
    }

    /// The number of lookups of damaged records since the last call, and the first problem; None if there were none.
    fn take_damage(&mut self) -> Option<(u64, String)> {
        if self.shard.maker.damaged.count == 0 {
            return None;
        }
        let Damaged { count, problem } = std::mem::take(&mut self.shard.maker.damaged);
        Some((count, problem))
    }
}

impl Slot {
    /// Add `counts` to the worker's counters, and reset them.
    fn add(&self, py: Python<'_>, counts: &mut Counts) -> PyResult<()> {
        let numbers = cells(py, &self.numbers)?;
        let (lookups, misses, commands, sent_bytes, durations) = self.places;
        for (kind, count, nanoseconds) in counts.answered.drain(..) {
            let first = durations + kind * self.bounds.counters();
            self.bounds.observe(numbers, first, nanoseconds, count);
        }
        for (place, count) in [
            (lookups, &mut counts.lookups),
            (misses, &mut counts.misses),
            (commands, &mut counts.commands),
            (sent_bytes, &mut counts.sent_bytes),
        ] {
            if *count > 0 {
                add(numbers, place, std::mem::take(count));
            }
        }
        Ok(())
    }
}

fn give_out(py: Python<'_>, left: Leftovers, is_slow: bool, arrived: u64) -> PyResult<GivenOut<'_>> {
    let handed = PyList::empty(py);
    for item in left.handed {
        handed.append(give_out_one(py, item)?)?; // its bytes are freed before the next are copied
    }
    Ok((handed, left.events, is_slow, arrived))
}

fn give_out_one(py: Python<'_>, item: Handed) -> PyResult<Bound<'_, PyTuple>> {
    let errno = item.error.and_then(|error| error.raw_os_error()).unwrap_or_default();
    let keys = PyList::new(py, item.keys.iter().map(|key| PyBytes::new(py, key)))?;
    let (unsent, rest) = (PyBytes::new(py, &item.unsent), PyBytes::new(py, &item.rest));
    (item.fd, errno, unsent, keys, rest, item.is_part, item.is_mget).into_pyobject(py)
}
