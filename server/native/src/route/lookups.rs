//! What a client of RESP sends, as Python is told of it.
use crate::resp::{next_lookups, KeyAt, Next};

/// Anything else than lookups, or nothing: Python's to read.
const OTHER: u8 = 0;
/// The beginning of a lookup whose end has not arrived.
const PART: u8 = 1;
/// GETs.
const GETS: u8 = 2;
/// One MGET.
const MGET: u8 = 3;

/// Read the lookups at `at`: what they are, and where what is behind them begins.
pub fn read(data: &[u8], at: usize, most: usize, keys: &mut Vec<KeyAt>) -> (u8, usize) {
    match next_lookups(data, at, most, keys) {
        Next::Gets(end) => (GETS, end),
        Next::Mget(end) => (MGET, end),
        Next::Part => (PART, at),
        Next::Other => (OTHER, at),
    }
}
