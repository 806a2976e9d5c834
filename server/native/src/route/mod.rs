//! The router's batch kernels: body of a batch, or lookups of RESP, to what each shard is asked, replies to the answer.
//!
//! `PackedKeys` and `PackedValues` are what `lookups/batch_keys.py` calls BatchKeys and BatchValues. Keys are
//! handled here, but those that are to be normalised and are no plain ASCII: `keys.py` says what they are stored under.
mod answer;
mod batch_body;
mod body;
mod frames;
mod keys;
mod lookups;
mod pieces;
mod replies;
mod reply;
pub mod resp;
mod scan;
mod shard_keys;
mod sink;
pub mod steps;
mod values;

use pyo3::prelude::*;

/// Adds what Python sees of the router's kernels.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<keys::PackedKeys>()?;
    module.add_class::<shard_keys::PackedShardKeys>()?;
    module.add_class::<reply::ShardReply>()?;
    module.add_class::<reply::ReplyScan>()?;
    module.add_class::<values::PackedValues>()
}
