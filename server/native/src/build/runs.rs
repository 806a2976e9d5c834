//! Runs: files of sorted records, block by block, in the format of `lookupdb.builder.sort`.
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::Path;

use super::records::{key_prefix, Prefix};

/// `runs.BLOCK_BYTES`: the approximate size of a block.
const BLOCK_BYTES: usize = 256 << 10;
/// What a record counts in a block beside its bytes, as in the twin.
const RECORD_BYTES: usize = 50;
/// Precedes a block: the number of records, the bytes of their keys and of their values.
const HEADER_BYTES: usize = 20;
/// A place and two sizes.
const NUMBERS_BYTES: usize = 16;

/// Writes a run.
pub struct RunWriter {
    file: File,
    count: u32,
    size: usize,
    places: Vec<u8>,
    key_sizes: Vec<u8>,
    value_sizes: Vec<u8>,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl RunWriter {
    /// Begin a run in the new file `path`.
    pub fn create(path: &Path) -> Result<Self> {
        Ok(Self {
            file: OpenOptions::new().write(true).create_new(true).open(path)?,
            count: 0,
            size: 0,
            places: Vec::new(),
            key_sizes: Vec::new(),
            value_sizes: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Add a record, which follows all earlier ones.
    pub fn push(&mut self, key: &[u8], place: u64, value: &[u8]) -> Result<()> {
        self.places.extend_from_slice(&place.to_le_bytes());
        self.key_sizes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.value_sizes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.keys.extend_from_slice(key);
        self.values.extend_from_slice(value);
        self.count += 1;
        self.size += key.len() + value.len() + RECORD_BYTES;
        if self.size > BLOCK_BYTES {
            self.write_block()?;
        }
        Ok(())
    }

    /// Write what is left.
    pub fn finish(mut self) -> Result<()> {
        if self.count > 0 {
            self.write_block()?;
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        let [keys, values] = [&self.keys, &self.values].map(|part| (part.len() as u64).to_le_bytes());
        self.file.write_all(&[&self.count.to_le_bytes()[..], &keys, &values].concat())?;
        for part in [&mut self.places, &mut self.key_sizes, &mut self.value_sizes, &mut self.keys, &mut self.values] {
            self.file.write_all(part)?;
            part.clear();
        }
        (self.count, self.size) = (0, 0);
        Ok(())
    }
}

/// Reads a run, record by record.
pub struct RunReader {
    file: File,
    unread: u64,
    block: Vec<u8>,
    count: usize,
    number: usize,
    key_at: usize,
    value_at: usize,
    prefix: Prefix,
}

impl RunReader {
    /// Open the run at `path`, at its first record.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let unread = file.metadata()?.len();
        let mut run =
            Self { file, unread, block: Vec::new(), count: 0, number: 0, key_at: 0, value_at: 0, prefix: (0, 0) };
        run.read_block()?;
        Ok(run)
    }

    /// Whether all records were read.
    pub fn is_at_end(&self) -> bool {
        self.number == self.count
    }

    /// The first bytes of the record's key.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// The record's key.
    pub fn key(&self) -> &[u8] {
        self.block.get(self.key_at..self.key_at + self.key_size()).unwrap_or_default()
    }

    /// The record's place.
    pub fn place(&self) -> u64 {
        let at = 8 * self.number;
        let place = self.block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(place.unwrap_or_default())
    }

    /// The record's value.
    pub fn value(&self) -> &[u8] {
        self.block.get(self.value_at..self.value_at + self.value_size()).unwrap_or_default()
    }

    /// Go on to the next record.
    pub fn advance(&mut self) -> Result<()> {
        let (key, value) = (self.key_size(), self.value_size());
        self.key_at += key;
        self.value_at += value;
        self.number += 1;
        if self.number == self.count {
            return self.read_block();
        }
        self.prefix = key_prefix(self.key());
        Ok(())
    }

    fn key_size(&self) -> usize {
        self.read_size(8 * self.count + 4 * self.number)
    }

    fn value_size(&self) -> usize {
        self.read_size(12 * self.count + 4 * self.number)
    }

    fn read_size(&self, at: usize) -> usize {
        let size = self.block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(size.unwrap_or_default()) as usize
    }

    fn read_block(&mut self) -> Result<()> {
        (self.count, self.number) = (0, 0);
        if self.unread == 0 {
            self.block = Vec::new();
            return Ok(());
        }
        let mut header = [0; HEADER_BYTES];
        self.file.read_exact(&mut header)?;
        let [count, keys, values] = [&header[..4], &header[4..12], &header[12..]]
            .map(|part| part.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)));
        let size = keys.checked_add(values).and_then(|size| size.checked_add(count * NUMBERS_BYTES as u64));
        let Some(size) = size.filter(|size| count > 0 && HEADER_BYTES as u64 + size <= self.unread) else {
            return Err(Error::new(ErrorKind::InvalidData, "a file of sorted records is damaged"));
        };
        self.unread -= HEADER_BYTES as u64 + size;
        self.block.resize(size as usize, 0);
        self.file.read_exact(&mut self.block)?;
        self.count = count as usize;
        self.key_at = NUMBERS_BYTES * self.count;
        self.value_at = self.key_at + keys as usize;
        self.prefix = key_prefix(self.key());
        Ok(())
    }
}
