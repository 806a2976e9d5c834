//! What the forms of an answer to a batch have in common: JSON, and frames.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::sink::{decimal, Length, Room, Sink};
use super::values::PackedValues;

/// The body of an answer to a batch.
pub trait BatchBody {
    /// Put it, with `values` in it.
    fn put_body(&self, py: Python<'_>, out: &mut impl Sink, values: &PackedValues) -> PyResult<()>;

    /// The whole answer in one piece: `head`, the number of bytes of its body, `fields`, and the body.
    fn encode<'py>(
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
}
