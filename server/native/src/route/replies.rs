//! The replies of RESP to lookups.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::resp::{push_number, Span};
use super::sink::{Length, Room, Sink};
use super::values::{PackedValues, Place};

/// A value of so many bytes is a piece of its own.
const LARGE_VALUE_BYTES: usize = 4096;
/// A piece of smaller ones ends when it has so many bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// What replies are made of beside values.
pub struct Replies<'a> {
    /// The replies are the elements of one list.
    pub is_list: bool,
    /// For a key that no record has.
    pub nil: &'a [u8],
    /// For a key of which nothing can be said.
    pub error: &'a [u8],
}

impl Replies<'_> {
    /// All of them in one piece.
    pub fn encode<'py>(&self, py: Python<'py>, values: &PackedValues) -> PyResult<Bound<'py, PyBytes>> {
        let mut size = Length::default();
        self.put(py, &mut size, values);
        PyBytes::new_with(py, size.0, |out| {
            let mut room = Room::new(out);
            self.put(py, &mut room, values);
            room.is_full().then_some(()).ok_or_else(|| PyValueError::new_err("replies of another size"))
        })
    }

    fn put(&self, py: Python<'_>, out: &mut impl Sink, values: &PackedValues) {
        self.put_head(out, values.places().len());
        for place in values.places() {
            match values.find(py, *place) {
                Some(value) => {
                    put_line(out, b'$', value.len());
                    out.put(value);
                    out.put(b"\r\n");
                }
                None => out.put(self.nothing(*place)),
            }
        }
    }

    /// Puts what stands before the first reply.
    pub fn put_head(&self, out: &mut impl Sink, count: usize) {
        if self.is_list {
            put_line(out, b'*', count);
        }
    }

    /// The reply where there is no value.
    pub fn nothing(&self, place: Place) -> &[u8] {
        match place {
            Place::Unavailable => self.error,
            _ => self.nil,
        }
    }
}

fn put_line(out: &mut impl Sink, kind: u8, number: usize) {
    let mut line = Vec::with_capacity(24);
    line.push(kind);
    push_number(&mut line, number);
    line.extend_from_slice(b"\r\n");
    out.put(&line);
}

/// The pieces of large replies, the last one still as text.
pub struct ReplyPieces<'py> {
    done: Bound<'py, PyList>,
    pub text: Vec<u8>,
}

impl<'py> ReplyPieces<'py> {
    pub fn new(py: Python<'py>) -> Self {
        Self { done: PyList::empty(py), text: Vec::new() }
    }

    /// Appends the value at `span` of `part`.
    pub fn push_value(&mut self, part: &Bound<'py, PyBytes>, span: Span) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        put_line(&mut self.text, b'$', value.len());
        if value.len() < LARGE_VALUE_BYTES {
            self.text.extend_from_slice(value);
            self.text.extend_from_slice(b"\r\n");
            return if self.text.len() < PIECE_BYTES { Ok(()) } else { self.end() };
        }
        self.end()?;
        if value.len() == part.as_bytes().len() {
            self.done.append(part)?;
        } else {
            self.done.append(PyBytes::new(self.done.py(), value))?;
        }
        self.text.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn end(&mut self) -> PyResult<()> {
        self.done.append(PyBytes::new(self.done.py(), &self.text))?;
        self.text.clear();
        Ok(())
    }

    pub fn finish(mut self) -> PyResult<Bound<'py, PyList>> {
        if !self.text.is_empty() {
            self.end()?;
        }
        Ok(self.done)
    }
}
