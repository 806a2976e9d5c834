//! The keys that each shard is asked for, encoded as in the request, and its reply as it arrived.
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};
use xxhash_rust::xxh3::xxh3_64;

use crate::resp::{is_ended, push_bulk, read_values, Scan, Span};

/// A key among those of one shard.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Its index among the keys of the batch.
    pub position: usize,
    /// Where it ends among the packed bytes.
    end: usize,
}

/// Keys of one shard, while they are collected.
struct Group {
    shard: usize,
    packed: Vec<u8>,
    entries: Vec<Entry>,
}

/// Collects keys by shard; shards are in the order of their first key.
pub struct Groups {
    groups: Vec<Group>,
    index_of: Vec<usize>,
    keys_a_shard: usize,
}

impl Groups {
    pub fn new(shards: usize, keys: usize) -> Self {
        Self {
            groups: Vec::with_capacity(shards.min(keys)),
            index_of: vec![usize::MAX; shards.max(1)],
            keys_a_shard: keys / shards.max(1) * 5 / 4 + 4,
        }
    }

    pub fn push(&mut self, position: usize, encoded: &[u8]) {
        let shard = (xxh3_64(encoded) % self.index_of.len() as u64) as usize;
        let Some(index) = self.index_of.get_mut(shard) else {
            return; // each shard has an entry
        };
        if *index == usize::MAX {
            *index = self.groups.len();
            let packed = Vec::with_capacity(self.keys_a_shard * 24);
            self.groups.push(Group { shard, packed, entries: Vec::with_capacity(self.keys_a_shard) });
        }
        if let Some(group) = self.groups.get_mut(*index) {
            push_bulk(&mut group.packed, encoded);
            group.entries.push(Entry { position, end: group.packed.len() });
        }
    }

    pub fn finish(self, py: Python<'_>) -> Vec<PackedShardKeys> {
        let pack = |Group { shard, packed, entries }| PackedShardKeys::new(py, shard, &packed, entries);
        self.groups.into_iter().map(pack).collect()
    }
}

/// Keys of one shard.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct PackedShardKeys {
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

    /// The position of each key among those of the batch.
    #[getter]
    fn positions(&self) -> Vec<usize> {
        self.entries.iter().map(|entry| entry.position).collect()
    }

    /// The keys from `start` on, at most `count`.
    fn cut(&self, py: Python<'_>, start: usize, count: usize) -> Self {
        let end = start.saturating_add(count).min(self.entries.len());
        let chosen = self.entries.get(start..end).unwrap_or_default();
        let first = start.checked_sub(1).and_then(|last| self.entries.get(last)).map_or(0, |entry| entry.end);
        let last = chosen.last().map_or(first, |entry| entry.end);
        let packed = self.packed.as_bytes(py).get(first..last).unwrap_or_default();
        let moved = |entry: &Entry| Entry { end: entry.end - first, ..*entry };
        Self::new(py, self.shard, packed, chosen.iter().map(moved).collect())
    }

    /// The keys whose entry in `mask` is true.
    fn select(&self, py: Python<'_>, mask: Vec<bool>) -> PyResult<Self> {
        if mask.len() != self.entries.len() {
            return Err(PyValueError::new_err("expected an entry of the mask for each key"));
        }
        let all = self.packed.as_bytes(py);
        let mut packed = Vec::new();
        let mut entries = Vec::new();
        let mut start = 0;
        for (entry, is_chosen) in self.entries.iter().zip(mask) {
            if is_chosen {
                packed.extend_from_slice(all.get(start..entry.end).unwrap_or_default());
                entries.push(Entry { position: entry.position, end: packed.len() });
            }
            start = entry.end;
        }
        Ok(Self::new(py, self.shard, &packed, entries))
    }
}

impl PackedShardKeys {
    fn new(py: Python<'_>, shard: usize, packed: &[u8], entries: Vec<Entry>) -> Self {
        Self { shard, packed: PyBytes::new(py, packed).unbind(), entries }
    }
}

/// A shard's reply to an MGET: like a list of values, each bytes or None. A value is copied when Python reads it.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct ShardReply {
    data: Py<PyBytes>,
    spans: Vec<Span>,
    missing: usize,
}

#[pymethods]
impl ShardReply {
    /// Read `data`, one whole reply to an MGET of `expected` keys, more than one. None if it is anything else, has an
    /// error in it, or something follows.
    #[staticmethod]
    fn read(data: &Bound<'_, PyBytes>, expected: usize) -> Option<Self> {
        let spans = read_values(data.as_bytes(), expected).filter(|spans| spans.len() > 1)?;
        Some(Self::new(data.clone(), spans))
    }

    fn __len__(&self) -> usize {
        self.spans.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.downcast::<PySlice>() {
            let range = slice.indices(self.spans.len() as isize)?;
            let list = PyList::empty(py);
            for step in 0..range.slicelength as isize {
                list.append(self.value(py, (range.start + step * range.step) as usize)?)?;
            }
            return Ok(list.into_any());
        }
        self.value(py, index.extract()?)
    }

    /// The number of values that are None. `value` must be None.
    fn count(&self, value: &Bound<'_, PyAny>) -> usize {
        usize::from(value.is_none()) * self.missing
    }
}

impl ShardReply {
    fn new(data: Bound<'_, PyBytes>, spans: Vec<Span>) -> Self {
        let missing = spans.iter().filter(|span| span.is_missing()).count();
        Self { data: data.unbind(), spans, missing }
    }

    fn value<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let span = self.spans.get(index).ok_or_else(|| PyIndexError::new_err("no such value"))?;
        if span.is_missing() {
            return Ok(py.None().into_bound(py));
        }
        Ok(PyBytes::new(py, span.of(self.data.as_bytes(py))).into_any())
    }

    /// The bytes that hold the values of `count` keys from `offset` on, and the span of each. The bytes are copied if
    /// there are other values too, so that no client's answer keeps another's values in memory.
    pub fn part(&self, py: Python<'_>, offset: usize, count: usize) -> Option<(Py<PyBytes>, Vec<Span>)> {
        let spans = self.spans.get(offset..offset.checked_add(count)?)?;
        if spans.len() == self.spans.len() {
            return Some((self.data.clone_ref(py), spans.to_vec()));
        }
        let found = || spans.iter().filter(|span| !span.is_missing());
        let start = found().next().map_or(0, |span| span.start);
        let end = found().next_back().map_or(0, |span| span.start + span.len);
        let bytes = self.data.as_bytes(py).get(start as usize..end as usize)?;
        let moved = |span: &Span| if span.is_missing() { *span } else { Span { start: span.start - start, ..*span } };
        Some((PyBytes::new(py, bytes).unbind(), spans.iter().map(moved).collect()))
    }
}

/// Finds the values of a reply to an MGET that comes in several pieces, and joins the pieces.
#[pyclass(module = "lookupdb._native")]
pub struct ReplyScan {
    scan: Scan,
}

#[pymethods]
impl ReplyScan {
    #[new]
    fn new(expected: usize) -> Self {
        Self { scan: Scan::new(expected) }
    }

    /// See `Scan`.
    fn feed(&mut self, data: &[u8]) -> Option<bool> {
        self.scan.feed(data)
    }

    /// Join `pieces` to the reply. None if it is not exactly a list of values.
    fn join(&self, py: Python<'_>, pieces: Vec<Bound<'_, PyBytes>>) -> PyResult<Option<ShardReply>> {
        let size: usize = pieces.iter().map(|piece| piece.as_bytes().len()).sum();
        let data = PyBytes::new_with(py, size, |mut room| {
            for piece in &pieces {
                let (part, rest) = room.split_at_mut(piece.as_bytes().len());
                part.copy_from_slice(piece.as_bytes());
                room = rest;
            }
            Ok(())
        })?;
        let Scan { received, spans, .. } = &self.scan;
        let is_whole = size == *received && spans.iter().all(|span| is_ended(data.as_bytes(), *span));
        Ok(is_whole.then(|| ShardReply::new(data, spans.clone())))
    }
}
