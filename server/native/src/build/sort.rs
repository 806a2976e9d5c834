//! Records are collected in memory, sorted, written as runs, and merged into one stream; some values are sampled.
//!
//! A run is a file of sorted records, block by block. The Python fallback's files have another format.
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use xxhash_rust::xxh3::xxh3_64;

use super::batch::{is_full, Record, RecordBatch, Spools, SPOOLED};
use super::os_error;

/// Keys and values are stored in chunks of this size, so that growth copies nothing.
const CHUNK_BYTES: usize = 1 << 20;
/// Records are stored in the order of arrival and written in the order of their keys, so reading each waits for memory.
/// They are prefetched this many records ahead.
const AHEAD: usize = 8;
/// The memory of a record besides its bytes: its entry, and the spare room of the entries.
const RECORD_MEMORY: usize = 56;

/// Where a record is, and the first bytes of its key, which decide most comparisons.
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

    fn put(&mut self, key: &[u8], place: u64, value: &[u8]) {
        self.push(key, place, value);
    }

    /// The memory of the records, in bytes.
    #[getter]
    pub fn memory(&self) -> usize {
        self.bytes
    }

    /// Sort the records, write them as a run to the new file `path`, and clear the buffer.
    fn write_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut records = std::mem::take(self);
        py.detach(|| {
            records.sort();
            records.write(path)
        })
        .map_err(os_error)
    }

    /// The sorted records in batches; the buffer is cleared. `spools` are the files of large values.
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
    /// The number of the next record.
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
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
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
        // Places grow in the order in which records were put, so records with equal keys keep it.
        entries.sort_unstable_by(|one, other| {
            one.prefix
                .cmp(&other.prefix)
                .then_with(|| self.parts(one).0.cmp(self.parts(other).0))
                .then_with(|| (one.place & !SPOOLED).cmp(&(other.place & !SPOOLED)))
        });
        self.entries = entries;
    }

    fn write(&self, path: PathBuf) -> Result<()> {
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

/// The first sixteen bytes of a key, as numbers that compare as the bytes do.
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

/// Collects records, and offers them to the sample, until the memory is full.
pub struct Sink<'a> {
    records: &'a mut RecordBuffer,
    memory: usize,
    sample: &'a mut Sample,
}

impl<'a> Sink<'a> {
    /// A sink into `records`, which may use `memory` bytes, and `sample`.
    pub fn new(records: &'a mut RecordBuffer, memory: usize, sample: &'a mut Sample) -> Self {
        Self { records, memory, sample }
    }

    pub fn put(&mut self, key: &[u8], place: u64, value: &[u8]) {
        self.records.push(key, place, value);
        self.sample.offer(key, place, value);
    }

    /// Whether the records must be written before more are added.
    pub fn is_full(&self) -> bool {
        self.records.memory() > self.memory
    }
}

/// `write._MAX_VALUES`.
const MAX_VALUES: usize = 200_000;

/// A sample of values to train the compression dictionary on: those whose keys have the smallest hashes.
#[pyclass(module = "lookupdb._native")]
pub struct Sample {
    max_bytes: usize,
    /// The largest accepted hash, if any.
    last_rank: Option<u64>,
    entries: Vec<SampledValue>,
    bytes: usize,
}

/// A sampled value, and its order: by the hash of its key, then by its place.
struct SampledValue {
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

    /// Write the sample as a run to the new file `path`, with hashes as keys.
    fn write_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.write_entries(path)).map_err(os_error)
    }

    /// Add another sample from its run at `path`.
    fn add_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.read_entries(path)).map_err(os_error)
    }

    /// The sampled values in the order of their keys' hashes; the sample is cleared.
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
        self.entries.push(SampledValue { rank, place, value: value.into() });
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

    fn write_entries(&mut self, path: PathBuf) -> Result<()> {
        self.trim();
        let mut run = RunWriter::create(&path)?;
        for entry in &self.entries {
            run.push(&entry.rank.to_be_bytes(), entry.place, &entry.value)?;
        }
        run.finish()
    }

    fn read_entries(&mut self, path: PathBuf) -> Result<()> {
        let mut run = RunReader::open(&path)?;
        while !run.is_at_end() {
            self.keep(run.key().iter().fold(0, |rank, &byte| rank << 8 | u64::from(byte)), run.place(), run.value());
            run.advance()?;
        }
        Ok(())
    }
}

/// The approximate size of a block.
const BLOCK_BYTES: usize = 256 << 10;
/// The size that a record adds to a block besides its bytes, as in Python.
const RECORD_BYTES: usize = 50;
/// The header of a block: the number of records, and the sizes of their keys and values.
const HEADER_BYTES: usize = 20;
/// The size of a record's place and two sizes.
const NUMBERS_BYTES: usize = 16;

pub struct RunWriter {
    file: File,
    count: u32,
    size: usize,
    places: Vec<u8>,
    key_sizes: Vec<u8>,
    value_sizes: Vec<u8>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RunWriter {
    /// Create the run at the new file `path`.
    pub fn create(path: &Path) -> Result<Self> {
        Ok(Self {
            file: OpenOptions::new().write(true).create_new(true).open(path)?,
            count: 0,
            size: 0,
            places: Vec::new(),
            key_sizes: Vec::new(),
            value_sizes: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Add a record, which must not sort before the earlier ones.
    pub fn push(&mut self, key: &[u8], place: u64, value: &[u8]) -> Result<()> {
        self.places.extend_from_slice(&place.to_le_bytes());
        self.key_sizes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.value_sizes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        self.count += 1;
        self.size += key.len() + value.len() + RECORD_BYTES;
        if self.size > BLOCK_BYTES {
            self.write_block()?;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<()> {
        if self.count > 0 {
            self.write_block()?;
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        let [keys, values] = [&self.keys, &self.values].map(|part| (part.len() as u64).to_le_bytes());
        self.file.write_all(&[&self.count.to_le_bytes()[..], &keys, &values].concat())?;
        for part in [&mut self.places, &mut self.key_sizes, &mut self.value_sizes, &mut self.keys, &mut self.values] {
            self.file.write_all(part)?;
            part.clear();
        }
        (self.count, self.size) = (0, 0);
        Ok(())
    }
}

/// Reads a run, record by record.
pub struct RunReader {
    file: File,
    unread: u64,
    block: Vec<u8>,
    count: usize,
    number: usize,
    key_at: usize,
    value_at: usize,
    /// The first bytes of the record's key.
    prefix: Prefix,
}

impl RunReader {
    /// Open the run at `path`, at its first record.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let unread = file.metadata()?.len();
        let mut run =
            Self { file, unread, block: Vec::new(), count: 0, number: 0, key_at: 0, value_at: 0, prefix: (0, 0) };
        run.read_block()?;
        Ok(run)
    }

    pub fn is_at_end(&self) -> bool {
        self.number == self.count
    }

    pub fn key(&self) -> &[u8] {
        self.block.get(self.key_at..self.key_at + self.key_size()).unwrap_or_default()
    }

    pub fn place(&self) -> u64 {
        let at = 8 * self.number;
        let place = self.block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(place.unwrap_or_default())
    }

    pub fn value(&self) -> &[u8] {
        self.block.get(self.value_at..self.value_at + self.value_size()).unwrap_or_default()
    }

    pub fn advance(&mut self) -> Result<()> {
        let (key, value) = (self.key_size(), self.value_size());
        self.key_at += key;
        self.value_at += value;
        self.number += 1;
        if self.number == self.count {
            return self.read_block();
        }
        self.prefix = key_prefix(self.key());
        Ok(())
    }

    fn key_size(&self) -> usize {
        self.read_size(8 * self.count + 4 * self.number)
    }

    fn value_size(&self) -> usize {
        self.read_size(12 * self.count + 4 * self.number)
    }

    fn read_size(&self, at: usize) -> usize {
        let size = self.block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(size.unwrap_or_default()) as usize
    }

    fn read_block(&mut self) -> Result<()> {
        (self.count, self.number) = (0, 0);
        if self.unread == 0 {
            self.block = Vec::new();
            return Ok(());
        }
        let mut header = [0; HEADER_BYTES];
        self.file.read_exact(&mut header)?;
        let [count, keys, values] = [&header[..4], &header[4..12], &header[12..]]
            .map(|part| part.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)));
        let size = keys.checked_add(values).and_then(|size| size.checked_add(count * NUMBERS_BYTES as u64));
        let Some(size) = size.filter(|size| count > 0 && HEADER_BYTES as u64 + size <= self.unread) else {
            return Err(Error::new(ErrorKind::InvalidData, "a file of sorted records is damaged"));
        };
        self.unread -= HEADER_BYTES as u64 + size;
        self.block.resize(size as usize, 0);
        self.file.read_exact(&mut self.block)?;
        self.count = count as usize;
        self.key_at = NUMBERS_BYTES * self.count;
        self.value_at = self.key_at + keys as usize;
        self.prefix = key_prefix(self.key());
        Ok(())
    }
}

/// The size of one write: a few milliseconds' worth.
const PIECE_BYTES: usize = 1 << 20;

/// The records of sorted runs in key order; equal keys in the order of their runs. Iterating yields batches, once.
#[pyclass(module = "lookupdb._native")]
pub struct Merge {
    runs: Vec<RunReader>,
    /// The numbers of the runs with records left, as a heap with the smallest record first.
    heap: Vec<usize>,
    spools: Spools,
}

#[pymethods]
impl Merge {
    /// `spools` are the files of large values, by the number of their slice.
    #[new]
    fn new(paths: Vec<PathBuf>, spools: HashMap<u64, PathBuf>) -> PyResult<Self> {
        let runs: Vec<RunReader> =
            paths.iter().map(|path| RunReader::open(path)).collect::<Result<_>>().map_err(os_error)?;
        let heap = (0..runs.len()).filter(|&number| !runs[number].is_at_end()).collect();
        let mut merge = Self { runs, heap, spools: Spools(spools) };
        for position in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(position);
        }
        Ok(merge)
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        py.detach(|| self.next_batch()).map_err(os_error)
    }

    /// Write all records as one run to the new file `path`; references into spools stay references. Signals are handled
    /// between writes, and their exceptions end the merge.
    fn write_run(&mut self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut out = RunWriter::create(&path).map_err(os_error)?;
        while !self.heap.is_empty() {
            py.detach(|| self.write_piece(&mut out)).map_err(os_error)?;
            py.check_signals()?;
        }
        out.finish().map_err(os_error)
    }
}

impl Merge {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let mut batch = RecordBatch::default();
        while let Some(&first) = self.heap.first() {
            if is_full(&batch) {
                break;
            }
            let run = &self.runs[first];
            self.spools.push(Record { key: run.key(), place: run.place(), value: run.value() }, &mut batch)?;
            self.advance(first)?;
        }
        Ok(Some(batch).filter(|batch| batch.len() > 0))
    }

    /// Write some records, if any are left.
    fn write_piece(&mut self, out: &mut RunWriter) -> Result<()> {
        let mut bytes = 0;
        while let Some(&first) = self.heap.first().filter(|_| bytes < PIECE_BYTES) {
            let run = &self.runs[first];
            bytes += run.key().len() + run.value().len() + 1;
            out.push(run.key(), run.place(), run.value())?;
            self.advance(first)?;
        }
        Ok(())
    }

    /// Advance the run at the top of the heap.
    fn advance(&mut self, first: usize) -> Result<()> {
        self.runs[first].advance()?;
        if self.runs[first].is_at_end() {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let mut least = position;
            for child in [2 * position + 1, 2 * position + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[least]) {
                    least = child;
                }
            }
            if least == position {
                return;
            }
            self.heap.swap(position, least);
            position = least;
        }
    }

    fn is_before(&self, one: usize, other: usize) -> bool {
        let (left, right) = (&self.runs[one], &self.runs[other]);
        let order = left.prefix.cmp(&right.prefix).then_with(|| left.key().cmp(right.key()));
        order.then(one.cmp(&other)).is_lt()
    }
}
