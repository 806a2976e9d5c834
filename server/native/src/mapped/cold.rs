//! When a lookup gives up Python's lock: only while data come from disk.
//!
//! To give it up always costs a lookup in memory an eighth to a third of its time (25 to 65 of 190 ns). To give it up
//! never lets all threads wait for the disk. So some lookups are timed. One that took as long as a disk takes begins a
//! cold period, in which pages are read before the lookup, without the lock.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::clock::coarse_nanoseconds;

/// One lookup of so many is timed.
const TIMED: u32 = 32;
/// A lookup in memory takes a microsecond; a read of the fastest disks takes fifty.
const SLOW: Duration = Duration::from_micros(50);
/// How long a cold period lasts behind the last slow lookup.
const PERIOD: Duration = Duration::from_millis(100);

/// Whether data seem to come from disk. Races between threads cost a wrong guess, and nothing else.
pub struct ColdSwitch {
    lookups: AtomicU32,
    /// The end of the cold period by the coarse clock; 0 if there is none.
    until: AtomicU64,
}

impl ColdSwitch {
    pub fn new() -> Self {
        ColdSwitch { lookups: AtomicU32::new(0), until: AtomicU64::new(0) }
    }

    /// Whether to read pages first.
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

    /// Do `look_up`, and time it if it is its turn.
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

    /// Do `look_up`, and time it.
    pub fn time<T>(&self, look_up: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let found = look_up();
        if began.elapsed() > SLOW {
            self.until.store(coarse_nanoseconds() + PERIOD.as_nanos() as u64, Relaxed);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{ColdSwitch, PERIOD, SLOW, TIMED};
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
        sleep(PERIOD);
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
}
