//! The store: storage for values that are identified by keys. Knows neither time nor locks.

pub(crate) mod key_map;
pub(crate) mod key_index;
pub(crate) mod key_table;
pub(crate) mod slab;
pub(crate) mod chunk;
