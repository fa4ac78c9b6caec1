//! Topics: made when somebody asks for them.

use super::partition::{Partition, TopicPartition};
use kafka_protocol::ResponseError;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// As many partitions as a topic may have.
const MAX_PARTITIONS: i32 = 1000;

/// A topic is its partitions.
#[derive(Debug)]
pub struct Topic {
    pub name: Arc<str>,
    /// What newer clients call it by. A topic of the same name that is made later has another one.
    pub id: Uuid,
    partitions: Vec<Arc<Partition>>,
}

impl Topic {
    pub fn partition(&self, index: i32) -> Option<&Arc<Partition>> {
        self.partitions.get(usize::try_from(index).ok()?)
    }
}

impl Deref for Topic {
    type Target = [Arc<Partition>];

    fn deref(&self) -> &Self::Target {
        &self.partitions
    }
}

#[derive(Debug)]
pub struct Topics {
    /// How many partitions a new topic has.
    partitions: i32,
    max_topics: usize,
    max_partition_bytes: u64,
    known: RwLock<Known>,
    /// Makes ids unique, also among the lives of a broker.
    started: u64,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    by_name: BTreeMap<Arc<str>, Arc<Topic>>,
    by_id: HashMap<Uuid, Arc<Topic>>,
}

impl Topics {
    pub fn new(partitions: i32, max_topics: usize, max_partition_bytes: u64) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Topics {
            partitions,
            max_topics,
            max_partition_bytes,
            known: RwLock::default(),
            started: started.as_millis() as u64,
            next: AtomicU64::new(1),
        }
    }

    pub fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.known.read().by_name.get(name).cloned()
    }

    /// Finds a topic by its id, as newer versions have it, or by its name, as older ones do.
    pub fn find(&self, name: &str, id: Uuid) -> Result<Arc<Topic>, ResponseError> {
        if id.is_nil() {
            return self.get(name).ok_or(ResponseError::UnknownTopicOrPartition);
        }
        self.known.read().by_id.get(&id).cloned().ok_or(ResponseError::UnknownTopicId)
    }

    /// Returns how many partitions a topic has if its creator asks for no other number.
    pub fn default_partitions(&self) -> i32 {
        self.partitions
    }

    pub fn get_or_create(&self, name: &str) -> Result<Arc<Topic>, ResponseError> {
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
    ) -> Result<Arc<Topic>, (ResponseError, &'static str)> {
        if !is_valid(name) {
            return Err((ResponseError::InvalidTopicException, "no name for a topic"));
        }
        if !(1..=MAX_PARTITIONS).contains(&partitions) {
            return Err((ResponseError::InvalidPartitions, "from 1 to 1000 are possible"));
        }
        let mut known = self.known.write();
        if known.by_name.contains_key(name) {
            return Err((ResponseError::TopicAlreadyExists, "it exists"));
        }
        if known.by_name.len() >= self.max_topics {
            // The one that clients report at once; most others they ask again for.
            return Err((ResponseError::TopicAuthorizationFailed, "there are as many as may be"));
        }
        let topic: Arc<str> = name.into();
        let partition = |index| {
            let name = TopicPartition { topic: Arc::clone(&topic), index };
            Arc::new(Partition::new(name, self.max_partition_bytes))
        };
        let id = Uuid::from_u64_pair(self.started, self.next.fetch_add(1, Ordering::Relaxed));
        let made = (0..partitions).map(partition).collect();
        let made = Arc::new(Topic { name: Arc::clone(&topic), id, partitions: made });
        if !validate_only {
            known.by_name.insert(topic, Arc::clone(&made));
            known.by_id.insert(id, Arc::clone(&made));
            tracing::info!(topic = name, partitions, "topic created");
        }
        Ok(made)
    }

    pub fn delete(&self, topic: &Topic) {
        let mut known = self.known.write();
        if known.by_id.remove(&topic.id).is_some() {
            known.by_name.remove(&topic.name);
            tracing::info!(topic = &*topic.name, "topic deleted");
        }
    }

    pub fn all(&self) -> Vec<Arc<Topic>> {
        self.known.read().by_name.values().cloned().collect()
    }
}

/// Checks a name by Kafka's rule.
fn is_valid(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=249).contains(&name.len()) && name != "." && name != ".." && name.chars().all(legal)
}
