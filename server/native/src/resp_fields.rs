//! The fields of values as replies of RESP. `lookupdb/resp/fields.py` uses it.
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use crate::fields::{all, select};
use crate::route::resp::push_bulk;

/// Add this module's functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(select_fields, module)?)?;
    module.add_function(wrap_pyfunction!(encode_fields, module)?)
}

/// The values of the fields `names` of `value`, each bytes or None. None if it is no JSON object.
#[pyfunction]
fn select_fields<'py>(
    py: Python<'py>,
    value: &[u8],
    names: Vec<PyBackedBytes>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
    let Some(fields) = select(value, &names) else {
        return Ok(None);
    };
    PyList::new(py, fields.iter().map(|field| field.as_deref().map(|text| PyBytes::new(py, text)))).map(Some)
}

/// How many fields `value` has, and their `names`, their `values`, or both in turn as bulk strings. None if it is no JSON
/// object.
#[pyfunction]
fn encode_fields<'py>(
    py: Python<'py>,
    value: &[u8],
    names: bool,
    values: bool,
) -> Option<(usize, Bound<'py, PyBytes>)> {
    let fields = all(value)?;
    let mut out = Vec::new();
    for (name, text) in &fields {
        if names {
            push_bulk(&mut out, name);
        }
        if values {
            push_bulk(&mut out, text);
        }
    }
    Some((fields.len(), PyBytes::new(py, &out)))
}
