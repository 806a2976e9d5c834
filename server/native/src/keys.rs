//! Turns a dataset's keys into the bytes under which they are stored, as `lookupdb.keys` does.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::reader::MAX_KEY_BYTES;
use crate::text::Steps;

/// The normalisation of a dataset's keys.
pub struct KeyEncoder {
    steps: Steps,
    /// Whether there are no steps, so that any text stays as it is.
    changes_nothing: bool,
    /// The encoder of `lookupdb.keys`, for text that is not ASCII, and for the columns of a key.
    encode: Py<PyAny>,
}

impl KeyEncoder {
    /// An encoder that follows the steps of `normalize`, as `encode` does. Raises ValueError for an unknown step.
    pub fn new(normalize: &[String], encode: Py<PyAny>) -> PyResult<Self> {
        if let Some(step) = normalize.iter().find(|step| !Steps::NAMES.contains(&step.as_str())) {
            return Err(PyValueError::new_err(format!("the kernels know no step {step:?}")));
        }
        Ok(KeyEncoder { steps: Steps::new(normalize), changes_nothing: normalize.is_empty(), encode })
    }

    /// Call `look_up` with the bytes under which `key` is stored. Returns None at once if no record can have this key,
    /// for example because it is not a text.
    #[inline]
    pub fn with_encoded<T>(
        &self,
        key: &Bound<'_, PyAny>,
        look_up: impl FnOnce(&[u8]) -> PyResult<Option<T>>,
    ) -> PyResult<Option<T>> {
        let Ok(text) = key.downcast::<PyString>() else {
            if key.is_instance_of::<PyTuple>() {
                let encoded = encode_by_python(self.encode.bind(key.py()), key)?;
                return encoded.map_or(Ok(None), |encoded| look_up(encoded.as_bytes()));
            }
            return Ok(None);
        };
        let Ok(utf8) = text.to_str() else { return Ok(None) }; // a lone surrogate
        let bytes = utf8.as_bytes();
        if self.changes_nothing {
            return look_up(bytes); // the reader checks the length
        }
        // No branch depends on a byte, so the compiled code checks many at a time.
        if bytes.iter().fold(true, |is_plain, byte| is_plain & (byte.wrapping_sub(0x20) < 0x5f)) {
            if self.steps.keep(bytes) {
                return look_up(bytes);
            }
            let mut buffer = [0; MAX_KEY_BYTES];
            return self.steps.encode(bytes, &mut buffer).map_or(Ok(None), look_up);
        }
        match encode_by_python(self.encode.bind(key.py()), text)? {
            Some(encoded) => look_up(encoded.as_bytes()),
            None => Ok(None),
        }
    }

    /// Write the bytes of `text`, valid UTF-8, to `key`. Returns false if no record can have this key.
    pub fn encode(&self, text: &[u8], key: &mut Vec<u8>) -> PyResult<bool> {
        key.clear();
        if text.is_ascii() {
            self.steps.push(text, key);
        } else if self.changes_nothing {
            key.extend_from_slice(text);
        } else {
            let Ok(text) = std::str::from_utf8(text) else { return Ok(false) };
            let is_key = Python::attach(|py| {
                let encoded = encode_by_python(self.encode.bind(py), &PyString::new(py, text))?;
                encoded.iter().for_each(|encoded| key.extend_from_slice(encoded.as_bytes()));
                Ok::<bool, PyErr>(encoded.is_some())
            })?;
            if !is_key {
                return Ok(false);
            }
        }
        Ok((1..=MAX_KEY_BYTES).contains(&key.len()))
    }
}

/// The bytes under which `encode` stores `key`; None if no record can have it.
#[cold]
pub fn encode_by_python<'py>(
    encode: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = key.py();
    match encode.call1((key,)) {
        Ok(encoded) => Ok(Some(encoded.downcast_into::<PyBytes>()?)),
        Err(error) if error.is_instance(py, &py.import("lookupdb.keys")?.getattr("InvalidKey")?) => Ok(None),
        Err(error) => Err(error),
    }
}
