//! The router's batch kernels: body of a batch to what each shard is asked, replies to the answer.
//!
//! `PackedKeys` and `PackedValues` are what `lookups/batch_keys.py` calls BatchKeys and BatchValues. Keys of plain ASCII
//! are handled here; of any other `keys.py` says what it is stored under, and orjson how it is written.
mod answer;
mod body;
mod keys;
mod reply;
mod resp;
mod scan;
mod shard_keys;
mod sink;
mod values;

use pyo3::prelude::*;

/// Adds what Python sees of the router's kernels.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<keys::PackedKeys>()?;
    module.add_class::<shard_keys::PackedShardKeys>()?;
    module.add_class::<reply::ShardReply>()?;
    module.add_class::<scan::ReplyScan>()?;
    module.add_class::<values::PackedValues>()
}
