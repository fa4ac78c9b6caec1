//! Idempotent producers: what they send again is not appended again.

use kafka_protocol::ResponseError;
use std::collections::{HashMap, VecDeque};

/// The numbers that an idempotent producer gives a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) producer_id: i64,
    pub(super) epoch: i16,
    pub(super) first: i32,
    pub(super) records: i32,
}

/// The last batches of each producer that wrote to a partition, with their offsets.
#[derive(Debug, Default)]
pub(super) struct Producers(HashMap<i64, VecDeque<(Sequence, i64)>>);

/// As many batches of a producer may be on their way at once.
const IN_FLIGHT: usize = 5;
/// How many producers a partition knows.
const MAX_PRODUCERS: usize = 1000;

impl Producers {
    /// Returns the offset of a batch that is in the log already, or `None` if it is to be appended.
    /// The first batch of a producer that is not known, or not known any more, may be any.
    pub(super) fn seen(&self, new: Sequence) -> Result<Option<i64>, ResponseError> {
        let known = self.0.get(&new.producer_id);
        let Some((last, _)) = known.and_then(VecDeque::back) else { return Ok(None) };
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

    pub(super) fn add(&mut self, sequence: Sequence, offset: i64) {
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
