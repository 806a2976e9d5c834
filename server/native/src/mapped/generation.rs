//! All shards of a generation, mapped, and the lookups in them: from a key to its value.
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use xxhash_rust::xxh3::xxh3_64;

use crate::keys::KeyEncoder;
use crate::reader::{find_across, prefetch_all, touch, Damage, Found, ShardFile, MAX_KEY_BYTES};
use crate::system::coarse_nanoseconds;
use crate::values::{is_framed, Expander, FRAMED};

/// The number of keys of `get_many` that are looked up before their values are made; it limits the memory.
const CHUNK_KEYS: usize = 1024;

/// The form of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The decoded value, if there are decoders.
    Value,
    Raw,
}

/// Two functions from JSON to values: a quick one, which rounds integers beyond 64 bits and refuses some numbers; and
/// an exact one.
type Decoders = (Py<PyAny>, Py<PyAny>);

/// The shards of a generation, mapped as long as this object lives.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct MappedGeneration {
    pub files: Vec<ShardFile>,
    /// The number of records of all shards.
    pub records: u64,
    encoder: KeyEncoder,
    inflater: Mutex<Inflater>,
    decoders: Option<Decoders>,
    facts: Py<PyAny>,
    cold: ColdSwitch,
}

#[pymethods]
impl MappedGeneration {
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        normalize: Vec<String>,
        encode: Py<PyAny>,
        decoders: Option<Decoders>,
        facts: Py<PyAny>,
    ) -> PyResult<Self> {
        if paths.is_empty() {
            return Err(PyValueError::new_err("expected the path of a shard file or more"));
        }
        let files = py.detach(|| paths.iter().map(|path| ShardFile::open(path)).collect::<Result<Vec<_>, _>>())?;
        Ok(MappedGeneration {
            records: files.iter().map(ShardFile::records).sum(),
            inflater: Mutex::new(Inflater::new(files.len())),
            encoder: KeyEncoder::new(&normalize, encode)?,
            cold: ColdSwitch::new(),
            files,
            decoders,
            facts,
        })
    }

    /// The `facts` that this generation was made with.
    #[getter]
    fn facts(&self, py: Python<'_>) -> Py<PyAny> {
        self.facts.clone_ref(py)
    }

    /// The metadata of that shard's file under `name`, None if there is none. Raises Damaged, IndexError.
    fn describe<'py>(&self, py: Python<'py>, shard: usize, name: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let file = self.files.get(shard).ok_or_else(|| PyIndexError::new_err(shard))?;
        Ok(file.describe(name)?.map(|said| PyBytes::new(py, said)))
    }

    /// The number of records of that shard. Raises IndexError.
    fn count(&self, shard: usize) -> PyResult<u64> {
        let file = self.files.get(shard).ok_or_else(|| PyIndexError::new_err(shard))?;
        Ok(file.records())
    }

    /// Whether the keys are "0", "1" and so on, without a gap. Raises the error that `facts` makes for damage.
    fn is_sequence(&self, py: Python<'_>) -> PyResult<bool> {
        let is_place = |key: &[u8]| parse_place(key).is_some_and(|place| place < self.records);
        for (shard, file) in self.files.iter().enumerate() {
            // Keys are unique: if each is a number below the number of records, every such number is a key.
            let checked = py.detach(|| {
                for item in file.items() {
                    if !is_place(item?.0) {
                        return Ok(false);
                    }
                }
                Ok(true)
            });
            if !checked.map_err(|Damage(problem)| self.damage(py, shard, None, problem))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl MappedGeneration {
    /// The value of `key` in the given form; None if no record has it.
    #[inline]
    pub fn get<'py>(&self, key: &Bound<'py, PyAny>, form: Form) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let found = self.find(key, |shard, stored| match self.make_bytes(py, shard, stored) {
            Ok(bytes) => Ok((shard, bytes)),
            Err(problem) => Err(self.damage(py, shard, Some(key), &problem)),
        })?;
        match found {
            Some((shard, bytes)) => self.shape(shard, Some(key), bytes, form).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a record has `key`, whatever its value is.
    pub fn contains(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.find(key, |_, _| Ok(()))?.is_some())
    }

    /// Call `make` with the shard of `key` and its stored value.
    #[inline]
    fn find<T>(&self, key: &Bound<'_, PyAny>, make: impl FnOnce(usize, &[u8]) -> PyResult<T>) -> PyResult<Option<T>> {
        self.encoder.with_encoded(key, |encoded| {
            let shard = self.place(encoded);
            let Some(file) = self.files.get(shard) else { return Ok(None) };
            if self.cold.is_cold() {
                self.cold.time(|| key.py().detach(|| touch(file.find(encoded))));
            }
            self.cold.watch(|| match file.find(encoded) {
                Ok(Some(stored)) => make(shard, stored).map(Some),
                Ok(None) => Ok(None),
                Err(Damage(problem)) => Err(self.damage(key.py(), shard, Some(key), problem)),
            })
        })
    }

    /// Put the values of `keys` into `found`, except missing ones. Keys are looked up together.
    pub fn get_many<'py>(&self, keys: &[Bound<'py, PyAny>], form: Form, found: &Bound<'py, PyDict>) -> PyResult<()> {
        let py = found.py();
        let (mut texts, mut places) = (Vec::new(), Vec::new());
        for keys in keys.chunks(CHUNK_KEYS) {
            texts.clear();
            places.clear();
            for (number, key) in keys.iter().enumerate() {
                self.encoder.with_encoded(key, |encoded| {
                    if encoded.len() > MAX_KEY_BYTES {
                        return Ok(None); // no record has this key, which may be as large as the caller's memory
                    }
                    places.push((number, self.place(encoded), texts.len()));
                    texts.extend_from_slice(encoded);
                    Ok(Some(()))
                })?;
            }
            let results = py.detach(|| self.find_together(&texts, &places));
            for (&(number, shard, _), result) in places.iter().zip(results) {
                let Some(key) = keys.get(number) else { continue };
                let stored = result.map_err(|Damage(problem)| self.damage(py, shard, Some(key), problem))?;
                let Some(stored) = stored else { continue };
                let bytes = self.make_bytes(py, shard, stored);
                let bytes = bytes.map_err(|problem| self.damage(py, shard, Some(key), &problem))?;
                found.set_item(key, self.shape(shard, Some(key), bytes, form)?)?;
            }
        }
        Ok(())
    }

    /// The results for `places`: the number of a key, its shard, and the start of its text.
    fn find_together(&self, texts: &[u8], places: &[(usize, usize, usize)]) -> Vec<Found<'_>> {
        let ends = places.iter().skip(1).map(|&(_, _, start)| start).chain([texts.len()]);
        let lookups: Vec<(&ShardFile, &[u8])> = places
            .iter()
            .zip(ends)
            .filter_map(|(&(_, shard, start), end)| Some((self.files.get(shard)?, texts.get(start..end)?)))
            .collect();
        let mut found = Vec::with_capacity(lookups.len());
        find_across(&lookups, &mut found);
        found.iter().copied().for_each(touch);
        found
    }

    /// The value that `stored` is or decompresses to. Meanwhile no Python code runs, which might call this again.
    #[inline]
    pub fn make_bytes<'py>(
        &self,
        py: Python<'py>,
        shard: usize,
        stored: &[u8],
    ) -> Result<Bound<'py, PyBytes>, Cow<'static, str>> {
        match plain_value(stored) {
            Some(Ok(value)) => Ok(PyBytes::new(py, value)),
            Some(Err(problem)) => Err(Cow::Borrowed(problem)),
            None => {
                let mut inflater = self.inflater.lock().unwrap_or_else(PoisonError::into_inner);
                inflater.inflate(py, &self.files, shard, stored)
            }
        }
    }

    /// `bytes` in the given form.
    #[inline]
    pub fn shape<'py>(
        &self,
        shard: usize,
        key: Option<&Bound<'py, PyAny>>,
        bytes: Bound<'py, PyBytes>,
        form: Form,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = bytes.py();
        match &self.decoders {
            Some((quickly, exactly)) if form == Form::Value => {
                if !may_have_long_number(bytes.as_bytes()) {
                    if let Ok(value) = quickly.bind(py).call1((&bytes,)) {
                        return Ok(value);
                    }
                }
                self.decode_exactly(exactly.bind(py), shard, key, bytes)
            }
            _ => Ok(bytes.into_any()),
        }
    }

    #[cold]
    fn decode_exactly<'py>(
        &self,
        exactly: &Bound<'py, PyAny>,
        shard: usize,
        key: Option<&Bound<'py, PyAny>>,
        bytes: Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = bytes.py();
        match exactly.call1((bytes,)) {
            Err(error) if error.is_instance_of::<PyValueError>(py) => {
                Err(self.damage(py, shard, key, &format!("it is not JSON: {error}")))
            }
            decoded => decoded,
        }
    }

    /// The error for damage, made by `facts`. Without a key it is about the shard.
    #[cold]
    pub fn damage(&self, py: Python<'_>, shard: usize, key: Option<&Bound<'_, PyAny>>, problem: &str) -> PyErr {
        let key = key.map_or_else(|| py.None(), |key| key.clone().unbind());
        match self.facts.bind(py).call_method1("describe_damage", (shard, key, problem)) {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    }

    #[inline(always)]
    fn place(&self, encoded: &[u8]) -> usize {
        (xxh3_64(encoded) % self.files.len().max(1) as u64) as usize
    }
}

/// The number that `key` shows, if it is written as Python writes it.
fn parse_place(key: &[u8]) -> Option<u64> {
    let is_number = key.iter().all(u8::is_ascii_digit) && (key.first() != Some(&b'0') || key.len() == 1);
    is_number.then(|| std::str::from_utf8(key).ok()?.parse().ok())?
}

/// A larger buffer is freed after use.
const KEPT_BYTES: usize = 1 << 20;

/// Decompresses the values of all shards of a generation. The builder gives all shards one dictionary, so one context
/// serves all of them, instead of some hundred KB for each shard.
#[derive(Default)]
pub struct Inflater {
    /// Contexts, each with the number of a shard that has its dictionary.
    contexts: Vec<(usize, Expander)>,
    /// The context of each shard, once it is known.
    context_numbers: Vec<Option<usize>>,
    reply: Vec<u8>,
}

impl Inflater {
    /// An inflater for this number of shards.
    pub fn new(shards: usize) -> Self {
        Inflater { context_numbers: vec![None; shards], ..Inflater::default() }
    }

    /// The value of `stored`, a compressed value of that shard.
    pub fn inflate<'py>(
        &mut self,
        py: Python<'py>,
        files: &[ShardFile],
        shard: usize,
        stored: &[u8],
    ) -> Result<Bound<'py, PyBytes>, Cow<'static, str>> {
        let number = match self.context_numbers.get(shard) {
            Some(Some(number)) => *number,
            _ => self.find_context(files, shard)?,
        };
        let (_, expander) = self.contexts.get_mut(number).ok_or("it has no dictionary")?;
        self.reply.clear();
        expander.append(stored, &mut self.reply).map_err(|problem| problem.to_string())?;
        let value = PyBytes::new(py, unframe(&self.reply));
        if self.reply.capacity() > KEPT_BYTES {
            self.reply = Vec::new();
        }
        Ok(value)
    }

    /// The number of that shard's context, which is made if no other shard has the same dictionary.
    #[cold]
    fn find_context(&mut self, files: &[ShardFile], shard: usize) -> Result<usize, Cow<'static, str>> {
        let dictionary = |shard: usize| files.get(shard).map(ShardFile::dictionary).unwrap_or_default();
        let wanted = dictionary(shard);
        let number = match self.contexts.iter().position(|&(other, _)| dictionary(other) == wanted) {
            Some(number) => number,
            None => {
                self.contexts.push((shard, Expander::new(wanted)?));
                self.contexts.len() - 1
            }
        };
        if let Some(place) = self.context_numbers.get_mut(shard) {
            *place = Some(number);
        }
        Ok(number)
    }
}

/// The value in `stored` if it is not compressed, else None.
#[inline(always)]
pub fn plain_value(stored: &[u8]) -> Option<Result<&[u8], &'static str>> {
    prefetch_all(stored);
    if stored.first() != Some(&FRAMED) {
        return None;
    }
    Some(if is_framed(stored) { Ok(unframe(stored)) } else { Err("it is not one RESP bulk string") })
}

/// The value within a bulk string.
#[inline(always)]
fn unframe(framed: &[u8]) -> &[u8] {
    let start = framed.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    framed.get(start..framed.len().saturating_sub(2)).unwrap_or_default()
}

/// One in this many lookups is timed.
const TIMED: u32 = 32;
/// A lookup in memory takes a microsecond; a read of the fastest disks takes fifty.
const SLOW: Duration = Duration::from_micros(50);
/// The length of a cold period after the last slow lookup.
const PERIOD: Duration = Duration::from_millis(100);

/// Decides when a lookup gives up the GIL: only while data seem to come from disk.
///
/// Giving it up costs a lookup in memory an eighth to a third of its time (25 to 65 of 190 ns). Keeping it makes all
/// threads wait for the disk. So some lookups are timed: a slow one begins a cold period, in which pages are read
/// before the lookup, without the GIL. Races between threads only cost a wrong guess.
pub struct ColdSwitch {
    lookups: AtomicU32,
    /// The end of the cold period by the coarse clock; 0 if there is none.
    until: AtomicU64,
}

impl ColdSwitch {
    pub fn new() -> Self {
        ColdSwitch { lookups: AtomicU32::new(0), until: AtomicU64::new(0) }
    }

    /// Whether to read pages before a lookup.
    #[inline(always)]
    pub fn is_cold(&self) -> bool {
        self.until.load(Relaxed) != 0 && self.is_still_cold()
    }

    #[cold]
    fn is_still_cold(&self) -> bool {
        let is_cold = coarse_nanoseconds() < self.until.load(Relaxed);
        if !is_cold {
            self.until.store(0, Relaxed);
        }
        is_cold
    }

    /// Call `look_up`, and time some of the calls.
    #[inline(always)]
    pub fn watch<T>(&self, look_up: impl FnOnce() -> T) -> T {
        let number = self.lookups.load(Relaxed).wrapping_add(1);
        self.lookups.store(number, Relaxed);
        if number % TIMED == 0 {
            self.time(look_up)
        } else {
            look_up()
        }
    }

    pub fn time<T>(&self, look_up: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let found = look_up();
        if began.elapsed() > SLOW {
            self.until.store(coarse_nanoseconds() + PERIOD.as_nanos() as u64, Relaxed);
        }
        found
    }
}

/// The number of digits of the shortest integer that may be beyond 64 bits.
const SHORTEST_LONG: usize = 19;

/// Whether JSON may have an integer that a quick parser would round: `SHORTEST_LONG` digits in a row, in a number or a
/// text. Any such run covers one of the indexes 18, 37, 56 and so on, so only these are checked.
pub fn may_have_long_number(text: &[u8]) -> bool {
    let mut at = SHORTEST_LONG - 1;
    while let Some(byte) = text.get(at) {
        if byte.is_ascii_digit() && run_around(text, at) >= SHORTEST_LONG {
            return true;
        }
        at += SHORTEST_LONG;
    }
    false
}

/// The number of consecutive digits around the index `at`; at most `SHORTEST_LONG` are counted on each side.
fn run_around(text: &[u8], at: usize) -> usize {
    let (before, behind) = text.split_at(at);
    let digits_before = before.iter().rev().take(SHORTEST_LONG).take_while(|byte| byte.is_ascii_digit()).count();
    let digits_behind = behind.iter().take(SHORTEST_LONG).take_while(|byte| byte.is_ascii_digit()).count();
    digits_before + digits_behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn one_slow_lookup_of_those_that_are_timed_begins_a_cold_period_which_ends() {
        let switch = ColdSwitch::new();
        for _ in 1..TIMED {
            switch.watch(|| sleep(SLOW * 2));
        }
        assert!(!switch.is_cold());
        switch.watch(|| sleep(SLOW * 2));
        assert!(switch.is_cold());
        sleep(PERIOD + Duration::from_millis(20)); // the clock is coarse
        assert!(!switch.is_cold());
    }

    #[test]
    fn what_is_read_in_a_cold_period_makes_it_longer() {
        let switch = ColdSwitch::new();
        switch.time(|| sleep(SLOW * 2));
        sleep(PERIOD / 2);
        switch.time(|| sleep(SLOW * 2));
        sleep(PERIOD * 3 / 4);
        assert!(switch.is_cold());
    }

    #[test]
    fn a_run_is_found_wherever_it_stands() {
        for start in 0..60 {
            for behind in 0..60 {
                for (count, is_long) in [(18, false), (19, true), (20, true), (57, true)] {
                    let text = format!("{}{}{}", "x".repeat(start), "7".repeat(count), "x".repeat(behind));
                    assert_eq!(may_have_long_number(text.as_bytes()), is_long, "{text}");
                }
            }
        }
    }

    #[test]
    fn runs_that_are_near_are_not_one() {
        let text = format!("[{},-{}]", "9".repeat(18), "9".repeat(18));
        assert!(!may_have_long_number(text.as_bytes()));
        assert!(!may_have_long_number(b""));
    }
}
