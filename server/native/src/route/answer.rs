//! The JSON that answers a batch.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::keys::{Key, PackedKeys};
use super::resp::Span;
use super::sink::{base64_bytes, decimal, write_base64, Length, Room, Sink};
use super::values::{PackedValues, Place};
use crate::json_string::{plain_size, push_escaped};

/// A value of so many bytes is a piece of its own.
const LARGE_VALUE_BYTES: usize = 4096;
/// A piece of smaller ones ends when it has so many bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// What an answer is made of.
pub struct Answer<'a> {
    /// Up to the first value.
    pub start: &'a [u8],
    pub keys: &'a PackedKeys,
    pub raw: bool,
    pub partial: bool,
}

impl Answer<'_> {
    /// The whole answer in one piece: `head`, the number of bytes of its body, `fields`, and the body.
    pub fn encode<'py>(
        &self,
        py: Python<'py>,
        head: &[u8],
        fields: &[u8],
        values: &PackedValues,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut body = Length::default();
        self.put_body(py, &mut body, values)?;
        let size = decimal(body.0);
        let whole = head.len() + size.len() + fields.len() + 4 + body.0;
        PyBytes::new_with(py, whole, |out| {
            let mut room = Room::new(out);
            for part in [head, &size, b"\r\n", fields, b"\r\n"] {
                room.put(part);
            }
            self.put_body(py, &mut room, values)?;
            room.is_full().then_some(()).ok_or_else(|| PyValueError::new_err("an answer of another size"))
        })
    }

    fn put_body(&self, py: Python<'_>, out: &mut impl Sink, values: &PackedValues) -> PyResult<()> {
        out.put(self.start);
        let mut comma: &[u8] = b"";
        for (key, place) in self.keys.keys().iter().zip(values.places()) {
            if let Some(value) = values.find(py, *place) {
                out.put(comma);
                self.put_key(py, out, key)?;
                out.put(b":");
                self.put_value(out, value);
                comma = b",";
            }
        }
        self.put_end(py, out, values.places())
    }

    /// Puts a key as a JSON string.
    pub fn put_key(&self, py: Python<'_>, out: &mut impl Sink, key: &Key) -> PyResult<()> {
        match key {
            Key::Plain { start, end } => {
                out.put(b"\"");
                out.put(self.keys.text(*start, *end));
                out.put(b"\"");
            }
            Key::Text { start, end } => {
                let text = self.keys.text(*start, *end);
                out.put(b"\"");
                if plain_size(text) == text.len() {
                    out.put(text);
                } else {
                    let mut escaped = Vec::with_capacity(text.len() * 2);
                    push_escaped(text, &mut escaped);
                    out.put(&escaped);
                }
                out.put(b"\"");
            }
            Key::NoText(text) => {
                text.bind(py).to_str()?; // raises what is wrong with it
            }
        }
        Ok(())
    }

    /// Puts a value: JSON as it is, raw bytes as a string of base64.
    fn put_value(&self, out: &mut impl Sink, value: &[u8]) {
        if self.raw {
            out.put(b"\"");
            out.put_base64(value);
            out.put(b"\"");
        } else {
            out.put(value);
        }
    }

    /// Puts what follows the values.
    pub fn put_end(&self, py: Python<'_>, out: &mut impl Sink, places: &[Place]) -> PyResult<()> {
        out.put(b"},\"missing\":");
        self.put_keys(py, out, places, |place| matches!(place, Place::Missing))?;
        if self.partial {
            out.put(b",\"unavailable\":");
            self.put_keys(py, out, places, |place| matches!(place, Place::Unavailable))?;
        }
        out.put(b"}");
        Ok(())
    }

    fn put_keys(
        &self,
        py: Python<'_>,
        out: &mut impl Sink,
        places: &[Place],
        is_listed: impl Fn(&Place) -> bool,
    ) -> PyResult<()> {
        let mut before: &[u8] = b"";
        out.put(b"[");
        for (key, _) in self.keys.keys().iter().zip(places).filter(|(_, place)| is_listed(place)) {
            out.put(before);
            self.put_key(py, out, key)?;
            before = b",";
        }
        out.put(b"]");
        Ok(())
    }
}

/// The pieces of a large answer, the last one still as text.
pub struct Pieces<'py> {
    done: Bound<'py, PyList>,
    pub text: Vec<u8>,
}

impl<'py> Pieces<'py> {
    pub fn new(py: Python<'py>, start: &[u8]) -> Self {
        Self { done: PyList::empty(py), text: start.to_vec() }
    }

    /// Appends the value at `span` of `part`.
    pub fn push_value(&mut self, part: &Bound<'py, PyBytes>, span: Span, answer: &Answer<'_>) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        if value.len() < LARGE_VALUE_BYTES {
            answer.put_value(&mut self.text, value);
            return if self.text.len() < PIECE_BYTES { Ok(()) } else { self.end() };
        }
        let py = self.done.py();
        if answer.raw {
            self.text.push(b'"');
            self.end()?;
            let write = |out: &mut [u8]| {
                write_base64(out, value);
                Ok(())
            };
            self.done.append(PyBytes::new_with(py, base64_bytes(value), write)?)?;
            self.text.push(b'"');
            return Ok(());
        }
        self.end()?;
        if value.len() == part.as_bytes().len() {
            self.done.append(part)
        } else {
            self.done.append(PyBytes::new(py, value))
        }
    }

    fn end(&mut self) -> PyResult<()> {
        self.done.append(PyBytes::new(self.done.py(), &self.text))?;
        self.text.clear();
        Ok(())
    }

    pub fn finish(mut self) -> PyResult<Bound<'py, PyList>> {
        self.end()?;
        Ok(self.done)
    }
}
