//! The builder's kernels: from a source's bytes to records, sorted runs, and stored values.
//! `lookupdb.builder` has the Python fallbacks.
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

mod batch;
mod csv_rows;
mod csv_splitter;
mod json_rows;
mod json_text;
mod packer;
mod sort;

/// Add the builder's classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<sort::RecordBuffer>()?;
    module.add_class::<sort::SortedBuffer>()?;
    module.add_class::<sort::Sample>()?;
    module.add_class::<sort::Merge>()?;
    module.add_class::<batch::RecordBatch>()?;
    module.add_class::<batch::UniqueRecords>()?;
    module.add("ZSTD_VERSION", packer::zstd_version())?;
    module.add_class::<packer::Packer>()?;
    module.add_class::<packer::PackedRecords>()?;
    module.add_class::<json_rows::JsonRows>()?;
    module.add_class::<csv_rows::CsvRows>()
}

/// The OSError for `error`, with its number, by which Python recognises a full disk.
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
