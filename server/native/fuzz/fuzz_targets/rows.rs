//! The first byte says what the rest is: JSON, or CSV of some dialect, cut where the second says.
#![no_main]
use libfuzzer_sys::fuzz_target;
use lookupdb_fuzz::rows::{check_csv, check_json, csv_splitter::Dialect};

fuzz_target!(|input: &[u8]| {
    if let [kind, cut, data @ ..] = input {
        let delimiter = [b',', b'\t', b';', b' '][*kind as usize / 4 % 4];
        let escape = [None, Some(b'\\')][*kind as usize / 16 % 2];
        let cut = data.len() * *cut as usize / 256;
        match kind % 4 {
            0 => check_csv(data, Dialect { delimiter, quote: Some(b'"'), escape }, cut),
            1 => check_csv(data, Dialect { delimiter, quote: None, escape }, cut),
            _ => check_json(data),
        };
    }
});
