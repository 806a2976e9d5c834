//! The first byte chooses a seed's dictionary, the rest is a stored value.
#![no_main]
use libfuzzer_sys::fuzz_target;
use lookupdb_fuzz::{check_value, damage::load_seeds, values::Expander};

thread_local! {
    static EXPANDERS: std::cell::RefCell<Vec<Expander>> =
        load_seeds().iter().map(|seed| Expander::new(&seed.dictionary).unwrap()).collect::<Vec<_>>().into();
}

fuzz_target!(|input: &[u8]| {
    if let [index, stored @ ..] = input {
        EXPANDERS.with_borrow_mut(|expanders| {
            let index = *index as usize % expanders.len();
            check_value(&mut expanders[index], stored);
        });
    }
});
