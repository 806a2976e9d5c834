//! A large answer in pieces that follow each other, without a copy of any large value.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::resp::Span;
use super::sink::{base64_bytes, write_base64};

/// A value of so many bytes is a piece of its own.
const LARGE_VALUE_BYTES: usize = 4096;
/// A piece of smaller ones ends when it has so many bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// The pieces of an answer, the last one still as text.
pub struct Pieces<'py> {
    done: Bound<'py, PyList>,
    pub text: Vec<u8>,
}

impl<'py> Pieces<'py> {
    pub fn new(py: Python<'py>, start: &[u8]) -> Self {
        Self { done: PyList::empty(py), text: start.to_vec() }
    }

    /// Appends the value at `span` of `part`, as it is.
    pub fn push_value(&mut self, part: &Bound<'py, PyBytes>, span: Span) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        if value.len() < LARGE_VALUE_BYTES {
            self.text.extend_from_slice(value);
            return self.end_if_long();
        }
        self.end()?;
        if value.len() == part.as_bytes().len() {
            self.done.append(part)
        } else {
            self.done.append(PyBytes::new(self.done.py(), value))
        }
    }

    /// Appends that value as base64.
    pub fn push_base64(&mut self, part: &Bound<'py, PyBytes>, span: Span) -> PyResult<()> {
        let value = span.of(part.as_bytes());
        let size = base64_bytes(value);
        if value.len() < LARGE_VALUE_BYTES {
            let start = self.text.len();
            self.text.resize(start + size, 0);
            write_base64(self.text.get_mut(start..).unwrap_or_default(), value);
            return self.end_if_long();
        }
        self.end()?;
        let write = |out: &mut [u8]| {
            write_base64(out, value);
            Ok(())
        };
        self.done.append(PyBytes::new_with(self.done.py(), size, write)?)
    }

    fn end_if_long(&mut self) -> PyResult<()> {
        if self.text.len() < PIECE_BYTES {
            Ok(())
        } else {
            self.end()
        }
    }

    fn end(&mut self) -> PyResult<()> {
        if !self.text.is_empty() {
            self.done.append(PyBytes::new(self.done.py(), &self.text))?;
            self.text.clear();
        }
        Ok(())
    }

    pub fn finish(mut self) -> PyResult<Bound<'py, PyList>> {
        self.end()?;
        Ok(self.done)
    }
}
