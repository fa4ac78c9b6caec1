//! Partitions: batches in order, and how far the follower has them.

use super::batch::{Batch, Checked};
use super::held::Held;
use super::producer::{Producer, Seen};
use super::records::Split;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// The name of a partition: what fetches and produces wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicPartition {
    pub topic: Arc<str>,
    pub index: i32,
}

#[derive(Debug)]
pub struct Partition {
    pub name: TopicPartition,
    /// Beyond this the oldest batches go.
    max_bytes: u64,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    batches: VecDeque<Batch>,
    /// The offset and the position of what comes next.
    end: i64,
    end_position: u64,
    /// The offset and the position up to which the follower has it: consumers see no more.
    high_watermark: i64,
    high_position: u64,
    /// The idempotent producers that wrote lately, by their ids.
    producers: HashMap<i64, Producer>,
    is_deleted: bool,
    /// What no consumer is to see yet. It has no offsets yet.
    held: Held,
}

impl Partition {
    pub(super) fn new(name: TopicPartition, max_bytes: u64) -> Self {
        Partition { name, max_bytes, log: Mutex::default() }
    }

    /// Appends a batch. Returns its offset, and the end of the log after it. One that is sent again
    /// is not appended again: its first offset is returned. If it is split, what is for later is
    /// held, and the offset is that of the rest, or -1.
    ///
    /// # Errors
    /// Its producer's numbers are not in order, or the follower lacks as much as a log may have, or
    /// as much is held.
    pub fn append(
        &self,
        batch: Checked<'_>,
        split: Option<Split>,
    ) -> Result<(i64, i64), ResponseError> {
        let mut log = self.log.lock();
        if log.is_deleted {
            return Err(ResponseError::UnknownTopicOrPartition);
        }
        if let Some(sequence) = batch.sequence {
            let known = log.producers.get(&sequence.producer_id);
            if let Some(Seen::Again { offset }) = known.map(|it| it.see(sequence)).transpose()? {
                return Ok((offset, offset + i64::from(sequence.records)));
            }
        }
        let unseen = log.end_position - log.high_position;
        let length = batch.bytes.len() as u64;
        if unseen > 0 && unseen + length > self.max_bytes {
            return Err(ResponseError::NotEnoughReplicas);
        }
        if split.is_some() && log.held.bytes() + length > self.max_bytes {
            return Err(ResponseError::ThrottlingQuotaExceeded);
        }
        let base_offset = match split {
            None => log.push(batch.bytes, self.max_bytes),
            Some(Split { now, later }) => {
                later.into_iter().for_each(|(time, batch)| log.held.add(time, batch));
                now.map_or(-1, |now| log.push(&now, self.max_bytes))
            }
        };
        if let Some(sequence) = batch.sequence {
            log.producers.entry(sequence.producer_id).or_default().add(sequence, base_offset);
        }
        Ok((base_offset, log.end))
    }

    /// Appends what is held and due. Returns the end of the log after it.
    pub fn deliver(&self, now: i64) -> i64 {
        let mut log = self.log.lock();
        while let Some(batch) = log.held.take_due(now) {
            log.push(&batch, self.max_bytes);
        }
        log.end
    }

    /// Returns the time of the first record that is held.
    pub fn first_held(&self) -> Option<i64> {
        self.log.lock().held.first()
    }

    /// Returns how many records are held.
    pub fn held(&self) -> usize {
        self.log.lock().held.len()
    }

    /// Deletes all that the partition had. No producer waits for the follower any more.
    pub fn delete(&self) {
        let mut log = self.log.lock();
        let (high_watermark, end) = (log.end, log.end);
        *log = Log { is_deleted: true, high_watermark, end, ..Log::default() };
    }

    /// Forgets a producer: what it sends next is taken for its first.
    pub fn forget(&self, producer_id: i64) {
        self.log.lock().producers.remove(&producer_id);
    }

    /// Notes that the follower has everything up to `offset`. Returns whether that is news.
    pub fn replicate_to(&self, offset: i64) -> bool {
        let mut log = self.log.lock();
        let offset = offset.min(log.end);
        if offset <= log.high_watermark {
            return false;
        }
        log.high_watermark = offset;
        log.high_position = log.position_of(offset);
        log.drop_oldest(self.max_bytes);
        true
    }

    /// Returns the first offset, the high watermark and the end.
    pub fn offsets(&self) -> (i64, i64, i64) {
        let log = self.log.lock();
        (log.start(), log.high_watermark, log.end)
    }

    /// Returns how many bytes a consumer could get from `offset` on.
    pub fn available(&self, offset: i64) -> Result<u64, ResponseError> {
        let log = self.log.lock();
        log.check(offset)?;
        Ok(log.high_position.saturating_sub(log.position_of(offset)))
    }

    /// Reads whole batches, not copied, from the one on that has `offset`, `max_bytes` at most; but
    /// one in any case, if `at_least_one`. The second result is the high watermark.
    pub fn read(
        &self,
        offset: i64,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Result<(Vec<Bytes>, i64), ResponseError> {
        let log = self.log.lock();
        log.check(offset)?;
        let visible = |batch: &&Batch| batch.last_offset < log.high_watermark;
        let mut found = Vec::new();
        let mut length = 0;
        for batch in log.batches.range(log.index_of(offset)..).take_while(visible) {
            if length + batch.bytes.len() > max_bytes && !(at_least_one && found.is_empty()) {
                break;
            }
            length += batch.bytes.len();
            found.push(batch.bytes.clone());
        }
        Ok((found, log.high_watermark))
    }

    /// Returns the first offset whose batch has a record of that time or later, and that batch's
    /// time.
    pub fn offset_at(&self, timestamp: i64) -> Option<(i64, i64)> {
        let log = self.log.lock();
        let batch = log.batches.iter().find(|batch| batch.max_timestamp >= timestamp)?;
        Some((batch.base_offset, batch.max_timestamp))
    }

    /// Returns the last offset of the batch with the latest time, and that time.
    pub fn latest_time(&self) -> Option<(i64, i64)> {
        let log = self.log.lock();
        let batch = log.batches.iter().max_by_key(|batch| batch.max_timestamp)?;
        Some((batch.last_offset, batch.max_timestamp))
    }

    pub fn bytes(&self) -> u64 {
        let log = self.log.lock();
        log.end_position - log.start_position()
    }
}

impl Log {
    /// Returns its offset.
    fn push(&mut self, batch: &[u8], max_bytes: u64) -> i64 {
        let placed = Batch::place(batch, self.end, self.end_position);
        let base_offset = placed.base_offset;
        self.end = placed.last_offset + 1;
        self.end_position = placed.end_position();
        self.batches.push_back(placed);
        self.drop_oldest(max_bytes);
        base_offset
    }

    /// Drops the oldest batches, down to `max_bytes`. What the follower lacks stays, because no
    /// consumer could have seen it, and so does the last batch.
    fn drop_oldest(&mut self, max_bytes: u64) {
        while self.batches.len() > 1 && self.end_position - self.start_position() > max_bytes {
            let oldest = self.batches.front();
            if oldest.is_none_or(|oldest| oldest.last_offset >= self.high_watermark) {
                return;
            }
            self.batches.pop_front();
        }
    }

    fn start(&self) -> i64 {
        self.batches.front().map_or(self.end, |batch| batch.base_offset)
    }

    fn start_position(&self) -> u64 {
        self.batches.front().map_or(self.end_position, |batch| batch.position)
    }

    fn check(&self, offset: i64) -> Result<(), ResponseError> {
        if self.is_deleted {
            return Err(ResponseError::UnknownTopicOrPartition);
        }
        let inside = (self.start()..=self.end).contains(&offset);
        inside.then_some(()).ok_or(ResponseError::OffsetOutOfRange)
    }

    /// Returns the index of the batch with an offset.
    fn index_of(&self, offset: i64) -> usize {
        self.batches.partition_point(|batch| batch.last_offset < offset)
    }

    fn position_of(&self, offset: i64) -> u64 {
        let batch = self.batches.get(self.index_of(offset));
        batch.map_or(self.end_position, |batch| batch.position)
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.index)
    }
}
