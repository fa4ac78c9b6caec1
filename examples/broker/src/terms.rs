//! Terms: how a broker is to be.

use std::time::Duration;

/// How a broker is to be.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Of a new topic.
    pub partitions: i32,
    pub long_poll: LongPoll,
    pub initial_rebalance_delay: Duration,
    pub follower_lag: Duration,
    pub limits: Limits,
}

/// How a fetch waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongPoll {
    /// In a purgatory, until the produce that it waits for.
    Purgatory,
    /// Looks, sleeps for so long, and looks again.
    Sleep { pause: Duration },
}

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_connections: usize,
    pub max_frame: usize,
    /// Bytes that all requests and answers, and what groups keep, may take together.
    pub max_memory: usize,
    /// Bytes of a record batch.
    pub max_message: usize,
    /// Idempotent producers, in each partition that they write to.
    pub max_producers: usize,
    pub max_topics: usize,
    pub max_partition_bytes: u64,
    pub max_groups: usize,
    pub max_members: usize,
}
