//! The log: topics of partitions, in memory.

mod batch;
mod held;
mod partition;
mod producer;
mod records;
mod topics;

pub use batch::Batch;
pub use partition::{Partition, TopicPartition};
pub use producer::Producers;
pub use records::{Split, delayed, delivery_times};
pub use topics::{Topic, Topics};
