//! The wheel: a complete timer for one thread. Knows neither clocks nor locks.

pub(crate) mod local;
pub(crate) mod core;
pub(crate) mod wheels;
pub(crate) mod timing_wheel;
pub(crate) mod bucket_queue;
pub(crate) mod bucket;
pub(crate) mod counters;
pub(crate) mod snapshot;
