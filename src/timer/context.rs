//! What all shards of a timer have in context: its time, its delay queue, its limit.

use crate::timer::clock::Time;
use crate::timer::delay_queue::{DelayQueue, Wakes};
use crate::timer::entry::When;
use crate::timer::limit::Limit;
use crate::wheel::bucket::Reference;
use crate::wheel::core::Core;
use std::sync::Arc;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct TimerContext {
    pub(crate) time: Time,
    pub(crate) delay_queue: Arc<DelayQueue>,
    pub(crate) limit: Option<Limit>,
}

impl TimerContext {
    /// The present, if it had to be read or is cheap to read, and the deadline.
    #[inline]
    pub(crate) fn resolve(&self, when: When) -> (Option<u64>, u64) {
        let time = &self.time;
        match when {
            When::After(delay) => {
                let now = time.now();
                (Some(now), time.deadline_after(now, delay))
            }
            When::At(instant) => (time.cheap_now(), time.deadline_at(instant)),
        }
    }

    /// Files an entry that opens a far bucket or is due soon.
    ///
    /// Its deadline may have passed: then it need not wait for the next tick. And if it opens a far
    /// bucket while nothing is due, the wheels' time leaps to the present first: it lags behind
    /// after an idle spell, and the entry may not be far at all.
    pub(crate) fn file<T>(
        &self,
        core: &mut Core<T>,
        reference: Reference,
        tick: u64,
        now: Option<u64>,
        deadline: u64,
    ) -> Wakes {
        let TimerContext { time, delay_queue, .. } = self;
        let now = now.unwrap_or_else(|| time.now());
        let present = time.ticks.floor(now);
        let wheels = &mut core.wheels;
        let mut wakes = Wakes::Nobody;
        let arm = |expiration| wakes = delay_queue.offer(expiration);
        if deadline <= now {
            wheels.file_elapsed(reference, arm);
        } else {
            if wheels.is_far(tick) && delay_queue.is_quiet(present) {
                wheels.leap(present);
            }
            wheels.file(reference, tick, arm);
        }
        wakes
    }

    pub(crate) fn release_permits(&self, permits: usize) {
        if let Some(limit) = &self.limit {
            limit.release(permits);
        }
    }
}
