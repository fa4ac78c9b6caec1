//! The recipes of `docs/RUNTIMES.md`, compiled and run as documentation tests.

#![cfg(doctest)]
#![doc = include_str!("../../../docs/RUNTIMES.md")]
