//! Keys of a batch that one shard is asked for, as the request that asks for them has them.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::resp::push_bulk;

/// A key among those of one shard.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Among the keys of the batch.
    pub position: usize,
    /// Where it ends among the packed bytes.
    end: usize,
}

/// Keys of one shard, while they are collected.
pub struct Group {
    shard: usize,
    packed: Vec<u8>,
    entries: Vec<Entry>,
}

impl Group {
    pub fn new(shard: usize, keys: usize) -> Self {
        Self { shard, packed: Vec::with_capacity(keys * 24), entries: Vec::with_capacity(keys) }
    }

    pub fn push(&mut self, position: usize, encoded: &[u8]) {
        push_bulk(&mut self.packed, encoded);
        let end = self.packed.len();
        self.entries.push(Entry { position, end });
    }

    pub fn finish(self, py: Python<'_>) -> PackedShardKeys {
        PackedShardKeys { shard: self.shard, packed: PyBytes::new(py, &self.packed).unbind(), entries: self.entries }
    }
}

/// Keys of one shard.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct PackedShardKeys {
    /// Its number.
    #[pyo3(get)]
    shard: usize,
    /// The keys as bulk strings, one after the other.
    #[pyo3(get)]
    packed: Py<PyBytes>,
    pub entries: Vec<Entry>,
}

#[pymethods]
impl PackedShardKeys {
    fn __len__(&self) -> usize {
        self.entries.len()
    }

    /// Of each key, its position among those of the batch.
    #[getter]
    fn positions(&self) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.position).collect()
    }

    /// Those from `start` on, at most `count`.
    fn cut(&self, py: Python<'_>, start: usize, count: usize) -> Self {
        let end = start.saturating_add(count).min(self.entries.len());
        let chosen = self.entries.get(start..end).unwrap_or_default();
        let first = start.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(0, |entry| entry.end);
        let last = chosen.last().map_or(first, |entry| entry.end);
        let packed = self.packed.as_bytes(py).get(first..last).unwrap_or_default();
        let moved = |entry: &Entry| Entry { end: entry.end - first, ..*entry };
        Self {
            shard: self.shard,
            packed: PyBytes::new(py, packed).unbind(),
            entries: chosen.iter().map(moved).collect(),
        }
    }

    /// Those of which `mask`, as long as these, says so.
    fn select(&self, py: Python<'_>, mask: Vec<bool>) -> PyResult<Self> {
        if mask.len() != self.entries.len() {
            return Err(PyValueError::new_err("as many as there are keys"));
        }
        Ok(self.pick(py, |index| mask.get(index) == Some(&true)))
    }
}

impl PackedShardKeys {
    fn pick(&self, py: Python<'_>, is_chosen: impl Fn(usize) -> bool) -> Self {
        let all = self.packed.as_bytes(py);
        let mut packed = Vec::new();
        let mut entries = Vec::new();
        let mut start = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if is_chosen(index) {
                packed.extend_from_slice(all.get(start..entry.end).unwrap_or_default());
                entries.push(Entry { position: entry.position, end: packed.len() });
            }
            start = entry.end;
        }
        Self { shard: self.shard, packed: PyBytes::new(py, &packed).unbind(), entries }
    }
}
