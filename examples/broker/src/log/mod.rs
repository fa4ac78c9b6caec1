//! The log: topics of partitions, in memory.

mod batch;
mod partition;
mod producer;
mod topics;

pub use batch::Batch;
pub use partition::{Partition, TopicPartition};
pub use producer::Producers;
pub use topics::{Topic, Topics};
