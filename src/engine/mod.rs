//! The engine: what shards of all kinds have in common, and what advances their clock.

// In reading order, downwards.
pub(crate) mod reaper;
pub(crate) mod source;
pub(crate) mod pool;
pub(crate) mod shard;
pub(crate) mod delay_queue;
pub(crate) mod alarm;
pub(crate) mod clock;
pub(crate) mod manual_clock;
pub(crate) mod stats;
pub(crate) mod report;
