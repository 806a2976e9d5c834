//! Histograms of requests among a worker's counters in shared memory: adjacent buckets, and the sum in nanoseconds.
use std::cell::Cell;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::system;

/// Add this module's class.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RequestHistograms>()
}

/// The upper bounds of the buckets, in nanoseconds. The last bucket has none.
pub struct Bounds(pub Vec<u64>);

impl Bounds {
    /// The number of counters of a histogram.
    pub fn counters(&self) -> usize {
        self.0.len() + 2
    }

    /// Add `count` requests to the histogram that begins at `first`.
    #[inline]
    pub fn observe(&self, numbers: &[Cell<u64>], first: usize, nanoseconds: u64, count: u64) {
        add(numbers, first + self.0.partition_point(|&bound| bound < nanoseconds), count);
        add(numbers, first + self.0.len() + 1, count.wrapping_mul(nanoseconds));
    }
}

#[inline]
pub fn add(numbers: &[Cell<u64>], place: usize, count: u64) {
    if let Some(number) = numbers.get(place) {
        number.set(number.get().wrapping_add(count));
    }
}

pub fn cells<'a, T: Element>(py: Python<'a>, buffer: &'a PyBuffer<T>) -> PyResult<&'a [Cell<T>]> {
    buffer.as_mut_slice(py).ok_or_else(|| PyValueError::new_err("expected writable memory"))
}

/// The histograms of a router's worker.
#[pyclass(frozen, module = "lookupdb._native")]
struct RequestHistograms {
    counters: PyBuffer<u64>,
    bounds: Bounds,
}

#[pymethods]
impl RequestHistograms {
    #[new]
    #[pyo3(signature = (counters, bounds, /))]
    fn new(counters: PyBuffer<u64>, bounds: Vec<u64>) -> Self {
        RequestHistograms { counters, bounds: Bounds(bounds) }
    }

    /// Add `count` requests that arrived at `arrived` (by Python's `monotonic_ns`) and are answered now. Also add them
    /// to `counter`.
    #[pyo3(signature = (histogram, arrived, count = 1, counter = None, /))]
    fn observe(
        &self,
        py: Python<'_>,
        histogram: usize,
        arrived: u64,
        count: u64,
        counter: Option<usize>,
    ) -> PyResult<()> {
        let nanoseconds = system::nanoseconds().saturating_sub(arrived);
        let numbers = cells(py, &self.counters)?;
        self.bounds.observe(numbers, histogram, nanoseconds, count);
        if let Some(counter) = counter {
            add(numbers, counter, count);
        }
        Ok(())
    }
}
