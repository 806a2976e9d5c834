//! All records of a generation: shards in their order, and keys in the order of their bytes in each.
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::generation::{key_text, Form, MappedGeneration};
use crate::reader::{Cursor, Damage};

/// What is given of each record.
#[derive(Clone, Copy)]
pub enum Part {
    Keys,
    Values,
    Items,
}

/// An iterator over the records, of one generation from its begin to its end. It keeps that mapped.
#[pyclass(module = "lookupdb._native")]
pub struct MappedItems {
    generation: Py<MappedGeneration>,
    part: Part,
    form: Form,
    shard: usize,
    cursor: Option<Cursor>,
}

impl MappedItems {
    pub fn new(generation: Py<MappedGeneration>, part: Part, form: Form) -> Self {
        MappedItems { generation, part, form, shard: 0, cursor: None }
    }
}

impl Part {
    /// By its name in Python.
    pub fn parse(name: &str) -> PyResult<Part> {
        match name {
            "keys" => Ok(Part::Keys),
            "values" => Ok(Part::Values),
            "items" => Ok(Part::Items),
            _ => Err(PyValueError::new_err(format!("expected keys, values or items, found '{name}'"))),
        }
    }
}

#[pymethods]
impl MappedItems {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let generation = self.generation.clone_ref(py);
        let generation = generation.get();
        while let Some(file) = generation.files.get(self.shard) {
            let cursor = self.cursor.get_or_insert_with(|| file.cursor());
            match file.next_item(cursor) {
                Some(Ok((key, stored))) => return self.make(py, generation, key, stored).map(Some),
                Some(Err(Damage(problem))) => {
                    let error = generation.damage(py, self.shard, None, problem);
                    self.shard = generation.files.len(); // nobody takes what is behind for all there is
                    return Err(error);
                }
                None => (self.shard, self.cursor) = (self.shard + 1, None),
            }
        }
        Ok(None)
    }
}

impl MappedItems {
    fn make<'py>(
        &self,
        py: Python<'py>,
        generation: &MappedGeneration,
        key: &[u8],
        stored: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(key) = key_text(py, key) else {
            return Err(generation.damage(py, self.shard, None, "a key is not UTF-8"));
        };
        if matches!(self.part, Part::Keys) {
            return Ok(key.into_any());
        }
        let bytes = generation.make_bytes(py, self.shard, stored);
        let bytes = bytes.map_err(|problem| generation.damage(py, self.shard, Some(key.as_any()), &problem))?;
        let value = generation.shape(self.shard, Some(key.as_any()), bytes, self.form)?;
        match self.part {
            Part::Items => Ok((key, value).into_pyobject(py)?.into_any()),
            _ => Ok(value),
        }
    }
}
