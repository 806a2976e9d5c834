//! Keys to their replies. Keys are looked up together, in lock step; replies are made one by one, up to a bound.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::reader::{Found, ShardFile};
use crate::resp::{next_lookups, KeyAt, Next};
use crate::values::Expander;

/// Keys looked up together: more do not wait less for memory.
pub const TOGETHER: usize = 32;
/// After so long without a request the core's caches may hold what others have used.
const COOLING: Duration = Duration::from_micros(20);

/// What is counted of lookups, until it is added to the worker's counters.
#[derive(Default)]
pub struct Counts {
    pub lookups: u64,
    pub misses: u64,
    pub commands: u64,
    pub sent_bytes: u64,
}

/// The lookups that were answered with an error, until the worker reports them.
#[derive(Default)]
pub struct Damaged {
    pub count: u64,
    /// What was wrong with the first.
    pub problem: String,
}

/// When to stop making replies for one client.
pub struct Limit {
    /// When more bytes than this wait to be written.
    pub room: usize,
    /// When its time slice is over.
    pub until: Instant,
}

/// Why no more replies are made.
#[derive(Debug, PartialEq, Eq)]
pub enum Reached {
    /// Everything is answered.
    End,
    /// There is more to answer: what is left of the batch, and what is behind it.
    Limit,
    /// What is left is the beginning of a lookup.
    Part,
    /// What is left is Python's.
    Other,
}

/// The lookups under way: those of GETs one behind the other, or of one MGET.
#[derive(Default)]
pub struct Batch {
    keys: Vec<KeyAt>,
    answered: usize,
    end: usize,
}

impl Batch {
    /// Begin with the first byte.
    pub fn restart(&mut self) {
        self.keys.clear();
        self.answered = 0;
        self.end = 0;
    }

    /// The keys that are still to be answered; they have been counted.
    pub fn unanswered<'d>(&self, data: &'d [u8]) -> impl Iterator<Item = &'d [u8]> + use<'_, 'd> {
        self.keys.iter().skip(self.answered).map(|key| key.of(data))
    }

    /// What is behind these lookups.
    pub fn rest<'d>(&self, data: &'d [u8]) -> &'d [u8] {
        data.get(self.end..).unwrap_or_default()
    }

    fn is_answered(&self) -> bool {
        self.answered >= self.keys.len()
    }
}

/// Makes replies, and counts.
pub struct ReplyMaker {
    expander: Expander,
    /// The reply for a key whose value, or page, is damaged.
    error: Vec<u8>,
    pub counts: Counts,
    pub damaged: Damaged,
}

impl ReplyMaker {
    pub fn new(expander: Expander, error: Vec<u8>) -> Self {
        let (counts, damaged) = Default::default();
        ReplyMaker { expander, error, counts, damaged }
    }

    /// Take note that nothing was asked for so long: other processes may have had the core, and its caches.
    pub fn note_wait(&mut self, time: Duration) {
        self.expander.fetch_ahead(time >= COOLING && self.expander.has_large_dictionary());
    }

    /// Append the reply to a lookup that has been counted. `nil` answers for what is missing.
    #[inline]
    pub fn append(&mut self, found: Found<'_>, nil: &[u8], out: &mut Vec<u8>) {
        match found {
            Ok(Some(stored)) => {
                if let Err(problem) = self.expander.append(stored, out) {
                    self.append_error(&problem.to_string(), out);
                }
            }
            Ok(None) => {
                self.counts.misses += 1;
                out.extend_from_slice(nil);
            }
            Err(damage) => self.append_error(damage.0, out),
        }
    }

    #[cold]
    fn append_error(&mut self, problem: &str, out: &mut Vec<u8>) {
        if self.damaged.count == 0 {
            self.damaged.problem = problem.to_owned();
        }
        self.damaged.count += 1;
        out.extend_from_slice(&self.error);
    }
}

/// The shard's file, and what makes replies of what is found in it.
pub struct Shard {
    pub file: Arc<ShardFile>,
    pub maker: ReplyMaker,
}

impl Shard {
    /// Append the replies to the first of `count` keys, which have been counted: to all, unless `limit` is reached.
    /// Returns to how many.
    pub fn append_replies<'k>(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        nil: &[u8],
        limit: &Limit,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut found = Vec::with_capacity(count.min(TOGETHER));
        let mut answered = 0;
        while answered < count {
            let mut keys = [&b""[..]; TOGETHER];
            let size = TOGETHER.min(count - answered);
            for (place, slot) in keys.iter_mut().enumerate().take(size) {
                *slot = key(answered + place);
            }
            found.clear();
            self.file.find_many(keys.get(..size).unwrap_or_default(), &mut found);
            for found in found.drain(..) {
                self.maker.append(found, nil, out);
                answered += 1;
                if out.len() > limit.room {
                    return answered;
                }
            }
            if answered < count && Instant::now() >= limit.until {
                return answered;
            }
        }
        answered
    }

    /// Append the replies to the lookups in `data`, from where `batch` is, until there are no more or `limit` is reached.
    pub fn answer(&mut self, data: &[u8], batch: &mut Batch, nil: &[u8], limit: &Limit, out: &mut Vec<u8>) -> Reached {
        loop {
            if !batch.is_answered() {
                let keys = batch.keys.get(batch.answered..).unwrap_or_default();
                let key = |place: usize| keys.get(place).map_or(&b""[..], |key| key.of(data));
                batch.answered += self.append_replies(keys.len(), key, nil, limit, out);
            }
            if !batch.is_answered() {
                return Reached::Limit;
            }
            if batch.end >= data.len() {
                return Reached::End;
            }
            if out.len() > limit.room || Instant::now() >= limit.until {
                return Reached::Limit;
            }
            batch.answered = 0;
            match next_lookups(data, batch.end, usize::MAX, &mut batch.keys) {
                Next::Gets(end) => {
                    batch.end = end;
                    self.maker.counts.commands += batch.keys.len() as u64;
                }
                Next::Mget(end) => {
                    batch.end = end;
                    self.maker.counts.commands += 1;
                    append_array_head(batch.keys.len(), out);
                }
                Next::Part => return Reached::Part,
                Next::Other => return Reached::Other,
            }
            self.maker.counts.lookups += batch.keys.len() as u64;
        }
    }
}

fn append_array_head(count: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{count}\r\n").as_bytes());
}
