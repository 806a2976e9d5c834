//! The JSON that answers a batch.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::keys::{Key, PackedKeys};
use super::resp::Span;
use super::values::Place;

/// A value of so many bytes is a piece of its own.
const LARGE_VALUE_BYTES: usize = 4096;
/// A piece of smaller ones ends when it has so many bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// Appends a key as a JSON string.
pub fn push_key(py: Python<'_>, out: &mut Vec<u8>, keys: &PackedKeys, key: &Key) -> PyResult<()> {
    match key {
        Key::Plain { start, end } => {
            out.push(b'"');
            out.extend_from_slice(keys.text(*start, *end));
            out.push(b'"');
        }
        Key::Odd(text) => {
            let json = py.import("orjson")?.call_method1("dumps", (text,))?;
            out.extend_from_slice(json.downcast::<PyBytes>()?.as_bytes());
        }
    }
    Ok(())
}

/// Appends a value: JSON as it is, raw bytes as a string of base64.
pub fn push_value(out: &mut Vec<u8>, value: &[u8], raw: bool) {
    if raw {
        out.push(b'"');
        push_base64(out, value);
        out.push(b'"');
    } else {
        out.extend_from_slice(value);
    }
}

/// Appends what follows the values.
pub fn push_end(py: Python<'_>, out: &mut Vec<u8>, keys: &PackedKeys, places: &[Place], partial: bool) -> PyResult<()> {
    out.extend_from_slice(b"},\"missing\":");
    push_keys(py, out, keys, places, |place| matches!(place, Place::Missing))?;
    if partial {
        out.extend_from_slice(b",\"unavailable\":");
        push_keys(py, out, keys, places, |place| matches!(place, Place::Unavailable))?;
    }
    out.push(b'}');
    Ok(())
}

fn push_keys(
    py: Python<'_>,
    out: &mut Vec<u8>,
    keys: &PackedKeys,
    places: &[Place],
    is_listed: impl Fn(&Place) -> bool,
) -> PyResult<()> {
    let mut before = b'[';
    for (key, _) in keys.keys().iter().zip(places).filter(|(_, place)| is_listed(place)) {
        out.push(before);
        push_key(py, out, keys, key)?;
        before = b',';
    }
    if before == b'[' {
        out.push(b'[');
    }
    out.push(b']');
    Ok(())
}

fn push_base64(out: &mut Vec<u8>, value: &[u8]) {
    let start = out.len();
    out.resize(start + base64_bytes(value), b'=');
    write_base64(out.get_mut(start..).unwrap_or_default(), value);
}

fn base64_bytes(value: &[u8]) -> usize {
    value.len().div_ceil(3) * 4
}

/// Fills `out`, which has as many bytes as `value` needs.
fn write_base64(out: &mut [u8], value: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (quad, group) in out.chunks_exact_mut(4).zip(value.chunks(3)) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (index, digit) in quad.iter_mut().enumerate() {
            let is_padding = index > group.len();
            *digit = if is_padding { b'=' } else { DIGITS[(bits >> (18 - 6 * index)) as usize & 63] };
        }
    }
}

/// The pieces of a large answer, the last one still as text.
pub struct Piece<'py> {
    done: Bound<'py, PyList>,
    pub text: Vec<u8>,
}

impl<'py> Piece<'py> {
    pub fn new(py: Python<'py>, start: &[u8]) -> Self {
        Self { done: PyList::empty(py), text: start.to_vec() }
    }

    /// Appends the value at `span` of `part`.
    pub fn push_value(&mut self, part: &Bound<'py, PyBytes>, span: Span, raw: bool) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        if value.len() < LARGE_VALUE_BYTES {
            push_value(&mut self.text, value, raw);
            return if self.text.len() < PIECE_BYTES { Ok(()) } else { self.end() };
        }
        let py = self.done.py();
        if raw {
            self.text.push(b'"');
            self.end()?;
            self.done.append(PyBytes::new_with(py, base64_bytes(value), |out| {
                write_base64(out, value);
                Ok(())
            })?)?;
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
