//! The log, in memory: topics of partitions, made when somebody asks for them; batches in order,
//! and how far the follower has them; and the producers whose batches are known when they come
//! again.

use crate::produce::Checked;
use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, VecDeque};
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
        Topics {
            partitions,
            known: RwLock::default(),
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Topic>> {
        self.known.read().values().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Topic>> {
        self.known.read().get(name).cloned()
    }

    pub(crate) fn partition(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        self.get(topic)?
            .partitions
            .get(usize::try_from(index).ok()?)
            .cloned()
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
            let name = TopicPartition {
                topic: Arc::clone(&name),
                index,
            };
            Arc::new(Partition::new(name))
        };
        let partitions = (0..self.partitions.into()).map(partition).collect();
        let topic = Arc::new(Topic {
            name: Arc::clone(&name),
            partitions,
        });
        known.insert(name, Arc::clone(&topic));
        Ok(topic)
    }
}

/// The name of a partition: what fetches and produces wait on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TopicPartition {
    pub(crate) topic: Arc<str>,
    pub(crate) index: i32,
}

#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) name: TopicPartition,
    log: Mutex<Log>,
}

/// Beyond so many bytes the oldest batches go.
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
struct Log {
    batches: VecDeque<Batch>,
    /// The offset and the position of what comes next.
    end: i64,
    end_position: usize,
    /// The offset and the position up to which the follower has it: consumers see no more.
    high_watermark: i64,
    high_position: usize,
    producers: Producers,
}

/// A batch as it lies in the log.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) max_timestamp: i64,
    /// How many bytes of the log lie before it, from the beginning of time.
    pub(crate) position: usize,
}

/// Where a partition begins, and up to where it can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub(crate) start: i64,
    pub(crate) high_watermark: i64,
}

impl Partition {
    fn new(name: TopicPartition) -> Self {
        Partition {
            name,
            log: Mutex::default(),
        }
    }

    /// Appends a batch. Returns its offset, and the end of the log that the follower has to reach.
    /// What is sent again is not appended again: it has the offset that it had.
    ///
    /// # Errors
    /// Its producer's numbers are not in order, or the follower lacks as much as a log may have.
    pub(crate) fn append(&self, batch: Checked<'_>) -> Result<(i64, i64), ResponseError> {
        let mut log = self.log.lock();
        if let Some(sequence) = batch.sequence {
            if let Some(offset) = log.producers.seen(sequence)? {
                return Ok((offset, log.end));
            }
        }
        let unseen = log.end_position - log.high_position;
        if unseen > 0 && unseen + batch.bytes.len() > MAX_BYTES {
            return Err(ResponseError::NotEnoughReplicas);
        }
        let placed = batch.place(log.end, log.end_position);
        let base_offset = log.end;
        log.end = placed.last_offset + 1;
        log.end_position += placed.bytes.len();
        log.batches.push_back(placed);
        log.drop_oldest();
        if let Some(sequence) = batch.sequence {
            log.producers.add(sequence, base_offset);
        }
        Ok((base_offset, log.end))
    }

    /// Lets the follower have everything. Returns whether that is news.
    pub(crate) fn replicate(&self) -> bool {
        let mut log = self.log.lock();
        let is_news = log.high_watermark < log.end;
        log.high_watermark = log.end;
        log.high_position = log.end_position;
        log.drop_oldest();
        is_news
    }

    pub(crate) fn offsets(&self) -> Offsets {
        self.log.lock().offsets()
    }

    /// Returns how many bytes a consumer could get from `offset` on.
    pub(crate) fn available(&self, offset: i64) -> Result<usize, ResponseError> {
        let log = self.log.lock();
        let first = log.find(offset)?;
        let position = log
            .batches
            .get(first)
            .map_or(log.end_position, |batch| batch.position);
        Ok(log.high_position.saturating_sub(position))
    }

    /// Reads whole batches from the one on that has `offset`, `max_bytes` at most; but one in any
    /// case, if `at_least_one`.
    pub(crate) fn read(
        &self,
        offset: i64,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<(Bytes, Offsets), ResponseError> {
        let log = self.log.lock();
        let mut found = BytesMut::new();
        for batch in log.batches.range(log.find(offset)?..) {
            let fits = found.len() + batch.bytes.len() <= max_bytes;
            let is_first = at_least_one && found.is_empty();
            if batch.last_offset >= log.high_watermark || !(fits || is_first) {
                break;
            }
            found.extend_from_slice(&batch.bytes);
        }
        Ok((found.freeze(), log.offsets()))
    }

    /// Returns the first offset whose batch has a record of that time or later, and that batch's
    /// time.
    pub(crate) fn offset_at(&self, time: i64) -> Option<(i64, i64)> {
        let log = self.log.lock();
        let batch = log
            .batches
            .iter()
            .find(|batch| batch.max_timestamp >= time)?;
        Some((batch.base_offset, batch.max_timestamp))
    }
}

impl Log {
    fn offsets(&self) -> Offsets {
        let start = self
            .batches
            .front()
            .map_or(self.end, |oldest| oldest.base_offset);
        Offsets {
            start,
            high_watermark: self.high_watermark,
        }
    }

    /// Finds the batch that has `offset`, or the place behind the last one.
    fn find(&self, offset: i64) -> Result<usize, ResponseError> {
        if !(self.offsets().start..=self.end).contains(&offset) {
            return Err(ResponseError::OffsetOutOfRange);
        }
        Ok(self
            .batches
            .partition_point(|batch| batch.last_offset < offset))
    }

    /// Drops the oldest batches. What the follower lacks stays, because no consumer could have seen
    /// it.
    fn drop_oldest(&mut self) {
        while let Some(oldest) = self.batches.front() {
            let is_seen = oldest.last_offset < self.high_watermark;
            if !is_seen || self.end_position - oldest.position <= MAX_BYTES {
                break;
            }
            self.batches.pop_front();
        }
    }
}

/// The numbers that an idempotent producer gives a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) producer_id: i64,
    pub(crate) epoch: i16,
    pub(crate) first: i32,
    pub(crate) records: i32,
}

/// The last batches of each producer that wrote to a partition, with their offsets.
#[derive(Debug, Default)]
struct Producers(HashMap<i64, VecDeque<(Sequence, i64)>>);

/// As many batches of a producer may be on their way at once.
const IN_FLIGHT: usize = 5;
/// How many producers a partition knows.
const MAX_PRODUCERS: usize = 1000;

impl Producers {
    /// Returns the offset of a batch that is in the log already, or `None` if it is to be appended.
    /// The first batch of a producer that is not known, or not known any more, may be any.
    fn seen(&self, new: Sequence) -> Result<Option<i64>, ResponseError> {
        let known = self.0.get(&new.producer_id);
        let Some((last, _)) = known.and_then(VecDeque::back) else {
            return Ok(None);
        };
        if let Some((_, offset)) = known.into_iter().flatten().find(|(known, _)| *known == new) {
            return Ok(Some(*offset));
        }
        // Sequences begin anew after 2^31 - 1.
        let next = last.first.wrapping_add(last.records) & i32::MAX;
        match new.epoch {
            epoch if epoch < last.epoch => Err(ResponseError::InvalidProducerEpoch),
            epoch if epoch == last.epoch && new.first == next => Ok(None),
            epoch if epoch > last.epoch && new.first == 0 => Ok(None),
            _ => Err(ResponseError::OutOfOrderSequenceNumber),
        }
    }

    fn add(&mut self, sequence: Sequence, offset: i64) {
        let id = sequence.producer_id;
        if self.0.len() >= MAX_PRODUCERS && !self.0.contains_key(&id) {
            // The one that wrote the longest time ago.
            let last = |batches: &VecDeque<(Sequence, i64)>| batches.back().map(|(_, last)| *last);
            let oldest = self.0.iter().min_by_key(|(_, batches)| last(batches));
            let oldest = oldest.map(|(id, _)| *id);
            oldest.and_then(|id| self.0.remove(&id));
        }
        let batches = self.0.entry(id).or_default();
        if batches.len() == IN_FLIGHT {
            batches.pop_front();
        }
        batches.push_back((sequence, offset));
    }
}
