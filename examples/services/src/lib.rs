//! The cores of the programs in `src/bin`, which tests run as well.
