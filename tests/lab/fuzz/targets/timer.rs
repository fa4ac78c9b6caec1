//! Operations on a `Timer` and on a naive model: those of `tests/model_timer`.
#![no_main]

#[path = "../../../model_timer/main.rs"]
mod model;

use quickcheck::{Arbitrary, Gen};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let g = &mut Gen::new(bytes);
    model::property(Arbitrary::arbitrary(g), Arbitrary::arbitrary(g));
});
