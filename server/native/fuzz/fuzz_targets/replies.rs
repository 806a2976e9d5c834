//! The first bytes say how many keys were asked for and where the rest, a shard's reply, is cut.
#![no_main]
use libfuzzer_sys::fuzz_target;
use lookupdb_fuzz::route::check_reply;

fuzz_target!(|input: &[u8]| {
    if let [expected, first, second, data @ ..] = input {
        let cut = |share: u8| data.len() * share as usize / 256;
        check_reply(data, *expected as usize, [cut(*first), cut(*second)]);
    }
});
