//! Steps on a `Purgatory` and on a naive model, a list of operations: those of `tests/purgatory`.
#![no_main]

#[path = "../../../common/busy.rs"]
mod busy;
#[path = "../../../purgatory/model.rs"]
mod model;
#[path = "../../../purgatory/naive.rs"]
mod naive;
#[path = "../../../purgatory/script.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod script;

use quickcheck::{Arbitrary, Gen};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let g = &mut Gen::new(bytes);
    model::property(Arbitrary::arbitrary(g), Arbitrary::arbitrary(g));
});
