//! A sample of the values, to train the compression dictionary on: `lookupdb.builder.sort` is the twin.
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use xxhash_rust::xxh3::xxh3_64;

use super::os_error;
use super::runs::{RunReader, RunWriter};

/// `sample._MAX_VALUES`.
const MAX_VALUES: usize = 200_000;

/// Keeps the values whose keys have the smallest hashes, up to a number of bytes.
#[pyclass(module = "lookupdb._native")]
pub struct Sample {
    max_bytes: usize,
    /// The largest hash that is taken, if any.
    last_rank: Option<u64>,
    entries: Vec<Entry>,
    bytes: usize,
}

/// A sampled value, and what it is ordered by: its key's hash, its place.
struct Entry {
    rank: u64,
    place: u64,
    value: Box<[u8]>,
}

#[pymethods]
impl Sample {
    #[new]
    fn new(max_bytes: usize, last_rank: Option<u64>) -> Self {
        Self { max_bytes, last_rank, entries: Vec::new(), bytes: 0 }
    }

    /// Keep `value` if its key's hash is small enough.
    pub fn offer(&mut self, key: &[u8], place: u64, value: &[u8]) {
        if self.last_rank.is_some() {
            self.keep(xxh3_64(key), place, value);
        }
    }

    /// Write the sample as a run into the new file `path`, with hashes as keys.
    fn write_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.write_entries(path)).map_err(os_error)
    }

    /// Add another sample, which was written as the run at `path`.
    fn add_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.read_entries(path)).map_err(os_error)
    }

    /// The sampled values, by their keys' hashes; the sample forgets them.
    fn take_values<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.trim();
        let values = PyList::empty(py);
        for entry in std::mem::take(&mut self.entries) {
            values.append(PyBytes::new(py, &entry.value))?;
        }
        Ok(values)
    }
}

impl Sample {
    fn keep(&mut self, rank: u64, place: u64, value: &[u8]) {
        if self.last_rank.is_none_or(|last| rank > last) {
            return;
        }
        self.entries.push(Entry { rank, place, value: value.into() });
        self.bytes += value.len();
        if self.bytes > 2 * self.max_bytes || self.entries.len() > 2 * MAX_VALUES {
            self.trim();
        }
    }

    fn trim(&mut self) {
        self.entries.sort_unstable_by_key(|entry| (entry.rank, entry.place));
        let (mut count, mut bytes) = (0, 0);
        for entry in self.entries.iter().take(MAX_VALUES) {
            if bytes + entry.value.len() > self.max_bytes && count > 0 {
                break;
            }
            bytes += entry.value.len();
            count += 1;
        }
        if let Some(first) = self.entries.get(count) {
            self.last_rank = first.rank.checked_sub(1);
            self.entries.truncate(count);
            self.bytes = bytes;
        }
    }

    fn write_entries(&mut self, path: PathBuf) -> std::io::Result<()> {
        self.trim();
        let mut run = RunWriter::create(&path)?;
        for entry in &self.entries {
            run.push(&entry.rank.to_be_bytes(), entry.place, &entry.value)?;
        }
        run.finish()
    }

    fn read_entries(&mut self, path: PathBuf) -> std::io::Result<()> {
        let mut run = RunReader::open(&path)?;
        while !run.is_at_end() {
            self.keep(run.key().iter().fold(0, |rank, &byte| rank << 8 | u64::from(byte)), run.place(), run.value());
            run.advance()?;
        }
        Ok(())
    }
}
