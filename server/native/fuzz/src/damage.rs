//! Sound files, and how inputs damage them: each input is a list of changes, most of which know where pages and nodes
//! are.
//!
//! The files are those of the folder that LOOKUPDB_FUZZ_SEEDS names, which `native_fuzz.py` writes.
use std::ffi::OsString;
use std::fs::{remove_file, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::reader::ShardFile;
use crate::values::Expander;

const PAGE: usize = 4096;
/// Of one change: what, which page (2), where (2), value (5).
const CHANGE_BYTES: usize = 10;

/// A seed's copy that is damaged and mended in turns.
pub struct Subject {
    pub seed: Seed,
    file: File,
}

impl Subject {
    /// The copy is in the folder for temporary files, without a name.
    pub fn new(seed: Seed) -> io::Result<Subject> {
        let path = std::env::temp_dir().join(format!("lookupdb-fuzz-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        remove_file(path)?;
        file.write_all_at(&seed.bytes, 0)?;
        Ok(Subject { seed, file })
    }

    /// Change the file as `input` says, let `check` have its path, and mend it.
    pub fn with_damage<T>(&self, input: &[u8], check: impl FnOnce(&PathBuf) -> T) -> io::Result<T> {
        let mut changed: Vec<(usize, usize)> = vec![];
        let mut is_cut = false;
        for change in input.chunks_exact(CHANGE_BYTES) {
            let Some((offset, data)) = self.change(change) else {
                self.file.set_len(number(&change[5..8]) % (self.seed.bytes.len() as u64 + 1))?;
                is_cut = true;
                continue;
            };
            let offset = offset.min(self.seed.bytes.len() - 1);
            let data = &data[..data.len().min(self.seed.bytes.len() - offset)];
            if !is_cut {
                self.file.write_all_at(data, offset as u64)?;
                changed.push((offset, data.len()));
            }
        }
        let result = check(&PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd())));
        if is_cut {
            self.file.write_all_at(&self.seed.bytes, 0)?;
        }
        for (offset, bytes) in changed {
            self.file.write_all_at(&self.seed.bytes[offset..offset + bytes], offset as u64)?;
        }
        Ok(result)
    }

    /// Where what is put; None cuts the file.
    fn change(&self, change: &[u8]) -> Option<(usize, Vec<u8>)> {
        let pages = self.seed.bytes.len() / PAGE;
        let page = number(&change[1..3]) as usize % pages * PAGE;
        let place = number(&change[3..5]) as usize;
        let value = &change[5..10];
        let lower = self.u16(page + 12) as usize;
        let nodes = lower.saturating_sub(16) / 2;
        let slot = page + 16 + if nodes > 0 { place % nodes * 2 } else { 0 };
        let node = page + self.u16(slot) as usize;
        Some(match change[0] % 10 {
            0 => (page + place % PAGE, value[..1].to_vec()),
            1 => (page + place % PAGE, vec![self.byte(page + place % PAGE) ^ 1 << (value[0] % 8)]),
            2 => (page + place % 8 * 2, value[..2].to_vec()),
            3 => (page + 12, (16 + number(&value[..1]) * 2).to_le_bytes()[..2].to_vec()),
            4 => (slot, value[..2].to_vec()),
            5 => (node + value[4] as usize % 4 * 2, value[..2].to_vec()),
            6 => (node, (number(&value[..2]) % (pages as u64 + 2)).to_le_bytes()[..6].to_vec()),
            7 => (
                node + 8 + self.u16(node + 6) as usize,
                (number(&value[..2]) % (pages as u64 + 2)).to_le_bytes().to_vec(),
            ),
            8 => {
                let source = number(&value[..2]) as usize % pages * PAGE;
                let mut copy = self.seed.bytes[source..source + PAGE].to_vec();
                if value[2] & 1 == 0 {
                    copy[..8].copy_from_slice(&((page / PAGE) as u64).to_le_bytes());
                }
                (page, copy)
            }
            _ if value[4] % 8 == 0 => return None,
            // What the two meta pages say of databases, sizes and transactions.
            _ => (place % 2 * PAGE + 16 + value[4] as usize % 136, value[..4].to_vec()),
        })
    }

    fn byte(&self, offset: usize) -> u8 {
        self.seed.bytes.get(offset).copied().unwrap_or_default()
    }

    fn u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.byte(offset), self.byte(offset + 1)])
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | byte as u64)
}

/// A sound file.
pub struct Seed {
    pub bytes: Vec<u8>,
    /// Some of its keys, and others near them.
    pub keys: Vec<Vec<u8>>,
    /// Some of its stored values.
    pub values: Vec<Vec<u8>>,
    pub dictionary: Vec<u8>,
}

/// All seeds, in the order of their names.
pub fn load_seeds() -> Vec<Seed> {
    let folder = std::env::var_os("LOOKUPDB_FUZZ_SEEDS").unwrap_or_else(|| OsString::from("seeds"));
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}; run `make fuzz`"));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{folder:?} is empty");
    paths.iter().map(|path| Seed::load(path)).collect()
}

impl Seed {
    fn load(path: &Path) -> Seed {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let file = ShardFile::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let (mut keys, mut values) = (vec![vec![], b"absent".to_vec(), vec![0xFF; 512]], vec![]);
        let step = (file.records() / 40).max(1) as usize;
        for item in file.items().step_by(step) {
            let (key, stored) = item.unwrap_or_else(|damage| panic!("{path:?}: {damage:?}"));
            let mut near = key.to_vec();
            near.push(0);
            keys.extend([key.to_vec(), near]);
            values.push(stored.to_vec());
        }
        let dictionary = file.dictionary().to_vec();
        Expander::new(&dictionary).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        Seed { bytes, keys, values, dictionary }
    }
}
