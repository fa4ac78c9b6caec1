//! The log: topics of partitions, in memory.

mod batch;
mod partition;
mod producer;
mod topics;

pub(crate) use batch::Checked;
pub(crate) use partition::{Partition, TopicPartition};
pub(crate) use topics::{Topic, Topics};
