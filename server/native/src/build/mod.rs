//! The builder: a source's bytes become records, sorted runs, and what shards store. `lookupdb.builder` is the twin.
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

mod batch;
mod csv_rows;
mod csv_splitter;
mod json_rows;
mod json_text;
mod key_rules;
mod merge;
mod packer;
mod records;
mod runs;
mod sample;
mod sink;
mod spools;
mod unique;

/// Add what the builder uses to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<records::RecordBuffer>()?;
    module.add_class::<records::SortedBuffer>()?;
    module.add_class::<sample::Sample>()?;
    module.add_class::<merge::Merge>()?;
    module.add_class::<batch::RecordBatch>()?;
    module.add_class::<unique::UniqueRecords>()?;
    module.add("ZSTD_VERSION", packer::zstd_version())?;
    module.add_class::<packer::Packer>()?;
    module.add_class::<packer::PackedRecords>()?;
    module.add_class::<json_rows::JsonRows>()?;
    module.add_class::<csv_rows::CsvRows>()
}

/// The OSError for `error`, with its number, by which Python tells a full disk from others.
fn os_error(error: std::io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            let text = error.to_string();
            let reason = text.rsplit_once(" (os error").map_or(text.as_str(), |(reason, _)| reason);
            PyOSError::new_err((number, reason.to_owned()))
        }
        None => PyOSError::new_err(error.to_string()),
    }
}
