//! What must hold of the reader, the expander, requests, batches and rows for any bytes, and how an input becomes a
//! damaged file.
//!
//! The kernels are taken by path: their crate needs Python, these do not.
#[path = "../../src/reader/mod.rs"]
pub mod reader;
#[path = "../../src/resp.rs"]
pub mod resp;
#[path = "../../src/system.rs"]
pub mod system;
#[path = "../../src/text.rs"]
pub mod text;
#[path = "../../src/values.rs"]
pub mod values;

pub mod damage;
pub mod route;
pub mod rows;

use reader::{find_across, touch, Found, ShardFile};
use resp::{lone_get, next_lookups, Next};
use std::path::Path;
use values::{DamagedValue, Expander};

/// What came of an input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Refused,
    Damaged,
    Sound,
}

/// Open the file and read all of it. Panics if a promise of the reader is broken.
pub fn check_file(path: &Path, keys: &[Vec<u8>]) -> Outcome {
    let file = match ShardFile::open(path) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return Outcome::Refused;
        }
    };
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut found: Vec<Found> = vec![];
    file.find_many(&keys, &mut found);
    assert_eq!(found.len(), keys.len());
    let lookups: Vec<(&ShardFile, &[u8])> = keys.iter().map(|&key| (&file, key)).collect();
    let mut across: Vec<Found> = vec![];
    find_across(&lookups, &mut across);
    assert_eq!(across, found, "of one file, and of several");
    across.into_iter().for_each(touch);
    let mut is_sound = check_items(&file);
    let mut expander = Expander::new(file.dictionary()).ok();
    for (key, together) in keys.iter().zip(&found) {
        assert_eq!(&file.find(key), together, "one key alone, and among others");
        match (together, &mut expander) {
            (Err(_), _) => is_sound = false,
            (Ok(Some(stored)), Some(expander)) => is_sound &= check_value(expander, stored),
            _ => {}
        }
    }
    if is_sound {
        Outcome::Sound
    } else {
        Outcome::Damaged
    }
}

fn check_items(file: &ShardFile) -> bool {
    let mut last: &[u8] = &[];
    let mut count = 0;
    for item in file.items() {
        let Ok((key, stored)) = item else {
            return false;
        };
        assert!(key > last, "keys grow");
        // Reads every byte: none may lie outside the map.
        assert!(stored.iter().fold(0u64, |sum, &byte| sum + byte as u64) <= 255 * stored.len() as u64);
        (last, count) = (key, count + 1);
    }
    assert_eq!(count, file.records());
    true
}

/// Expand the value. Panics unless one bulk string is appended, or an error leaves the output unchanged, and unless
/// prefetching the dictionary gives the same.
pub fn check_value(expander: &mut Expander, stored: &[u8]) -> bool {
    let (result, out) = expand(expander, stored, false);
    let (before, reply) = out.split_at(6);
    assert_eq!(before, b"before");
    match result {
        Ok(()) => assert!(is_bulk_string(reply), "{:?}", &reply[..reply.len().min(80)]),
        Err(damage) => assert!(reply.is_empty() && !damage.to_string().is_empty()),
    }
    assert_eq!(expand(expander, stored, true), (result, out), "fetched ahead");
    result.is_ok()
}

fn expand(expander: &mut Expander, stored: &[u8], fetch_ahead: bool) -> (Result<(), DamagedValue>, Vec<u8>) {
    let mut out = b"before".to_vec();
    expander.fetch_ahead(fetch_ahead);
    let result = expander.append(stored, &mut out);
    (result, out)
}

/// Read requests from the bytes. Panics unless the words read are exactly those in the bytes, and the same whatever
/// follows.
pub fn check_requests(data: &[u8], cut: usize) {
    let whole = read_lookups(data, usize::MAX);
    let first = read_lookups(&data[..cut.min(data.len())], usize::MAX);
    assert_eq!(whole, read_lookups(data, 1 + cut % 3), "a few at a time");
    assert!(whole.starts_with(&first), "of fewer bytes other lookups are read");
    if let Some(key) = lone_get(data) {
        assert_eq!(whole, [key.of(data)]);
    }
}

/// The keys of all lookups that the bytes begin with.
fn read_lookups(data: &[u8], most: usize) -> Vec<&[u8]> {
    let (mut all, mut keys, mut from) = (vec![], vec![], 0);
    loop {
        let (end, words) = match next_lookups(data, from, most, &mut keys) {
            Next::Gets(end) => (end, keys.iter().flat_map(|key| request(b"GET", &[key.of(data)])).collect::<Vec<u8>>()),
            Next::Mget(end) => (end, request(b"MGET", &keys.iter().map(|key| key.of(data)).collect::<Vec<_>>())),
            Next::Part | Next::Other => {
                assert!(keys.is_empty());
                return all;
            }
        };
        assert!(data[from..end].eq_ignore_ascii_case(&words));
        all.extend(keys.iter().map(|key| key.of(data)));
        from = end;
    }
}

/// The request, as client libraries write it.
pub fn request(name: &[u8], keys: &[&[u8]]) -> Vec<u8> {
    let mut words = format!("*{}\r\n", 1 + keys.len()).into_bytes();
    for word in [name].iter().chain(keys) {
        words.extend([format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat());
    }
    words
}

/// The definition, as a client would read it.
fn is_bulk_string(reply: &[u8]) -> bool {
    let Some(end) = reply.windows(2).position(|pair| pair == b"\r\n") else {
        return false;
    };
    let head = std::str::from_utf8(&reply[..end]).unwrap_or_default();
    let size = head.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
    size.is_some_and(|size| head == format!("${size}") && reply.len() == end + 2 + size + 2 && reply.ends_with(b"\r\n"))
}
