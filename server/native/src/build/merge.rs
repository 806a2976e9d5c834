//! Merges sorted runs into one stream of records, in key order; among equal keys, those of an earlier run come first.
use std::collections::HashMap;
use std::io::Result;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::batch::{Record, RecordBatch};
use super::os_error;
use super::runs::{RunReader, RunWriter};
use super::spools::{is_full, Spools};

/// Of what is written at once: a few milliseconds' worth.
const PIECE_BYTES: usize = 1 << 20;

/// The records of runs. Iterating yields batches, once.
#[pyclass(module = "lookupdb._native")]
pub struct Merge {
    runs: Vec<RunReader>,
    /// The numbers of the runs that have a record left, as a heap: that with the smallest record first.
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

    /// Write all records as one run into the new file `path`; references into spools stay references. Signals are
    /// handled between pieces of it: what they raise ends the merge.
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

    /// Write some records, as long as there are any.
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

    /// Go on from the record of the run at the heap's top.
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
        let order = left.prefix().cmp(&right.prefix()).then_with(|| left.key().cmp(right.key()));
        order.then(one.cmp(&other)).is_lt()
    }
}
