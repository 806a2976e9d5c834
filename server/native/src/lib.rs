//! The native kernels of lookupdb. Python keeps the event loops, HTTP, retries, cutover and supervision.
//!
//! Nothing here panics: input from files, clients and Python is checked, and Python reports the errors.
mod build;
mod histograms;
mod keys;
mod mapped;
mod python;
mod reader;
mod resp;
mod route;
mod shard;
mod system;
mod text;
mod values;

use pyo3::prelude::*;

/// The interface between Python and the kernels. `lookupdb.native` refuses a module that was built with another one.
const INTERFACE: &[u8] = include_bytes!("../../lookupdb/_native.pyi");

/// The digest of this module's sources, if `native_build.py` built it.
const SOURCES: Option<&str> = option_env!("LOOKUPDB_NATIVE_SOURCES");

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES", SOURCES.unwrap_or_default())?;
    histograms::register(module)?;
    shard::register(module)?;
    python::register(module)?;
    mapped::register(module)?;
    route::register(module)?;
    build::register(module)?;
    module.add("INTERFACE", xxhash_rust::xxh3::xxh3_64(INTERFACE))
}
