//! A key of the caller becomes the bytes under which it is stored.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::route::steps::{Steps, MAX_KEY_BYTES};

/// How the keys of a dataset are normalised.
pub struct KeyEncoder {
    steps: Steps,
    /// Any text stays as it is.
    changes_nothing: bool,
    /// The encoder of `lookupdb.keys`, for what is no printable ASCII.
    encode: Py<PyAny>,
}

impl KeyEncoder {
    pub fn new(normalize: &[String], encode: Py<PyAny>) -> Self {
        KeyEncoder { steps: Steps::new(normalize), changes_nothing: normalize.is_empty(), encode }
    }

    /// Call `look_up` with the bytes under which `key` is stored. None, at once, for what no record can have as its key:
    /// what is no text, too.
    #[inline]
    pub fn with_encoded<T>(
        &self,
        key: &Bound<'_, PyAny>,
        look_up: impl FnOnce(&[u8]) -> PyResult<Option<T>>,
    ) -> PyResult<Option<T>> {
        let Ok(text) = key.downcast::<PyString>() else { return Ok(None) };
        let Ok(utf8) = text.to_str() else { return Ok(None) }; // a lone surrogate
        let bytes = utf8.as_bytes();
        if self.changes_nothing {
            // `can_exist` of the reader knows how long a key is.
            return look_up(bytes);
        }
        // No jump depends on a byte: this takes many at a time.
        if bytes.iter().fold(true, |is_plain, byte| is_plain & (byte.wrapping_sub(0x20) < 0x5f)) {
            if self.steps.keep(bytes) {
                return look_up(bytes);
            }
            let mut buffer = [0; MAX_KEY_BYTES];
            return self.steps.encode(bytes, &mut buffer).map_or(Ok(None), look_up);
        }
        match self.encode_by_python(text)? {
            Some(encoded) => look_up(encoded.as_bytes()),
            None => Ok(None),
        }
    }

    #[cold]
    fn encode_by_python<'py>(&self, text: &Bound<'py, PyString>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = text.py();
        match self.encode.bind(py).call1((text,)) {
            Ok(encoded) => Ok(Some(encoded.downcast_into::<PyBytes>()?)),
            Err(error) if error.is_instance(py, &py.import("lookupdb.keys")?.getattr("InvalidKey")?) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
