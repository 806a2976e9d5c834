//! A shard's reply to an MGET, as it came: values are cut out when somebody wants them as such.
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};

use super::resp::{is_ended, read_values, Span};
use super::scan::Scan;

/// The values of a reply, each bytes or None. To Python it is like a list of them.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct ShardReply {
    data: Py<PyBytes>,
    spans: Vec<Span>,
    missing: usize,
}

#[pymethods]
impl ShardReply {
    /// The reply that `data` is, if it is a whole one to an MGET of `expected` keys, more than one, with nothing behind
    /// it and no error in it. None otherwise.
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

    /// How many values are None, which `value` must be.
    fn count(&self, value: &Bound<'_, PyAny>) -> usize {
        if value.is_none() {
            self.missing
        } else {
            0
        }
    }
}

impl ShardReply {
    pub fn new(data: Bound<'_, PyBytes>, spans: Vec<Span>) -> Self {
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

    /// The bytes that hold the values of `count` keys from `offset` on, and where they lie among them: copied if others
    /// are there too, so that nobody's values are kept for the sake of another's.
    pub fn part(&self, py: Python<'_>, offset: usize, count: usize) -> Option<(Py<PyBytes>, Vec<Span>)> {
        let spans = self.spans.get(offset..offset.checked_add(count)?)?;
        if spans.len() == self.spans.len() {
            return Some((self.data.clone_ref(py), spans.to_vec()));
        }
        let found = || spans.iter().filter(|span| !span.is_missing());
        let start = found().next().map_or(0, |span| span.start);
        let end = found().next_back().map_or(0, |span| span.start + span.len);
        let bytes = self.data.as_bytes(py).get(start as usize..end as usize)?;
        let moved = |span: &Span| {
            if span.is_missing() {
                *span
            } else {
                Span { start: span.start - start, ..*span }
            }
        };
        Some((PyBytes::new(py, bytes).unbind(), spans.iter().map(moved).collect()))
    }
}

/// Finds the values of one reply to an MGET, which comes in several pieces, and joins these when it is whole.
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

    /// The reply, which `pieces` are together. None if it is not a list of values to the letter.
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
        let is_whole =
            size == self.scan.received() && self.scan.spans().iter().all(|span| is_ended(data.as_bytes(), *span));
        Ok(is_whole.then(|| ShardReply::new(data, self.scan.spans().to_vec())))
    }
}
