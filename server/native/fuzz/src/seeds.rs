//! The sound files that inputs damage: those of the folder that LOOKUPDB_FUZZ_SEEDS names, which `native_fuzz.py` writes.
use crate::reader::ShardFile;
use crate::values::Expander;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A sound file.
pub struct Seed {
    pub bytes: Vec<u8>,
    /// Some of its keys, and others near them.
    pub keys: Vec<Vec<u8>>,
    /// Some of its stored values.
    pub values: Vec<Vec<u8>>,
    pub dictionary: Vec<u8>,
}

/// All of them, in order of their names.
pub fn load() -> Vec<Seed> {
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
            let (key, stored) = item.unwrap_or_else(|damage| panic!("{path:?}: {damage}"));
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
