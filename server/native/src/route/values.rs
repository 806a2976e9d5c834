//! What has been found for the keys of a batch, as it came, until it is written as an answer.
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::answer::Answer;
use super::batch_body::BatchBody;
use super::frames::Frames;
use super::keys::PackedKeys;
use super::pieces::Pieces;
use super::replies::{Replies, END};
use super::reply::ShardReply;
use super::resp::Span;
use super::shard_keys::PackedShardKeys;

/// What is known of a key.
#[derive(Clone, Copy)]
pub enum Place {
    Missing,
    Unavailable,
    /// The value lies at `span` of a part.
    Found {
        part: usize,
        span: Span,
    },
}

/// One place a key.
#[pyclass(module = "lookupdb._native")]
pub struct PackedValues {
    places: Vec<Place>,
    parts: Vec<Py<PyBytes>>,
    /// How many keys nothing can be said of.
    #[pyo3(get)]
    unavailable_count: usize,
}

#[pymethods]
impl PackedValues {
    #[new]
    pub fn new(keys: usize) -> Self {
        Self { places: vec![Place::Missing; keys], parts: Vec::new(), unavailable_count: 0 }
    }

    fn __len__(&self) -> usize {
        self.places.len()
    }

    /// Put the values of `keys` where they belong: those of `values` from `offset` on. How many bytes they have.
    fn place(&mut self, keys: &PackedShardKeys, values: &Bound<'_, PyAny>, offset: usize) -> PyResult<usize> {
        if let Ok(reply) = values.downcast::<ShardReply>() {
            return self.place_part(values.py(), keys, reply.get(), offset);
        }
        let list = values.downcast::<PyList>()?;
        let mut size = 0;
        for (index, entry) in keys.entries.iter().enumerate() {
            let value = list.get_item(offset + index)?;
            if value.is_none() {
                self.set(entry.position, Place::Missing)?;
                continue;
            }
            let value = value.downcast_into::<PyBytes>()?;
            let len = value.as_bytes().len();
            let span = Span { start: 0, len: span_size(len)? };
            self.set(entry.position, Place::Found { part: self.parts.len(), span })?;
            self.parts.push(value.unbind());
            size += len;
        }
        Ok(size)
    }

    /// Note that nothing can be said of `keys`.
    fn mark_unavailable(&mut self, keys: &PackedShardKeys) -> PyResult<()> {
        self.unavailable_count += keys.entries.len();
        keys.entries.iter().try_for_each(|entry| self.set(entry.position, Place::Unavailable))
    }

    /// As a list: bytes, None, or `unavailable`.
    fn to_list<'py>(&self, py: Python<'py>, unavailable: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for place in &self.places {
            match self.find(py, *place) {
                Some(value) => list.append(PyBytes::new(py, value))?,
                None if matches!(place, Place::Unavailable) => list.append(unavailable)?,
                None => list.append(py.None())?,
            }
        }
        Ok(list)
    }

    /// The answer to a batch of `keys`: `head`, the size of the body, `fields`, and as the body `start` up to the first
    /// value, then what was found, what is missing and, if `partial`, what is unavailable. JSON values go in as the bytes
    /// they are, `raw` ones as base64.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        head: &[u8],
        fields: &[u8],
        start: &[u8],
        keys: &PackedKeys,
        raw: bool,
        partial: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.check(keys)?;
        Answer { start, keys, raw, partial }.encode(py, head, fields, self)
    }

    /// The same body in pieces that follow each other. Values are forgotten as their piece is made; large ones of JSON
    /// are pieces themselves.
    fn encode_in_pieces<'py>(
        &mut self,
        py: Python<'py>,
        start: &[u8],
        keys: &PackedKeys,
        raw: bool,
        partial: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.check(keys)?;
        let answer = Answer { start, keys, raw, partial };
        let mut pieces = Pieces::new(py, start);
        let mut comma: &[u8] = b"";
        self.drain(py, |index, _, found| {
            let (Some((part, span)), Some(key)) = (found, keys.keys().get(index)) else {
                return Ok(());
            };
            pieces.text.extend_from_slice(comma);
            answer.put_key(py, &mut pieces.text, key)?;
            comma = b",";
            if !raw {
                pieces.text.push(b':');
                return pieces.push_value(part, span);
            }
            pieces.text.extend_from_slice(b":\"");
            pieces.push_base64(part, span)?;
            pieces.text.push(b'"');
            Ok(())
        })?;
        answer.put_end(py, &mut pieces.text, &self.places)?;
        pieces.finish()
    }

    /// The answer to a batch of `keys` as frames: `head`, the size of the body, `fields`, and the body.
    fn encode_frames<'py>(
        &self,
        py: Python<'py>,
        head: &[u8],
        fields: &[u8],
        keys: &PackedKeys,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.check(keys)?;
        Frames { keys }.encode(py, head, fields, self)
    }

    /// The same body in pieces that follow each other. Values are forgotten as their piece is made; large ones are pieces
    /// themselves.
    fn encode_frames_in_pieces<'py>(&mut self, py: Python<'py>, keys: &PackedKeys) -> PyResult<Bound<'py, PyList>> {
        self.check(keys)?;
        let mut pieces = Pieces::new(py, b"");
        Frames { keys }.put_start(py, &mut pieces.text, &self.places)?;
        self.drain(py, |_, _, found| found.map_or(Ok(()), |(part, span)| pieces.push_value(part, span)))?;
        pieces.finish()
    }

    /// How many keys have a value.
    #[getter]
    fn found_count(&self) -> usize {
        self.places.iter().filter(|place| matches!(place, Place::Found { .. })).count()
    }

    /// The replies of RESP, one a key, or a list of them: a value as a bulk string, else `nil` or `error`.
    fn encode_replies<'py>(
        &self,
        py: Python<'py>,
        is_list: bool,
        nil: &[u8],
        error: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        Replies { is_list, nil, error }.encode(py, self)
    }

    /// The same in pieces that follow each other. Values are forgotten as their piece is made.
    fn encode_replies_in_pieces<'py>(
        &mut self,
        py: Python<'py>,
        is_list: bool,
        nil: &[u8],
        error: &[u8],
    ) -> PyResult<Bound<'py, PyList>> {
        let replies = Replies { is_list, nil, error };
        let mut pieces = Pieces::new(py, b"");
        replies.put_head(&mut pieces.text, self.places.len());
        self.drain(py, |_, place, found| {
            let Some((part, span)) = found else {
                pieces.text.extend_from_slice(replies.nothing(place));
                return Ok(());
            };
            Replies::put_value_head(&mut pieces.text, span.len as usize);
            pieces.push_value(part, span)?;
            pieces.text.extend_from_slice(END);
            Ok(())
        })?;
        pieces.finish()
    }
}

impl PackedValues {
    fn place_part(
        &mut self,
        py: Python<'_>,
        keys: &PackedShardKeys,
        reply: &ShardReply,
        offset: usize,
    ) -> PyResult<usize> {
        let (bytes, spans) = reply
            .part(py, offset, keys.entries.len())
            .ok_or_else(|| PyIndexError::new_err("the reply has fewer values"))?;
        let part = self.parts.len();
        self.parts.push(bytes);
        let mut size = 0;
        for (entry, span) in keys.entries.iter().zip(spans) {
            if span.is_missing() {
                self.set(entry.position, Place::Missing)?;
            } else {
                self.set(entry.position, Place::Found { part, span })?;
                size += span.len as usize;
            }
        }
        Ok(size)
    }

    fn set(&mut self, position: usize, place: Place) -> PyResult<()> {
        let known = self.places.get_mut(position).ok_or_else(|| PyIndexError::new_err("a key of another batch"))?;
        *known = place;
        Ok(())
    }

    /// Calls `each` for one key after the other, with its value's part and span if it has one. Values are forgotten
    /// behind the last one of their part.
    fn drain<'py>(
        &mut self,
        py: Python<'py>,
        mut each: impl FnMut(usize, Place, Option<(&Bound<'py, PyBytes>, Span)>) -> PyResult<()>,
    ) -> PyResult<()> {
        let last_uses = self.last_uses();
        let nothing = PyBytes::new(py, b"").unbind();
        for (index, place) in self.places.iter().enumerate() {
            let Place::Found { part, span } = *place else {
                each(index, *place, None)?;
                continue;
            };
            let Some(bytes) = self.parts.get_mut(part) else {
                continue; // each part that is named is there
            };
            each(index, *place, Some((bytes.bind(py), span)))?;
            if last_uses.get(part) == Some(&index) {
                *bytes = nothing.clone_ref(py);
            }
        }
        Ok(())
    }

    /// Of each part, the last key whose value it holds.
    fn last_uses(&self) -> Vec<usize> {
        let mut last_uses = vec![0; self.parts.len()];
        for (index, place) in self.places.iter().enumerate() {
            if let Place::Found { part, .. } = place {
                if let Some(last) = last_uses.get_mut(*part) {
                    *last = index;
                }
            }
        }
        last_uses
    }

    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The value of a place, if there is one.
    pub fn find<'a>(&'a self, py: Python<'a>, place: Place) -> Option<&'a [u8]> {
        match place {
            Place::Found { part, span } => self.parts.get(part).map(|bytes| span.of(bytes.as_bytes(py))),
            _ => None,
        }
    }

    fn check(&self, keys: &PackedKeys) -> PyResult<()> {
        if keys.keys().len() == self.places.len() {
            return Ok(());
        }
        Err(PyTypeError::new_err("the values of another batch"))
    }
}

fn span_size(len: usize) -> PyResult<u32> {
    u32::try_from(len).ok().filter(|&size| size < u32::MAX).ok_or_else(|| PyOverflowError::new_err("a value of 4 GiB"))
}
