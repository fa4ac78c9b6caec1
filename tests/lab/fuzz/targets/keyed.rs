//! Operations on a `KeyedTimer` and on a naive model, an ordered map: those of `tests/keyed`.
#![no_main]

#[path = "../../../common/busy.rs"]
mod busy;
#[path = "../../../common/delta.rs"]
mod delta;
#[path = "../../../keyed/model.rs"]
mod model;
#[path = "../../../common/times.rs"]
mod times;

use quickcheck::{Arbitrary, Gen};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let g = &mut Gen::new(bytes);
    model::property(Arbitrary::arbitrary(g), Arbitrary::arbitrary(g));
});
