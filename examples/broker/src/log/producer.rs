//! Idempotent producers: what each has sent last, so that a batch that is sent again is known.

use super::partition::{Partition, TopicPartition};
use kafka_protocol::ResponseError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Timer, TimerEntry};
use tickwheel_prometheus::Metrics;

/// What an idempotent producer says of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    pub producer_id: i64,
    pub epoch: i16,
    /// The number of its first record; they follow each other, and after `i32::MAX` comes 0.
    pub first: i32,
    pub records: i32,
}

impl Sequence {
    fn last(self) -> i32 {
        self.first.wrapping_add(self.records - 1) & i32::MAX
    }
}

/// A producer as one partition knows it.
#[derive(Debug, Default)]
pub(super) struct Producer {
    /// With their first offsets, the latest at the end.
    batches: VecDeque<(Sequence, i64)>,
}

/// How many batches a producer may have on their way: as with Kafka.
const IN_FLIGHT: usize = 5;

/// What a batch is to one who knows its producer.
pub(super) enum Seen {
    /// It follows the last one.
    Next,
    /// It is in the log already.
    Again { offset: i64 },
}

impl Producer {
    pub(super) fn see(&self, new: Sequence) -> Result<Seen, ResponseError> {
        let Some((last, _)) = self.batches.back() else { return Ok(Seen::Next) };
        if new.epoch < last.epoch {
            return Err(ResponseError::InvalidProducerEpoch);
        }
        let is_same = |known: &Sequence| {
            (known.epoch, known.first, known.records) == (new.epoch, new.first, new.records)
        };
        if let Some((_, offset)) = self.batches.iter().find(|(known, _)| is_same(known)) {
            return Ok(Seen::Again { offset: *offset });
        }
        let is_first_of_epoch = new.epoch > last.epoch && new.first == 0;
        let follows =
            new.epoch == last.epoch && new.first == last.last().wrapping_add(1) & i32::MAX;
        if is_first_of_epoch || follows {
            Ok(Seen::Next)
        } else {
            Err(ResponseError::OutOfOrderSequenceNumber)
        }
    }

    pub(super) fn add(&mut self, sequence: Sequence, offset: i64) {
        if self.batches.len() == IN_FLIGHT {
            self.batches.pop_front();
        }
        self.batches.push_back((sequence, offset));
    }
}

/// How long a producer is known that sends nothing: as Kafka's `producer.id.expiration.ms`.
const EXPIRATION: Duration = Duration::from_secs(24 * 60 * 60);

/// When the partitions forget their producers.
pub struct Producers {
    max: usize,
    expirations: KeyedTimer<(TopicPartition, i64), Arc<Partition>>,
}

impl Producers {
    pub fn new(timer: &Timer, max: usize) -> Self {
        let forget = |(_, id): (TopicPartition, i64), partition: Arc<Partition>| {
            partition.forget(id);
        };
        Producers { max, expirations: KeyedTimer::new(timer, forget) }
    }

    /// Keeps a producer that has written to a partition.
    pub fn keep(&self, partition: &Arc<Partition>, producer_id: i64) {
        let key = (partition.name.clone(), producer_id);
        if self.expirations.touch(&key, EXPIRATION) {
            return;
        }
        if self.expirations.len() >= self.max {
            self.make_room();
        }
        let entry = TimerEntry::after(EXPIRATION, Arc::clone(partition));
        if self.expirations.schedule(key, entry).is_err() {
            partition.forget(producer_id); // As many wait as may.
        }
    }

    /// Forgets a tenth of them at once, those that wrote the longest time ago, because it looks at
    /// all.
    fn make_room(&self) {
        let mut all = Vec::with_capacity(self.max);
        self.expirations.for_each(|key, partition, deadline| {
            all.push((deadline, key.clone(), Arc::clone(partition)));
        });
        let count = all.len().min(self.max / 10 + 1);
        if count < all.len() {
            all.select_nth_unstable_by_key(count, |(deadline, ..)| *deadline);
        }
        for (_, key, partition) in all.drain(..count) {
            self.expirations.cancel(&key);
            partition.forget(key.1);
        }
    }

    /// Forgets a topic that was deleted, and what its partitions knew.
    pub fn forget_topic(&self, topic: &str) {
        let mut gone = Vec::new();
        self.expirations.for_each(|key, _, _| {
            if *key.0.topic == *topic {
                gone.push(key.clone());
            }
        });
        gone.iter().for_each(|key| drop(self.expirations.cancel(key)));
    }

    /// Shows how many are known.
    pub fn register(&self, metrics: &Metrics) {
        metrics.keyed_timer("producers", &self.expirations);
    }

    /// Returns how many were known.
    pub fn shutdown(&self) -> usize {
        self.expirations.cancel_all().len()
    }
}
