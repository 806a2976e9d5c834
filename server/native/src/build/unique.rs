//! One record a key, of a stream ordered by key and place: what `lookupdb.builder.write` decides by.
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::batch::{Record, RecordBatch};

/// What is told of a dropped record: its key, its place, and that of the record that was kept.
type Duplicate = (Py<PyBytes>, u64, u64);

/// The same, before Python has it.
type Loss = (Vec<u8>, u64, u64);

/// Keeps the first or the last record of each key.
#[pyclass(module = "lookupdb._native")]
pub struct UniqueRecords {
    keeps_last: bool,
    /// How many dropped records of a batch are named.
    named: usize,
    /// The last record of the batch before: its key may occur again.
    pending: RecordBatch,
}

#[pymethods]
impl UniqueRecords {
    #[new]
    fn new(keeps_last: bool, named: usize) -> Self {
        Self { keeps_last, named, pending: RecordBatch::default() }
    }

    /// The records of `batch` of which it is certain that they are kept; how many were dropped, and the first of them.
    fn filter(&mut self, py: Python<'_>, batch: &RecordBatch) -> (RecordBatch, usize, Vec<Duplicate>) {
        let (kept, count, dropped) = py.detach(|| self.drop_duplicates(batch));
        let named = dropped.into_iter().map(|(key, place, kept)| (PyBytes::new(py, &key).unbind(), place, kept));
        (kept, count, named.collect())
    }

    /// The last record, when there is no batch left.
    fn finish(&mut self) -> RecordBatch {
        std::mem::take(&mut self.pending)
    }
}

impl UniqueRecords {
    fn drop_duplicates(&mut self, batch: &RecordBatch) -> (RecordBatch, usize, Vec<Loss>) {
        let (mut count, mut dropped) = (0, Vec::new());
        let mut kept = std::mem::take(&mut self.pending);
        kept.reserve(batch.len(), batch.data_bytes());
        for record in batch.records() {
            let last = kept.last().filter(|last| last.key == record.key).map(|last| last.place);
            if let Some(last) = last {
                let (loser, survivor) = if self.keeps_last { (last, record.place) } else { (record.place, last) };
                count += 1;
                if dropped.len() < self.named {
                    dropped.push((record.key.to_vec(), loser, survivor));
                }
                if !self.keeps_last {
                    continue;
                }
                kept.drop_last();
            }
            kept.push(record);
        }
        if let Some(Record { key, place, value }) = kept.last() {
            self.pending.push(Record { key, place, value });
        }
        kept.drop_last();
        (kept, count, dropped)
    }
}
