//! A whole generation in the caller's own process: `lookupdb/mapped` uses it. The twin is `mapped/python_view.py`.
mod cold;
mod generation;
mod items;
mod keys;
mod long_numbers;
mod values;
mod view;

use pyo3::prelude::*;

/// Add this module's classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<generation::MappedGeneration>()?;
    module.add_class::<items::MappedItems>()?;
    module.add_class::<view::MappedView>()
}
