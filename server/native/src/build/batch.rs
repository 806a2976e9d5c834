//! A batch of sorted records on their way to the shards.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Records in key order.
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

/// A record of a batch.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Its encoded key.
    pub key: &'a [u8],
    /// Where in the source it stood.
    pub place: u64,
    /// Its value.
    pub value: &'a [u8],
}

#[pymethods]
impl RecordBatch {
    /// A batch of records that Python holds.
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

    /// The bytes of all keys and values.
    #[getter]
    pub fn data_bytes(&self) -> usize {
        self.data.len()
    }
}

impl RecordBatch {
    /// The number of records.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Add a record.
    pub fn push(&mut self, record: Record<'_>) {
        let at = self.data.len();
        self.data.extend_from_slice(record.key);
        self.data.extend_from_slice(record.value);
        self.entries.push(Entry { at, key: record.key.len(), value: record.value.len(), place: record.place });
    }

    /// Make room for `records` more records of `bytes` bytes.
    pub fn reserve(&mut self, records: usize, bytes: usize) {
        self.entries.reserve(records);
        self.data.reserve(bytes);
    }

    /// The last record.
    pub fn last(&self) -> Option<Record<'_>> {
        self.entries.last().map(|entry| self.record(entry))
    }

    /// Remove the last record.
    pub fn drop_last(&mut self) {
        if let Some(entry) = self.entries.pop() {
            self.data.truncate(entry.at);
        }
    }

    /// All records in their order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.entries.iter().map(|entry| self.record(entry))
    }

    fn record(&self, entry: &Entry) -> Record<'_> {
        let bytes = self.data.get(entry.at..entry.at + entry.key + entry.value).unwrap_or_default();
        let (key, value) = bytes.split_at_checked(entry.key).unwrap_or_default();
        Record { key, place: entry.place, value }
    }
}
