//! Operations on a `LocalTimer` and on a naive model: those of `tests/model_local.rs`.
#![no_main]

#[path = "../../../model_local.rs"]
mod model;

use quickcheck::{Arbitrary, Gen};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let g = &mut Gen::new(bytes);
    model::property(Arbitrary::arbitrary(g), Arbitrary::arbitrary(g));
});
