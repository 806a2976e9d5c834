//! From keys to replies. Keys are looked up together, in lock step; replies are made one by one, up to a limit.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::reader::{Found, ShardFile, TOGETHER};
use crate::resp::{next_lookups, KeyAt, Next};
use crate::system;
use crate::values::Expander;

/// After this time without a request, other processes may have filled the core's caches.
const COOLING: Duration = Duration::from_micros(20);

/// Counts of lookups that have not been added to the worker's counters.
#[derive(Default)]
pub struct Counts {
    pub lookups: u64,
    pub misses: u64,
    pub commands: u64,
    pub sent_bytes: u64,
    /// Answered commands: their kind, number and duration in nanoseconds.
    pub answered: Vec<(usize, u64, u64)>,
}

/// The number of kinds of answered commands: GETs without and with an error, then MGETs, as in the histograms.
pub const KINDS: usize = 4;
pub const GET: usize = 0;
pub const MGET: usize = 2;

impl Counts {
    /// Count the commands of each kind in `done`, which arrived at `arrived` and are answered now, and reset it.
    #[inline]
    pub fn observe(&mut self, done: &mut [u64; KINDS], arrived: u64) {
        let nanoseconds = system::nanoseconds().saturating_sub(arrived);
        let done = std::mem::take(done).into_iter().enumerate().filter(|&(_, count)| count > 0);
        self.answered.extend(done.map(|(kind, count)| (kind, count, nanoseconds)));
    }
}

/// Lookups that were answered with an error and have not been reported.
#[derive(Default)]
pub struct Damaged {
    pub count: u64,
    pub problem: String,
}

/// When to stop making replies for one client.
pub struct Limit {
    /// The number of unsent bytes at which to stop.
    pub room: usize,
    pub until: Instant,
}

/// Why no more replies are made.
#[derive(Debug, PartialEq, Eq)]
pub enum Reached {
    End,
    /// There is more to answer: the rest of the batch, and what follows it.
    Limit,
    /// The rest is the beginning of a lookup.
    Part,
    /// Python must read the rest.
    Other,
}

/// The current lookups: consecutive GETs, or one MGET.
#[derive(Default)]
pub struct Batch {
    keys: Vec<KeyAt>,
    answered: usize,
    end: usize,
    pub is_mget: bool,
    /// The errors among the replies to the current lookups.
    errors: u64,
    /// The commands of each kind whose replies have been made since they were last counted.
    pub done: [u64; KINDS],
}

impl Batch {
    /// Start at the first byte.
    pub fn restart(&mut self) {
        self.keys.clear();
        self.answered = 0;
        self.end = 0;
        self.errors = 0;
        self.done = Default::default(); // left over from a client that has gone
    }

    /// Note the answered commands. None of them may be noted yet.
    pub fn note_done(&mut self) {
        let (kind, commands, errors) = match self.is_mget {
            true if self.keys.is_empty() || !self.is_answered() => return,
            true => (MGET, 1, self.errors.min(1)),
            false => (GET, self.answered as u64, self.errors),
        };
        for (done, count) in self.done.iter_mut().skip(kind).zip([commands - errors, errors]) {
            *done += count;
        }
    }

    /// The unanswered keys, which have been counted.
    pub fn unanswered<'d>(&self, data: &'d [u8]) -> impl Iterator<Item = &'d [u8]> + use<'_, 'd> {
        self.keys.iter().skip(self.answered).map(|key| key.of(data))
    }

    /// The bytes after these lookups.
    pub fn rest<'d>(&self, data: &'d [u8]) -> &'d [u8] {
        data.get(self.end..).unwrap_or_default()
    }

    fn is_answered(&self) -> bool {
        self.answered >= self.keys.len()
    }
}

/// Makes replies, and counts them.
pub struct ReplyMaker {
    expander: Expander,
    /// The reply for a key whose value or page is damaged.
    error: Vec<u8>,
    pub counts: Counts,
    pub damaged: Damaged,
}

impl ReplyMaker {
    pub fn new(expander: Expander, error: Vec<u8>) -> Self {
        let (counts, damaged) = Default::default();
        ReplyMaker { expander, error, counts, damaged }
    }

    /// Note how long the worker waited: meanwhile other processes may have filled the core's caches.
    pub fn note_wait(&mut self, time: Duration) {
        self.expander.fetch_ahead(time >= COOLING && self.expander.has_large_dictionary);
    }

    /// Append the reply to a lookup, which has been counted; `nil` is the reply for a missing key.
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

/// The shard's file, and the maker of its replies.
pub struct Shard {
    pub file: Arc<ShardFile>,
    pub maker: ReplyMaker,
}

impl Shard {
    /// Append the replies to the first of `count` keys, which have been counted: to all, unless `limit` is reached.
    /// Returns the number of replies.
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

    /// Append the replies to the lookups in `data`, from `batch` on, until the end or until `limit` is reached.
    pub fn answer(&mut self, data: &[u8], batch: &mut Batch, nil: &[u8], limit: &Limit, out: &mut Vec<u8>) -> Reached {
        loop {
            if !batch.is_answered() {
                let keys = batch.keys.get(batch.answered..).unwrap_or_default();
                let key = |place: usize| keys.get(place).map_or(&b""[..], |key| key.of(data));
                let errors = self.maker.damaged.count;
                batch.answered += self.append_replies(keys.len(), key, nil, limit, out);
                batch.errors += self.maker.damaged.count - errors;
            }
            if !batch.is_answered() {
                return Reached::Limit;
            }
            batch.note_done();
            batch.keys.clear();
            (batch.answered, batch.errors) = (0, 0);
            if batch.end >= data.len() {
                return Reached::End;
            }
            if out.len() > limit.room || Instant::now() >= limit.until {
                return Reached::Limit;
            }
            match next_lookups(data, batch.end, usize::MAX, &mut batch.keys) {
                Next::Gets(end) => {
                    batch.end = end;
                    batch.is_mget = false;
                    self.maker.counts.commands += batch.keys.len() as u64;
                }
                Next::Mget(end) => {
                    batch.end = end;
                    batch.is_mget = true;
                    self.maker.counts.commands += 1;
                    out.extend_from_slice(format!("*{}\r\n", batch.keys.len()).as_bytes());
                }
                Next::Part => return Reached::Part,
                Next::Other => return Reached::Other,
            }
            self.maker.counts.lookups += batch.keys.len() as u64;
        }
    }
}
