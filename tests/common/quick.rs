//! How often a property is tried.

use quickcheck::{Gen, QuickCheck, Testable};

/// Tries a property on so many random inputs of this size, or on `QUICKCHECK_TESTS`. A debug build
/// tries a third of them; `.ci/night release` tries all.
pub(crate) fn check(property: impl Testable, sequences: u64, size: usize) {
    let sequences = sequences / if cfg!(debug_assertions) { 3 } else { 1 };
    let sequences = std::env::var("QUICKCHECK_TESTS").map_or(sequences, |tests| {
        tests.parse().expect("QUICKCHECK_TESTS is a number")
    });
    let quickcheck = QuickCheck::new().rng(Gen::new(size)).tests(sequences);
    quickcheck
        .max_tests(sequences)
        .min_tests_passed(sequences)
        .quickcheck(property);
}
