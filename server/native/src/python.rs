//! What Python sees of single parts: a shard file, the page warmer, and the fields of values.
use std::path::PathBuf;
use std::sync::Arc;

use memchr::memchr;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};

use crate::reader::{Cursor, Damage, OpenError, ShardFile, MAX_KEY_BYTES};
use crate::resp::push_bulk;
use crate::text;
use crate::values::Expander;

create_exception!(lookupdb._native, Damaged, PyValueError, "A page or a stored value is damaged.");

/// Add this module's classes and functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Damaged", module.py().get_type::<Damaged>())?;
    module.add_class::<PyShardFile>()?;
    module.add_class::<PageWarmer>()?;
    module.add_function(wrap_pyfunction!(select_fields, module)?)?;
    module.add_function(wrap_pyfunction!(encode_fields, module)?)
}

/// A shard file, mapped as long as this object lives: for tests and tools, not for a server's lookups.
#[pyclass(name = "ShardFile", module = "lookupdb._native")]
struct PyShardFile {
    file: ShardFile,
    expander: Expander,
}

#[pymethods]
impl PyShardFile {
    /// Raises OSError, and ValueError for a file that is damaged or of an unknown format.
    #[new]
    fn new(path: PathBuf) -> PyResult<PyShardFile> {
        let file = ShardFile::open(&path)?;
        let expander = Expander::new(file.dictionary()).map_err(Damaged::new_err)?;
        Ok(PyShardFile { file, expander })
    }

    #[getter]
    fn dictionary<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.file.dictionary())
    }

    #[getter]
    fn records(&self) -> u64 {
        self.file.records()
    }

    /// The value stored under `key`, or None. Raises Damaged.
    fn find<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.file.find(key)?.map(|stored| PyBytes::new(py, stored)))
    }

    /// The results of `find` for `keys`, looked up together; where `find` would raise, the item is the exception.
    fn find_many<'py>(&self, py: Python<'py>, keys: Vec<Bound<'py, PyBytes>>) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut found = Vec::with_capacity(keys.len());
        self.file.find_many(&keys, &mut found);
        let list = PyList::empty(py);
        for result in found {
            match result {
                Ok(stored) => list.append(stored.map(|stored| PyBytes::new(py, stored)))?,
                Err(damage) => list.append(PyErr::from(damage).into_value(py))?,
            }
        }
        Ok(list)
    }

    /// Every key with its stored value, in key order. The iterator raises Damaged.
    fn items(slf: Bound<'_, Self>) -> Items {
        let cursor = slf.borrow().file.cursor();
        Items { shard: slf.unbind(), cursor }
    }

    /// The RESP bulk string for `stored`, a value of this file. Raises Damaged.
    #[pyo3(signature = (stored, *, fetch_ahead = false))]
    fn expand<'py>(&mut self, py: Python<'py>, stored: &[u8], fetch_ahead: bool) -> PyResult<Bound<'py, PyBytes>> {
        let mut reply = Vec::new();
        self.expander.fetch_ahead(fetch_ahead);
        self.expander.append(stored, &mut reply).map_err(|damage| Damaged::new_err(damage.to_string()))?;
        Ok(PyBytes::new(py, &reply))
    }
}

#[pyclass(module = "lookupdb._native")]
struct Items {
    shard: Py<PyShardFile>,
    cursor: Cursor,
}

#[pymethods]
impl Items {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let shard = self.shard.try_borrow(py)?;
        let Some(item) = shard.file.next_item(&mut self.cursor) else {
            return Ok(None);
        };
        let (key, stored) = item?;
        Ok(Some((PyBytes::new(py, key), PyBytes::new(py, stored))))
    }
}

impl From<Damage> for PyErr {
    fn from(damage: Damage) -> PyErr {
        Damaged::new_err(damage.0)
    }
}

impl From<OpenError> for PyErr {
    fn from(error: OpenError) -> PyErr {
        match error {
            OpenError::Io(error) => error.into(),
            OpenError::Refused(reason) => PyValueError::new_err(reason),
        }
    }
}

/// The maximum number of digits of a word's length.
const MAX_DIGITS: usize = 3;

/// Reads pages from disk before lookups need them. Several threads may use it at once; none holds the GIL meanwhile.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct PageWarmer {
    pub file: Arc<ShardFile>,
}

#[pymethods]
impl PageWarmer {
    /// Raises OSError, and ValueError for a file that is damaged or of an unknown format.
    #[new]
    fn open(path: PathBuf) -> PyResult<Self> {
        Ok(PageWarmer { file: Arc::new(ShardFile::open(&path)?) })
    }

    /// Read the pages that the lookups in `requests`, pieces of RESP, need. Returns the number of requested pages.
    fn warm(&self, py: Python<'_>, requests: Vec<PyBackedBytes>) -> usize {
        py.detach(|| {
            let mut keys = Vec::new();
            for request in &requests {
                push_words(request, &mut keys);
            }
            self.file.warm(&keys)
        })
    }
}

/// Append what may be keys: every complete bulk string, wherever in a request `data` begins. A lookup of a string that
/// is not a key does no harm.
fn push_words<'d>(data: &'d [u8], keys: &mut Vec<&'d [u8]>) {
    let mut rest = data;
    while let Some(at) = memchr(b'$', rest) {
        rest = rest.get(at + 1..).unwrap_or_default();
        if let Some((word, behind)) = word(rest) {
            rest = behind;
            if !word.eq_ignore_ascii_case(b"GET") && !word.eq_ignore_ascii_case(b"MGET") {
                keys.push(word);
            }
        }
    }
}

/// The word whose length `data` begins with, and the rest.
fn word(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = data.iter().take(MAX_DIGITS).take_while(|byte| byte.is_ascii_digit()).count();
    let (length, text) = data.split_at_checked(digits)?;
    let length = length.iter().fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    let (word, behind) = text.strip_prefix(b"\r\n")?.split_at_checked(length)?;
    (1..=MAX_KEY_BYTES).contains(&length).then_some(())?;
    Some((word, behind.strip_prefix(b"\r\n")?))
}

/// The values of the fields `names` of `value`, each bytes or None. None if it is not a JSON object.
#[pyfunction]
fn select_fields<'py>(
    py: Python<'py>,
    value: &[u8],
    names: Vec<PyBackedBytes>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
    let Some(fields) = text::select_fields(value, &names) else {
        return Ok(None);
    };
    PyList::new(py, fields.iter().map(|field| field.as_deref().map(|text| PyBytes::new(py, text)))).map(Some)
}

/// The number of fields of the JSON object `value`, and the fields as bulk strings: their names if `names`, their
/// values if `values`, or each name with its value after it if both. None if it is not a JSON object.
#[pyfunction]
fn encode_fields<'py>(
    py: Python<'py>,
    value: &[u8],
    names: bool,
    values: bool,
) -> Option<(usize, Bound<'py, PyBytes>)> {
    let fields = text::all_fields(value)?;
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

#[cfg(test)]
mod tests {
    use super::push_words;

    fn words(data: &[u8]) -> Vec<&[u8]> {
        let mut words = Vec::new();
        push_words(data, &mut words);
        words
    }

    #[test]
    fn keys_of_pipelined_gets_and_of_an_mget() {
        assert_eq!(
            words(b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*3\r\n$4\r\nmget\r\n$1\r\nc\r\n$2\r\n$1\r\n"),
            [&b"ab"[..], b"c", b"$1"]
        );
    }

    #[test]
    fn a_piece_that_begins_and_ends_within_keys() {
        assert_eq!(words(b"23\r\n$2\r\nab\r\n$5\r\nabc"), [b"ab"]);
    }

    #[test]
    fn what_no_key_can_be() {
        assert_eq!(words(b"$\r\n\r\n$0\r\n\r\n$9999\r\nab\r\n$1\nab$1\r\nab\r\n$"), Vec::<&[u8]>::new());
    }
}
