//! The engine: locks and time, and who flushes what. Knows no task.

// In reading order, downwards.
pub(crate) mod driver;
pub(crate) mod shuffle;
pub(crate) mod owners;
pub(crate) mod owner;
pub(crate) mod shard;
pub(crate) mod context;
pub(crate) mod delay_queue;
pub(crate) mod clock;
pub(crate) mod manual_clock;
pub(crate) mod stats;
pub(crate) mod report;
