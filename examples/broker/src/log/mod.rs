//! The log, in memory: topics of partitions, made when somebody asks for them.

mod batch;
mod partition;
mod producer;

pub(crate) use batch::Checked;
pub(crate) use partition::{Partition, TopicPartition};

use kafka_protocol::ResponseError;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many topics there may be.
const MAX_TOPICS: usize = 100;

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: Arc<str>,
    pub(crate) partitions: Vec<Arc<Partition>>,
}

#[derive(Debug)]
pub(crate) struct Topics {
    /// How many partitions a new topic has.
    partitions: u16,
    known: RwLock<BTreeMap<Arc<str>, Arc<Topic>>>,
}

impl Topics {
    pub(crate) fn new(partitions: u16) -> Self {
        Topics { partitions, known: RwLock::default() }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.known.read().values().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.known.read().get(name).cloned()
    }

    pub(crate) fn partition(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        self.get(topic)?.partitions.get(usize::try_from(index).ok()?).cloned()
    }

    /// Creates a topic, unless it exists.
    ///
    /// # Errors
    /// The name is none by Kafka's rule, or there are as many topics as may be.
    pub(crate) fn create(&self, name: &str) -> Result<Arc<Topic>, ResponseError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_legal = (1..=249).contains(&name.len()) && name.chars().all(legal);
        if !is_legal || name == "." || name == ".." {
            return Err(ResponseError::InvalidTopicException);
        }
        let mut known = self.known.write();
        if let Some(topic) = known.get(name) {
            return Ok(Arc::clone(topic));
        }
        if known.len() >= MAX_TOPICS {
            // The one that clients report at once; most others they ask again for.
            return Err(ResponseError::TopicAuthorizationFailed);
        }
        let name: Arc<str> = name.into();
        let partition = |index| {
            let name = TopicPartition { topic: Arc::clone(&name), index };
            Arc::new(Partition::new(name))
        };
        let partitions = (0..self.partitions.into()).map(partition).collect();
        let topic = Arc::new(Topic { name: Arc::clone(&name), partitions });
        known.insert(name, Arc::clone(&topic));
        Ok(topic)
    }
}
