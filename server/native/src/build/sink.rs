//! Where the records of a slice go: into memory, and those with the smallest hashes into the sample as well.
use super::records::RecordBuffer;
use super::sample::Sample;

/// Takes records until memory is full.
pub struct Sink<'a> {
    records: &'a mut RecordBuffer,
    memory: usize,
    sample: &'a mut Sample,
}

impl<'a> Sink<'a> {
    /// Into `records`, which may take `memory` bytes, and `sample`.
    pub fn new(records: &'a mut RecordBuffer, memory: usize, sample: &'a mut Sample) -> Self {
        Self { records, memory, sample }
    }

    /// Take a record.
    pub fn put(&mut self, key: &[u8], place: u64, value: &[u8]) {
        self.records.push(key, place, value);
        self.sample.offer(key, place, value);
    }

    /// Whether records must be written before there are more.
    pub fn is_full(&self) -> bool {
        self.records.memory() > self.memory
    }
}
