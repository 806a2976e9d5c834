//! Packs values for shards: frames them as RESP bulk strings, compresses them if that is smaller, and deals them out.
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use xxhash_rust::xxh3::xxh3_64;
use zstd::zstd_safe::{
    compress_bound, get_error_name, version_number, zstd_sys::ZSTD_EndDirective, CCtx, CParameter, FrameFormat,
    InBuffer, OutBuffer, Strategy,
};

use super::batch::RecordBatch;
use crate::resp::push_bulk;

/// The numbers of `ZstdCompressionParameters`, which the Python fallback uses.
#[derive(Clone, Copy, FromPyObject)]
struct Parameters {
    compression_level: i32,
    window_log: u32,
    chain_log: u32,
    hash_log: u32,
    search_log: u32,
    min_match: u32,
    target_length: u32,
    strategy: u32,
}

/// Packs batches. Several threads may use it at once.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct Packer {
    shards: u64,
    /// The longest record that LMDB does not put on overflow pages.
    largest_record: usize,
    dictionary: Vec<u8>,
    /// None stores every value as it is.
    parameters: Option<Parameters>,
    idle: Mutex<Vec<CCtx<'static>>>,
}

/// The packed records of a batch, for each shard.
#[pyclass(frozen, module = "lookupdb._native")]
pub struct PackedRecords {
    data: Vec<u8>,
    shards: Vec<Share>,
}

/// One shard's part of a batch.
#[derive(Default, Clone)]
struct Share {
    /// Where key and stored value are: start, size of the key, size of both.
    records: Vec<(usize, usize, usize)>,
    key_bytes: usize,
    value_bytes: usize,
    stored_bytes: usize,
    overflows: usize,
    overflow_bytes: usize,
    largest_value_bytes: usize,
}

/// Key and stored value of each record; then bytes of keys, bytes of values before and after packing, number and bytes
/// of values on overflow pages, and the largest value's size before packing.
type Items<'py> = (Bound<'py, PyList>, Sums);
type Sums = (usize, usize, usize, usize, usize, usize);

#[pymethods]
impl Packer {
    #[new]
    fn new(shards: u64, largest_record: usize, dictionary: Vec<u8>, parameters: Option<Parameters>) -> PyResult<Self> {
        if shards == 0 {
            return Err(PyValueError::new_err("a generation has one shard or more"));
        }
        let packer = Self { shards, largest_record, dictionary, parameters, idle: Mutex::new(Vec::new()) };
        if let Some(parameters) = parameters {
            packer.make_context(parameters).map_err(PyRuntimeError::new_err)?;
        }
        Ok(packer)
    }

    fn pack(&self, py: Python<'_>, batch: &RecordBatch) -> PyResult<PackedRecords> {
        py.detach(|| self.pack_records(batch)).map_err(PyRuntimeError::new_err)
    }
}

#[pymethods]
impl PackedRecords {
    /// The part of `shard`.
    fn items<'py>(&self, py: Python<'py>, shard: usize) -> PyResult<Items<'py>> {
        let share = self.shards.get(shard).ok_or_else(|| PyValueError::new_err("there is no such shard"))?;
        let items = PyList::new(
            py,
            share.records.iter().map(|&(start, key, size)| {
                let record = self.data.get(start..start + size).unwrap_or_default();
                let (key, stored) = record.split_at_checked(key).unwrap_or_default();
                (PyBytes::new(py, key), PyBytes::new(py, stored))
            }),
        )?;
        let Share { key_bytes, value_bytes, stored_bytes, overflows, overflow_bytes, largest_value_bytes, .. } = *share;
        Ok((items, (key_bytes, value_bytes, stored_bytes, overflows, overflow_bytes, largest_value_bytes)))
    }
}

impl Packer {
    fn pack_records(&self, batch: &RecordBatch) -> Result<PackedRecords, &'static str> {
        let mut packed = PackedRecords { data: Vec::new(), shards: vec![Share::default(); self.shards as usize] };
        packed.data.reserve(batch.data_bytes() / if self.parameters.is_some() { 2 } else { 1 });
        let mut context = self.take_context()?;
        let (mut framed, mut compressed) = (Vec::new(), Vec::new());
        for record in batch.records() {
            framed.clear();
            push_bulk(&mut framed, record.value);
            let stored = match &mut context {
                Some(context) => pick_smaller(context, &framed, &mut compressed)?,
                None => framed.as_slice(),
            };
            let share = &mut packed.shards[(xxh3_64(record.key) % self.shards) as usize];
            let size = record.key.len() + stored.len();
            share.records.push((packed.data.len(), record.key.len(), size));
            share.key_bytes += record.key.len();
            share.value_bytes += record.value.len();
            share.largest_value_bytes = share.largest_value_bytes.max(record.value.len());
            share.stored_bytes += stored.len();
            if size > self.largest_record {
                share.overflows += 1;
                share.overflow_bytes += stored.len();
            }
            packed.data.extend_from_slice(record.key);
            packed.data.extend_from_slice(stored);
        }
        if let Some(context) = context {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        }
        Ok(packed)
    }

    fn take_context(&self) -> Result<Option<CCtx<'static>>, &'static str> {
        let Some(parameters) = self.parameters else {
            return Ok(None);
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.make_context(parameters), Ok).map(Some)
    }

    fn make_context(&self, parameters: Parameters) -> Result<CCtx<'static>, &'static str> {
        let mut context = CCtx::try_create().ok_or("zstd has no memory left")?;
        let settings = [
            CParameter::Format(FrameFormat::Magicless),
            CParameter::CompressionLevel(parameters.compression_level),
            CParameter::WindowLog(parameters.window_log),
            CParameter::ChainLog(parameters.chain_log),
            CParameter::HashLog(parameters.hash_log),
            CParameter::SearchLog(parameters.search_log),
            CParameter::MinMatch(parameters.min_match),
            CParameter::TargetLength(parameters.target_length),
            CParameter::Strategy(as_strategy(parameters.strategy)?),
            CParameter::ContentSizeFlag(true),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ];
        for setting in settings {
            context.set_parameter(setting).map_err(get_error_name)?;
        }
        if !self.dictionary.is_empty() {
            context.load_dictionary(&self.dictionary).map_err(get_error_name)?;
        }
        Ok(context)
    }
}

/// The version of zstd. Another version may write other bytes.
pub fn zstd_version() -> (u32, u32, u32) {
    let version = version_number();
    (version / 10_000, version / 100 % 100, version % 100)
}

/// The compressed frame of `framed` if it is smaller, else `framed`.
fn pick_smaller<'a>(
    context: &mut CCtx<'_>,
    framed: &'a [u8],
    compressed: &'a mut Vec<u8>,
) -> Result<&'a [u8], &'static str> {
    compressed.clear();
    compressed.reserve(compress_bound(framed.len()));
    let (mut input, mut output) = (InBuffer::around(framed), OutBuffer::around(compressed));
    let left =
        context.compress_stream2(&mut output, &mut input, ZSTD_EndDirective::ZSTD_e_end).map_err(get_error_name)?;
    if left != 0 {
        return Err("zstd wrote more than it said it could");
    }
    Ok(if compressed.len() < framed.len() { compressed } else { framed })
}

fn as_strategy(number: u32) -> Result<Strategy, &'static str> {
    use Strategy::*;
    Ok(match number {
        1 => ZSTD_fast,
        2 => ZSTD_dfast,
        3 => ZSTD_greedy,
        4 => ZSTD_lazy,
        5 => ZSTD_lazy2,
        6 => ZSTD_btlazy2,
        7 => ZSTD_btopt,
        8 => ZSTD_btultra,
        9 => ZSTD_btultra2,
        _ => return Err("zstd has no such strategy"),
    })
}
