//! The first byte chooses a seed, the rest are changes of it: see `damage`.
#![no_main]
use libfuzzer_sys::fuzz_target;
use lookupdb_fuzz::check_file;
use lookupdb_fuzz::damage::{load_seeds, Subject};
use std::sync::OnceLock;

static SUBJECTS: OnceLock<Vec<Subject>> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let subjects = SUBJECTS.get_or_init(|| load_seeds().into_iter().map(|seed| Subject::new(seed).unwrap()).collect());
    if let [index, changes @ ..] = input {
        let subject = &subjects[*index as usize % subjects.len()];
        subject.with_damage(changes, |path| check_file(path, &subject.seed.keys)).unwrap();
    }
});
