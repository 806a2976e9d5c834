//! Where the records of a slice go: into memory, and those with the smallest hashes into the sample as well.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use xxhash_rust::xxh3::xxh3_64;

use super::records::RecordBuffer;

/// A sampled record: its key's hash, its place, its value.
pub type Sampled = (u64, u64, Py<PyBytes>);

/// Takes records until memory is full.
pub struct Sink<'a> {
    records: &'a mut RecordBuffer,
    memory: usize,
    /// The sample takes no larger hash.
    last_rank: Option<u64>,
    sampled: Vec<(u64, u64, Vec<u8>)>,
}

impl<'a> Sink<'a> {
    /// Into `records`, which may take `memory` bytes.
    pub fn new(records: &'a mut RecordBuffer, memory: usize, last_rank: Option<u64>) -> Self {
        Self { records, memory, last_rank, sampled: Vec::new() }
    }

    /// Take a record.
    pub fn put(&mut self, key: &[u8], place: u64, value: &[u8]) {
        self.records.push(key, place, value);
        if let Some(last_rank) = self.last_rank {
            let rank = xxh3_64(key);
            if rank <= last_rank {
                self.sampled.push((rank, place, value.to_vec()));
            }
        }
    }

    /// Whether records must be written before there are more.
    pub fn is_full(&self) -> bool {
        self.records.memory() > self.memory
    }

    /// The sampled records.
    pub fn into_sampled(self, py: Python<'_>) -> Vec<Sampled> {
        let sampled = self.sampled.into_iter();
        sampled.map(|(rank, place, value)| (rank, place, PyBytes::new(py, &value).unbind())).collect()
    }
}
