//! Records in memory, until there are so many that they are sorted and written as a run.
use std::collections::HashMap;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::batch::{Record, RecordBatch};
use super::os_error;
use super::runs::RunWriter;
use super::spools::{is_full, Spools, SPOOLED};

/// Keys and values lie in pieces of this size, so that no growth copies them all.
const CHUNK_BYTES: usize = 1 << 20;
/// Records lie in the order in which they came, and are written in that of their keys: each waits for memory. So one is
/// touched so many records before it is written.
const AHEAD: usize = 8;
/// What a record takes beside its bytes: its entry, and room into which entries grow.
const RECORD_MEMORY: usize = 56;

/// Where a record lies, and the first bytes of its key, by which most comparisons are decided.
#[derive(Clone, Copy)]
struct Entry {
    prefix: Prefix,
    place: u64,
    chunk: u32,
    at: u32,
    key: u32,
    value: u32,
}

/// Unsorted records: key, place, value.
#[pyclass(module = "lookupdb._native")]
#[derive(Default)]
pub struct RecordBuffer {
    chunks: Vec<Vec<u8>>,
    entries: Vec<Entry>,
    bytes: usize,
}

#[pymethods]
impl RecordBuffer {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Add a record.
    fn put(&mut self, key: &[u8], place: u64, value: &[u8]) {
        self.push(key, place, value);
    }

    /// The memory that the records take, in bytes.
    #[getter]
    pub fn memory(&self) -> usize {
        self.bytes
    }

    /// Write the records, sorted, as a run into the new file `path`, and forget them.
    fn write_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut records = std::mem::take(self);
        py.detach(|| {
            records.sort();
            records.write(path)
        })
        .map_err(os_error)
    }

    /// The records in batches, sorted; the buffer forgets them. `spools` are the files of large values.
    fn take_sorted(&mut self, py: Python<'_>, spools: HashMap<u64, PathBuf>) -> SortedBuffer {
        let mut records = std::mem::take(self);
        py.detach(|| records.sort());
        SortedBuffer { records, spools: Spools(spools), number: 0 }
    }
}

/// Sorted records. Iterating yields batches, once.
#[pyclass(module = "lookupdb._native")]
pub struct SortedBuffer {
    records: RecordBuffer,
    spools: Spools,
    /// Of the next record.
    number: usize,
}

#[pymethods]
impl SortedBuffer {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        py.detach(|| self.next_batch()).map_err(os_error)
    }
}

impl SortedBuffer {
    fn next_batch(&mut self) -> std::io::Result<Option<RecordBatch>> {
        let mut batch = RecordBatch::default();
        while let Some(entry) = self.records.entries.get(self.number).filter(|_| !is_full(&batch)) {
            let (key, value) = self.records.parts(entry);
            self.spools.push(Record { key, place: entry.place, value }, &mut batch)?;
            self.number += 1;
        }
        Ok(Some(batch).filter(|batch| batch.len() > 0))
    }
}

impl RecordBuffer {
    /// Add a record.
    pub fn push(&mut self, key: &[u8], place: u64, value: &[u8]) {
        let size = key.len() + value.len();
        if self.chunks.last().is_none_or(|chunk| chunk.capacity() - chunk.len() < size) {
            self.chunks.push(Vec::with_capacity(size.max(CHUNK_BYTES)));
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let at = chunk.len();
        chunk.extend_from_slice(key);
        chunk.extend_from_slice(value);
        self.bytes += size + RECORD_MEMORY;
        self.entries.push(Entry {
            prefix: key_prefix(key),
            place,
            chunk: number as u32,
            at: at as u32,
            key: key.len() as u32,
            value: value.len() as u32,
        });
    }

    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        // Places grow with the order in which records were put, so that equal keys keep it.
        entries.sort_unstable_by(|one, other| {
            one.prefix
                .cmp(&other.prefix)
                .then_with(|| self.parts(one).0.cmp(self.parts(other).0))
                .then_with(|| (one.place & !SPOOLED).cmp(&(other.place & !SPOOLED)))
        });
        self.entries = entries;
    }

    fn write(&self, path: PathBuf) -> std::io::Result<()> {
        let mut run = RunWriter::create(&path)?;
        for (number, entry) in self.entries.iter().enumerate() {
            if let Some(later) = self.entries.get(number + AHEAD) {
                std::hint::black_box(self.parts(later).0.first());
            }
            let (key, value) = self.parts(entry);
            run.push(key, entry.place, value)?;
        }
        run.finish()
    }

    fn parts(&self, entry: &Entry) -> (&[u8], &[u8]) {
        let (at, key, value) = (entry.at as usize, entry.key as usize, entry.value as usize);
        let record = self.chunks.get(entry.chunk as usize).and_then(|chunk| chunk.get(at..at + key + value));
        record.unwrap_or_default().split_at_checked(key).unwrap_or_default()
    }
}

/// The first bytes of a key, as numbers that sort as they do.
pub type Prefix = (u64, u64);

/// The first sixteen bytes of `key`.
pub fn key_prefix(key: &[u8]) -> Prefix {
    (first_word(key), key.get(8..).map_or(0, first_word))
}

fn first_word(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => key.iter().enumerate().fold(0, |prefix, (number, &byte)| prefix | u64::from(byte) << (56 - 8 * number)),
    }
}
