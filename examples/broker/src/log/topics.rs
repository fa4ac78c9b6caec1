//! Topics: made when somebody asks for them.

use super::partition::{Partition, TopicPartition};
use kafka_protocol::ResponseError;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// As many partitions as a topic may have.
const MAX_PARTITIONS: i32 = 1000;

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

    /// How many partitions a topic has for which nobody asks for another number.
    pub fn default_partitions(&self) -> i32 {
        self.partitions
    }

    pub fn get_or_create(&self, name: &str) -> Result<Topic, ResponseError> {
        if let Some(topic) = self.get(name) {
            return Ok(topic);
        }
        match self.create(name, self.partitions, false) {
            Err((ResponseError::TopicAlreadyExists, _)) => {
                self.get(name).ok_or(ResponseError::UnknownTopicOrPartition) // Gone again.
            }
            other => other.map_err(|(error, _)| error),
        }
    }

    /// Creates a topic; or only says whether it could be.
    ///
    /// # Errors
    /// What Kafka says, and why in words.
    pub fn create(
        &self,
        name: &str,
        partitions: i32,
        validate_only: bool,
    ) -> Result<Topic, (ResponseError, &'static str)> {
        if !is_valid(name) {
            return Err((ResponseError::InvalidTopicException, "no name for a topic"));
        }
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Err((ResponseError::InvalidPartitions, "from 1 to 1000 are possible"));
        }
        let mut topics = self.by_name.write();
        if topics.contains_key(name) {
            return Err((ResponseError::TopicAlreadyExists, "it exists"));
        }
        if topics.len() >= self.max_topics {
            // The one that clients report at once; most others they ask again for.
            return Err((ResponseError::TopicAuthorizationFailed, "there are as many as may be"));
        }
        let topic: Arc<str> = name.into();
        let partition = |index| {
            let name = TopicPartition { topic: Arc::clone(&topic), index };
            Arc::new(Partition::new(name, self.max_partition_bytes))
        };
        if validate_only {
            return Ok(Topic::from([]));
        }
        let made: Topic = (0..partitions).map(partition).collect();
        topics.insert(Arc::clone(&topic), Arc::clone(&made));
        tracing::info!(topic = name, partitions, "topic created");
        Ok(made)
    }

    pub fn delete(&self, name: &str) -> Option<Topic> {
        let deleted = self.by_name.write().remove(name)?;
        tracing::info!(topic = name, "topic deleted");
        Some(deleted)
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
