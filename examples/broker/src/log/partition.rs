//! Partitions: batches in order, and how far the follower has them.

use super::batch::{Batch, Checked};
use super::producer::Producers;
use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

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

/// Where a partition begins, and up to where it can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub(crate) start: i64,
    pub(crate) high_watermark: i64,
}

impl Partition {
    pub(super) fn new(name: TopicPartition) -> Self {
        Partition { name, log: Mutex::default() }
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
        (log.high_watermark, log.high_position) = (log.end, log.end_position);
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
        let position = log.batches.get(first).map_or(log.end_position, |batch| batch.position);
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
        let batch = log.batches.iter().find(|batch| batch.max_timestamp >= time)?;
        Some((batch.base_offset, batch.max_timestamp))
    }
}

impl Log {
    fn offsets(&self) -> Offsets {
        let start = self.batches.front().map_or(self.end, |oldest| oldest.base_offset);
        Offsets { start, high_watermark: self.high_watermark }
    }

    /// Finds the batch that has `offset`, or the place behind the last one.
    fn find(&self, offset: i64) -> Result<usize, ResponseError> {
        if !(self.offsets().start..=self.end).contains(&offset) {
            return Err(ResponseError::OffsetOutOfRange);
        }
        Ok(self.batches.partition_point(|batch| batch.last_offset < offset))
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
