//! A whole generation in the caller's own process, for `lookupdb.mapped`; the Python fallback is `python_generation`.
//!
//! A `MappedView` looks keys up in the current generation, or in a fixed one. `generation` maps the shards.
mod generation;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::reader::{Cursor, Damage};
use crate::system::coarse_nanoseconds;
use generation::{Form, MappedGeneration};

/// Add this module's classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MappedGeneration>()?;
    module.add_class::<MappedItems>()?;
    module.add_class::<MappedView>()
}

/// An interval that never ends: the clock's range is 292 years.
const NEVER: u64 = u64::MAX / 2;

/// A view of a generation, which a newer one may replace.
#[pyclass(subclass, frozen, module = "lookupdb._native")]
pub struct MappedView {
    generation: Mutex<Option<Py<MappedGeneration>>>,
    /// Looks for a newer generation: `Follower` in `mapped/generation.py`.
    follower: Option<Py<PyAny>>,
    /// The nanoseconds between two checks for a newer generation.
    interval: u64,
    /// When to check next, by the coarse clock.
    due: AtomicU64,
}

#[pymethods]
impl MappedView {
    #[new]
    #[pyo3(signature = (generation, follower = None, refresh_seconds = None))]
    fn new(generation: Py<MappedGeneration>, follower: Option<Py<PyAny>>, refresh_seconds: Option<f64>) -> Self {
        let interval = refresh_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let interval = interval.and_then(|interval| interval.as_nanos().try_into().ok()).unwrap_or(NEVER).min(NEVER);
        MappedView {
            generation: Mutex::new(Some(generation)),
            follower,
            interval,
            due: AtomicU64::new(coarse_nanoseconds() + interval),
        }
    }

    #[getter]
    fn follower(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.follower.as_ref().map(|follower| follower.clone_ref(py))
    }

    /// Answer from `generation` from now on. None closes the view for good.
    fn put(&self, generation: Option<Py<MappedGeneration>>) {
        let mut present = self.lock();
        let is_open = present.is_some();
        let unused = if is_open { std::mem::replace(&mut *present, generation) } else { generation };
        drop(present);
        drop(unused); // without the lock: it may be the last reference
    }

    /// The current generation, after a check for a newer one. Raises ValueError if the view is closed.
    #[inline]
    fn current(slf: &Bound<'_, Self>) -> PyResult<Py<MappedGeneration>> {
        let view = slf.get();
        if view.follower.is_some() && view.interval != NEVER {
            view.look_if_due(slf)?;
        }
        match &*view.lock() {
            Some(generation) => Ok(generation.clone_ref(slf.py())),
            None => Err(PyValueError::new_err("the mapping is closed")),
        }
    }

    /// The current generation without a check; None if the view is closed.
    fn newest(&self, py: Python<'_>) -> Option<Py<MappedGeneration>> {
        self.lock().as_ref().map(|generation| generation.clone_ref(py))
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        Ok(Self::current(slf)?.get().records as usize)
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let generation = Self::current(slf)?;
        let found = generation.get().get(&key, Form::Value)?;
        found.ok_or_else(|| key_error(key))
    }

    /// The value of `key`, or `default` if no record has it.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        slf: &Bound<'py, Self>,
        key: Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Self::current(slf)?.get().get(&key, Form::Value)?.or(default))
    }

    /// The bytes of the value of `key`, not decoded. Raises KeyError.
    fn raw<'py>(slf: &Bound<'py, Self>, key: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let found = Self::current(slf)?.get().get(&key, Form::Raw)?;
        found.ok_or_else(|| key_error(key))
    }

    fn __contains__(slf: &Bound<'_, Self>, key: Bound<'_, PyAny>) -> PyResult<bool> {
        Self::current(slf)?.get().contains(&key)
    }

    /// Key → value, for those of `keys` that are found. All values are of one generation.
    #[pyo3(signature = (keys, *, raw = false))]
    fn get_many<'py>(slf: &Bound<'py, Self>, keys: Bound<'py, PyAny>, raw: bool) -> PyResult<Bound<'py, PyDict>> {
        let generation = Self::current(slf)?;
        if keys.is_instance_of::<PyString>() || keys.is_instance_of::<PyBytes>() {
            return Err(one_text_error(&keys));
        }
        let keys = keys.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let found = PyDict::new(slf.py());
        generation.get().get_many(&keys, if raw { Form::Raw } else { Form::Value }, &found)?;
        Ok(found)
    }

    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<MappedItems> {
        Ok(MappedItems::new(Self::current(slf)?, Part::Keys, Form::Value))
    }

    /// An iterator over the "keys", "values" or "items" of the current generation.
    #[pyo3(signature = (part, *, raw = false))]
    fn iterate(slf: &Bound<'_, Self>, part: &str, raw: bool) -> PyResult<MappedItems> {
        let form = if raw { Form::Raw } else { Form::Value };
        Ok(MappedItems::new(Self::current(slf)?, Part::parse(part)?, form))
    }
}

impl MappedView {
    /// No Python code runs while this is held, and no thread gives up the GIL, so nobody waits for it.
    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, Option<Py<MappedGeneration>>> {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let the follower check, unless it has just done so. It may `put` another generation.
    #[inline(always)]
    fn look_if_due(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        let now = coarse_nanoseconds();
        if now < self.due.load(Relaxed) {
            return Ok(());
        }
        self.due.store(now + self.interval, Relaxed);
        self.look(slf)
    }

    #[cold]
    fn look(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        match &self.follower {
            Some(follower) if self.lock().is_some() => follower.bind(slf.py()).call_method1("look", (slf,)).map(drop),
            _ => Ok(()),
        }
    }
}

/// The same KeyError as a dict's.
#[cold]
fn key_error(key: Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.unbind(),))
}

#[cold]
fn one_text_error(text: &Bound<'_, PyAny>) -> PyErr {
    match text.repr() {
        Ok(shown) => {
            let shown: String = shown.to_string_lossy().chars().take(60).collect();
            PyTypeError::new_err(format!("get_many() takes several keys, found one text: {shown}; get() takes one key"))
        }
        Err(error) => error,
    }
}

/// The parts of each record that are returned.
#[derive(Clone, Copy)]
pub enum Part {
    Keys,
    Values,
    Items,
}

/// An iterator over the records of one generation, which it keeps mapped: shard by shard, in key order.
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
    /// Find a part by its name in Python.
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
                    self.shard = generation.files.len(); // nothing follows an error: the rest would look complete
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
        let Ok(key) = std::str::from_utf8(key).map(|key| PyString::new(py, key)) else {
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
