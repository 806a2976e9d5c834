//! The native kernels of lookupdb. Python keeps the event loops, HTTP, retries, cutover and supervision.
//!
//! Nothing here panics: what comes from files, clients and Python is checked, and an error is Python's to tell.
mod build;
mod clock;
mod cold_dictionary;
mod fields;
mod json_string;
mod mapped;
pub mod reader;
pub mod resp;
mod resp_fields;
mod route;
mod shard;
mod shard_file;
pub mod values;
mod warmer;

use pyo3::prelude::*;

/// What Python and the kernels expect of each other. `lookupdb.native` takes none that were built with another one.
const INTERFACE: &[u8] = include_bytes!("../../lookupdb/_native.pyi");

/// The digest of the sources that this was built from, if `native_build.py` has built it.
const SOURCES: Option<&str> = option_env!("LOOKUPDB_NATIVE_SOURCES");

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES", SOURCES.unwrap_or_default())?;
    shard::register(module)?;
    shard_file::register(module)?;
    mapped::register(module)?;
    route::register(module)?;
    resp_fields::register(module)?;
    warmer::register(module)?;
    build::register(module)?;
    module.add("INTERFACE", xxhash_rust::xxh3::xxh3_64(INTERFACE))
}
