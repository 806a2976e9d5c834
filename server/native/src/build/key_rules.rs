//! How the text of a key becomes bytes. ASCII is normalised here; of anything else `lookupdb.keys` knows how.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// `keys.MAX_KEY_BYTES`.
const MAX_KEY_BYTES: usize = 511;

/// The normalisation of a dataset's keys.
pub struct KeyRules {
    strips: bool,
    lowers: bool,
    /// Text that is not ASCII stays as it is, too.
    changes_nothing: bool,
    /// The encoder of `lookupdb.keys`, for text that is not ASCII.
    encode: Py<PyAny>,
}

impl KeyRules {
    /// The rules of `steps`, which `encode` follows.
    pub fn new(steps: &[String], encode: Py<PyAny>) -> PyResult<Self> {
        let (mut strips, mut lowers) = (false, false);
        for step in steps {
            match step.as_str() {
                "strip" => strips = true,
                "lowercase" | "casefold" => lowers = true,
                "nfc" => (),
                _ => return Err(PyValueError::new_err(format!("the kernels know no step {step:?}"))),
            }
        }
        Ok(Self { strips, lowers, changes_nothing: steps.is_empty(), encode })
    }

    /// `key` becomes the encoded key of `text`, valid UTF-8; false if there is none, for whatever reason.
    pub fn encode(&self, text: &[u8], key: &mut Vec<u8>) -> PyResult<bool> {
        key.clear();
        if text.is_ascii() {
            key.extend_from_slice(if self.strips { strip(text) } else { text });
            if self.lowers {
                key.make_ascii_lowercase();
            }
        } else if self.changes_nothing {
            key.extend_from_slice(text);
        } else if !self.encode_by_python(text, key)? {
            return Ok(false);
        }
        Ok((1..=MAX_KEY_BYTES).contains(&key.len()))
    }

    fn encode_by_python(&self, text: &[u8], key: &mut Vec<u8>) -> PyResult<bool> {
        let Ok(text) = std::str::from_utf8(text) else {
            return Ok(false);
        };
        Python::attach(|py| match self.encode.call1(py, (text,)) {
            Ok(encoded) => {
                key.extend_from_slice(encoded.bind(py).downcast::<PyBytes>()?.as_bytes());
                Ok(true)
            }
            Err(error) if error.is_instance_of::<PyValueError>(py) => Ok(false),
            Err(error) => Err(error),
        })
    }
}

/// `text` without the white space at its ends that `str.strip` knows in ASCII.
fn strip(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, 9..=13 | 28..=32);
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    text.get(start..end).unwrap_or_default()
}
