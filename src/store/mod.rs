//! The store: storage for values that are identified by keys. Knows neither time nor locks.

#[cfg(feature = "std")]
pub(crate) mod table;
pub(crate) mod slab;
