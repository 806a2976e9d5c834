//! A reply that comes in several pieces: what of it has come is looked at once.
use memchr::memchr;

use super::resp::{read_head, read_value_head, Span, MISSING, MOST_LINE_BYTES};

/// Finds the values of one reply to an MGET of `expected` keys.
pub struct Scan {
    expected: usize,
    spans: Vec<Span>,
    has_head: bool,
    /// Bytes that have come.
    received: usize,
    /// Where the next line begins.
    next: usize,
    /// What has come of it.
    line: Vec<u8>,
}

impl Scan {
    pub fn new(expected: usize) -> Self {
        Self { expected, spans: Vec::new(), has_head: false, received: 0, next: 0, line: Vec::new() }
    }

    /// How many bytes have come.
    pub fn received(&self) -> usize {
        self.received
    }

    /// Where the values lie that have been found.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Look at the next piece: whether the reply is whole now. None if it is not a list of values to the letter, or more
    /// follows.
    pub fn feed(&mut self, data: &[u8]) -> Option<bool> {
        let base = self.received;
        self.received += data.len();
        loop {
            if self.has_head && self.spans.len() == self.expected {
                return (self.received <= self.next).then_some(self.received == self.next);
            }
            if self.next > self.received {
                return Some(false);
            }
            let rest = data.get((self.next + self.line.len()).saturating_sub(base)..)?;
            let Some(end) = memchr(b'\n', rest) else {
                self.line.extend_from_slice(rest);
                return (self.line.len() < MOST_LINE_BYTES).then_some(false);
            };
            self.line.extend_from_slice(rest.get(..=end)?);
            self.read_line()?;
        }
    }

    /// Read the line that is whole now.
    fn read_line(&mut self) -> Option<()> {
        let start = self.next + self.line.len();
        if self.has_head {
            let span = read_value_head(&self.line, start)?;
            self.next = span.map_or(start, |span| start + span.len as usize + 2);
            self.spans.push(span.unwrap_or(MISSING));
        } else {
            self.has_head = read_head(&self.line, self.expected).filter(|&size| size == self.line.len()).is_some();
            self.next = self.has_head.then_some(start)?;
        }
        self.line.clear();
        Some(())
    }
}
