//! The first byte says where the rest, which a client sent, is cut.
#![no_main]
use libfuzzer_sys::fuzz_target;
use lookupdb_fuzz::check_requests;

fuzz_target!(|input: &[u8]| {
    if let [cut, data @ ..] = input {
        check_requests(data, data.len() * *cut as usize / 256);
    }
});
