//! The replies of RESP to lookups.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::resp::push_number;
use super::sink::{Length, Room, Sink};
use super::values::{PackedValues, Place};

/// Behind a value.
pub const END: &[u8] = b"\r\n";

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
                    Self::put_value_head(out, value.len());
                    out.put(value);
                    out.put(END);
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

    /// Puts what stands before a value of `size` bytes; `END` stands behind it.
    pub fn put_value_head(out: &mut impl Sink, size: usize) {
        put_line(out, b'$', size);
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
