//! The first byte says how many keys there may be, the rest is a batch's body.
#![no_main]
use libfuzzer_sys::fuzz_target;
use lookupdb_fuzz::route::check_body;

fuzz_target!(|input: &[u8]| {
    if let [max_keys, body @ ..] = input {
        check_body(body, *max_keys as usize);
    }
});
