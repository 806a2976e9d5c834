//! Large values wait in files of their own while their keys are sorted; a record then has a reference for its value.
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::batch::{Record, RecordBatch};

/// `sorter._SPOOLED`, a bit of a place: the record's value is a reference into its slice's spool file.
pub const SPOOLED: u64 = 1 << 62;
/// `runs._ROW_BITS`: a place is its slice's number, and a row of so many bits.
const ROW_BITS: u32 = 40;
/// A batch ends with the record that makes it as large as this. With what that may add it is less than the blocks that
/// are mapped and given back one by one (`memory.return_large_blocks`), whose pages cost more than their records.
pub const BATCH_BYTES: usize = 896 << 10;
/// Room for most batches' last record.
const LAST_RECORD_BYTES: usize = 64 << 10;
/// Nor has it more records.
pub const BATCH_RECORDS: usize = 16 << 10;

/// The files of large values, by the number of their slice.
pub struct Spools(pub HashMap<u64, PathBuf>);

impl Spools {
    /// Add `record` to `batch`, with its value loaded if it is a reference.
    pub fn push(&self, record: Record<'_>, batch: &mut RecordBatch) -> Result<()> {
        if batch.len() == 0 {
            batch.reserve(BATCH_RECORDS / 4, BATCH_BYTES + LAST_RECORD_BYTES);
        }
        let place = record.place & !SPOOLED;
        let value = match place == record.place {
            true => Cow::Borrowed(record.value),
            false => Cow::Owned(self.load(place, record.value)?),
        };
        batch.push(Record { key: record.key, place, value: &value });
        Ok(())
    }

    /// The value that a record of `place` refers to: where it begins in the spool, and its length.
    fn load(&self, place: u64, reference: &[u8]) -> Result<Vec<u8>> {
        let damaged = || Error::new(ErrorKind::InvalidData, "a reference to a large value is damaged");
        let (start, length) = reference.split_at_checked(8).ok_or_else(damaged)?;
        let start = u64::from_le_bytes(start.try_into().map_err(|_| damaged())?);
        let length = u64::from_le_bytes(length.try_into().map_err(|_| damaged())?);
        let spool = File::open(self.0.get(&(place >> ROW_BITS)).ok_or_else(damaged)?)?;
        let size = spool.metadata()?.len();
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(damaged());
        }
        let mut value = vec![0; length as usize];
        spool.read_exact_at(&mut value, start)?;
        Ok(value)
    }
}

/// Whether `batch` is large enough.
pub fn is_full(batch: &RecordBatch) -> bool {
    batch.data_bytes() >= BATCH_BYTES || batch.len() >= BATCH_RECORDS
}
