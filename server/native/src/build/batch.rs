//! Batches of sorted records on their way to the shards: filling them, and keeping one record of each key.
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

#[pyclass(frozen, sequence, module = "lookupdb._native")]
#[derive(Default)]
pub struct RecordBatch {
    data: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    at: usize,
    key: usize,
    value: usize,
    place: u64,
}

#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub key: &'a [u8],
    /// The record's place in the source.
    pub place: u64,
    pub value: &'a [u8],
}

#[pymethods]
impl RecordBatch {
    /// A batch of records from Python.
    #[new]
    fn new(records: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut batch = Self::default();
        for record in records {
            let (key, place, value): (Bound<'_, PyBytes>, u64, Bound<'_, PyBytes>) = record.extract()?;
            batch.push(Record { key: key.as_bytes(), place, value: value.as_bytes() });
        }
        Ok(batch)
    }

    fn __len__(&self) -> usize {
        self.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let records = PyList::empty(py);
        for record in self.records() {
            records.append((PyBytes::new(py, record.key), record.place, PyBytes::new(py, record.value)))?;
        }
        Ok(records.try_iter()?.into_any())
    }

    /// The size of all keys and values in bytes.
    #[getter]
    pub fn data_bytes(&self) -> usize {
        self.data.len()
    }
}

impl RecordBatch {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn push(&mut self, record: Record<'_>) {
        let at = self.data.len();
        self.data.extend_from_slice(record.key);
        self.data.extend_from_slice(record.value);
        self.entries.push(Entry { at, key: record.key.len(), value: record.value.len(), place: record.place });
    }

    /// Reserve memory for `records` more records of `bytes` bytes together.
    pub fn reserve(&mut self, records: usize, bytes: usize) {
        self.entries.reserve(records);
        self.data.reserve(bytes);
    }

    pub fn last(&self) -> Option<Record<'_>> {
        self.entries.last().map(|entry| self.record(entry))
    }

    pub fn drop_last(&mut self) {
        if let Some(entry) = self.entries.pop() {
            self.data.truncate(entry.at);
        }
    }

    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.entries.iter().map(|entry| self.record(entry))
    }

    fn record(&self, entry: &Entry) -> Record<'_> {
        let bytes = self.data.get(entry.at..entry.at + entry.key + entry.value).unwrap_or_default();
        let (key, value) = bytes.split_at_checked(entry.key).unwrap_or_default();
        Record { key, place: entry.place, value }
    }
}

/// `write._SPOOLED`: the bit of a place that says that the value is a reference into its slice's spool file.
pub const SPOOLED: u64 = 1 << 62;
/// `write._ROW_BITS`: a place is the number of its slice, and a row of this many bits.
const ROW_BITS: u32 = 40;
/// A batch ends with the record that makes it this large. Even then it is smaller than the blocks that are mapped and
/// returned one by one (`options.return_large_blocks`), whose pages cost more than their records.
pub const BATCH_BYTES: usize = 896 << 10;
/// Spare room, which the last record of most batches fits into.
const LAST_RECORD_BYTES: usize = 64 << 10;
/// The maximum number of records in a batch.
pub const BATCH_RECORDS: usize = 16 << 10;

/// The files of large values, by the number of their slice. Large values wait there while their keys are sorted.
pub struct Spools(pub HashMap<u64, PathBuf>);

impl Spools {
    /// Add `record` to `batch`; load its value if it is a reference.
    pub fn push(&self, record: Record<'_>, batch: &mut RecordBatch) -> Result<()> {
        if batch.len() == 0 {
            batch.reserve(BATCH_RECORDS / 4, BATCH_BYTES + LAST_RECORD_BYTES);
        }
        let place = record.place & !SPOOLED;
        let value = match place == record.place {
            true => Cow::Borrowed(record.value),
            false => Cow::Owned(self.load(place, record.value)?),
        };
        batch.push(Record { key: record.key, place, value: &value });
        Ok(())
    }

    /// The value that a record of `place` refers to by its offset in the spool file and its length.
    fn load(&self, place: u64, reference: &[u8]) -> Result<Vec<u8>> {
        let damaged = || Error::new(ErrorKind::InvalidData, "a reference to a large value is damaged");
        let (start, length) = reference.split_at_checked(8).ok_or_else(damaged)?;
        let start = u64::from_le_bytes(start.try_into().map_err(|_| damaged())?);
        let length = u64::from_le_bytes(length.try_into().map_err(|_| damaged())?);
        let spool = File::open(self.0.get(&(place >> ROW_BITS)).ok_or_else(damaged)?)?;
        let size = spool.metadata()?.len();
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(damaged());
        }
        let mut value = vec![0; length as usize];
        spool.read_exact_at(&mut value, start)?;
        Ok(value)
    }
}

pub fn is_full(batch: &RecordBatch) -> bool {
    batch.data_bytes() >= BATCH_BYTES || batch.len() >= BATCH_RECORDS
}

/// A dropped record: its key, its place, and the place of the record that was kept.
type Duplicate = (Py<PyBytes>, u64, u64);

/// A dropped record before it is converted for Python.
type Loss = (Vec<u8>, u64, u64);

/// Keeps the first or the last record of each key.
#[pyclass(module = "lookupdb._native")]
pub struct UniqueRecords {
    keeps_last: bool,
    /// The maximum number of dropped records of a batch that are reported.
    named: usize,
    /// The last record of the previous batch: its key may occur again.
    pending: RecordBatch,
}

#[pymethods]
impl UniqueRecords {
    #[new]
    fn new(keeps_last: bool, named: usize) -> Self {
        Self { keeps_last, named, pending: RecordBatch::default() }
    }

    /// The records of `batch` that are certainly kept, the number of dropped ones, and the first of these.
    fn filter(&mut self, py: Python<'_>, batch: &RecordBatch) -> (RecordBatch, usize, Vec<Duplicate>) {
        let (kept, count, dropped) = py.detach(|| self.drop_duplicates(batch));
        let named = dropped.into_iter().map(|(key, place, kept)| (PyBytes::new(py, &key).unbind(), place, kept));
        (kept, count, named.collect())
    }

    /// The last record, after the last batch.
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
