//! A shard file as Python sees it: for tests and tools. A server's lookups do not come this way.
use crate::reader::{Cursor, Damage, OpenError, ShardFile};
use crate::values::Expander;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::path::PathBuf;

create_exception!(lookupdb._native, Damaged, PyValueError, "A page or a stored value is damaged.");

/// Add this module's classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Damaged", module.py().get_type::<Damaged>())?;
    module.add_class::<PyShardFile>()
}

/// A shard file, mapped as long as it lives.
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

    /// What `find` returns or raises for each of `keys`, which are looked up together.
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

    /// An iterator over every key with its stored value, in key order. It raises Damaged.
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
