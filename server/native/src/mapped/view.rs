//! What a caller looks keys up in: the generation that is current, or one that stays.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::generation::{Form, MappedGeneration};
use super::items::{MappedItems, Part};
use crate::clock::coarse_nanoseconds;

/// Look no more often than that clock's range allows: 292 years are never.
const NEVER: u64 = u64::MAX / 2;

/// A generation that another one may take the place of.
#[pyclass(subclass, frozen, module = "lookupdb._native")]
pub struct MappedView {
    generation: Mutex<Option<Py<MappedGeneration>>>,
    /// What looks whether there is another generation: `mapped/follower.py`.
    follower: Option<Py<PyAny>>,
    /// Nanoseconds between two looks.
    interval: u64,
    /// When to look next, by the coarse clock.
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

    /// Answer from `generation` from now on; None: not any more, whatever comes later.
    fn put(&self, generation: Option<Py<MappedGeneration>>) {
        let unused = self.replace(generation);
        drop(unused); // without the lock: it may be the last reference
    }

    /// The generation that answers now, after a look whether there is another one. Raises ValueError if it is closed.
    #[inline]
    fn current(slf: &Bound<'_, Self>) -> PyResult<Py<MappedGeneration>> {
        let view = slf.get();
        if view.follower.is_some() && view.interval != NEVER {
            view.look_if_due(slf)?;
        }
        match &*view.lock() {
            Some(generation) => Ok(generation.clone_ref(slf.py())),
            None => Err(closing_error()),
        }
    }

    /// The generation that answered last, None if it is closed.
    fn newest(&self, py: Python<'_>) -> Option<Py<MappedGeneration>> {
        self.lock().as_ref().map(|generation| generation.clone_ref(py))
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        Ok(Self::current(slf)?.get().records() as usize)
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

    /// The values of those of `keys` that records have, by key, of one generation.
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

    /// An iterator over the "keys", "values" or "items" of the generation that answers now.
    #[pyo3(signature = (part, *, raw = false))]
    fn iterate(slf: &Bound<'_, Self>, part: &str, raw: bool) -> PyResult<MappedItems> {
        let form = if raw { Form::Raw } else { Form::Value };
        Ok(MappedItems::new(Self::current(slf)?, Part::parse(part)?, form))
    }
}

impl MappedView {
    /// Nothing of Python's runs while this is held, and nobody gives up the GIL: it is never waited for.
    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, Option<Py<MappedGeneration>>> {
        self.generation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is not used any more: the generation before, or else the new one, for what is closed stays closed.
    fn replace(&self, generation: Option<Py<MappedGeneration>>) -> Option<Py<MappedGeneration>> {
        let mut present = self.lock();
        if present.is_none() {
            return generation;
        }
        std::mem::replace(&mut *present, generation)
    }

    /// Let the follower look, unless one did just now. It may `put` another generation.
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

/// As a dict's, whatever the key is.
#[cold]
fn key_error(key: Bound<'_, PyAny>) -> PyErr {
    PyKeyError::new_err((key.unbind(),))
}

#[cold]
fn one_text_error(text: &Bound<'_, PyAny>) -> PyErr {
    match text.repr() {
        Ok(shown) => {
            let shown: String = shown.to_string_lossy().chars().take(60).collect();
            PyTypeError::new_err(format!("keys are several texts, found one: {shown}; get() takes one"))
        }
        Err(error) => error,
    }
}

fn closing_error() -> PyErr {
    PyValueError::new_err("the mapping is closed")
}
