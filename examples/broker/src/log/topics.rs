//! Topics: made when somebody asks for them.

use super::partition::{Partition, TopicPartition};
use kafka_protocol::ResponseError;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

pub type Topic = Arc<[Arc<Partition>]>;

#[derive(Debug)]
pub struct Topics {
    /// How many partitions a new topic has.
    partitions: i32,
    max_topics: usize,
    max_partition_bytes: u64,
    by_name: RwLock<BTreeMap<Arc<str>, Topic>>,
}

impl Topics {
    pub fn new(partitions: i32, max_topics: usize, max_partition_bytes: u64) -> Self {
        Topics { partitions, max_topics, max_partition_bytes, by_name: RwLock::default() }
    }

    pub fn get(&self, name: &str) -> Option<Topic> {
        self.by_name.read().get(name).cloned()
    }

    pub fn partition(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        let topics = self.by_name.read();
        topics.get(topic)?.get(usize::try_from(index).ok()?).cloned()
    }

    pub fn get_or_create(&self, name: &str) -> Result<Topic, ResponseError> {
        if let Some(topic) = self.get(name) {
            return Ok(topic);
        }
        if !is_valid(name) {
            return Err(ResponseError::InvalidTopicException);
        }
        let mut topics = self.by_name.write();
        if let Some(topic) = topics.get(name) {
            return Ok(Arc::clone(topic)); // Somebody was faster.
        }
        if topics.len() >= self.max_topics {
            // The one that clients report at once; most others they ask again for.
            return Err(ResponseError::TopicAuthorizationFailed);
        }
        let topic: Arc<str> = name.into();
        let partition = |index| {
            let name = TopicPartition { topic: Arc::clone(&topic), index };
            Arc::new(Partition::new(name, self.max_partition_bytes))
        };
        let partitions: Topic = (0..self.partitions).map(partition).collect();
        topics.insert(Arc::clone(&topic), Arc::clone(&partitions));
        tracing::info!(topic = name, partitions = self.partitions, "topic created");
        Ok(partitions)
    }

    pub fn all(&self) -> Vec<(Arc<str>, Topic)> {
        let topics = self.by_name.read();
        topics.iter().map(|(name, topic)| (Arc::clone(name), Arc::clone(topic))).collect()
    }
}

/// Checks a name by Kafka's rule.
fn is_valid(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.chars().all(legal)
}
