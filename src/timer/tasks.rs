//! The tasks of a timer: an owner whose shards contain them, and the way to their executor.

use crate::timer::context::TimerContext;
use crate::timer::dispatcher::Dispatcher;
use crate::timer::owner::{Expired, Flush, FlushStep, Owner, Queued};
use crate::timer::shards::Shards;
use crate::timer::stats::Stats;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use std::sync::Arc;

/// What a driver flushes for a timer; see the [module](self). Only the timer and its driver keep it
/// alive, so that the executor is dropped with the timer.
pub(crate) struct Tasks<T: Send + 'static> {
    pub(crate) shards: Arc<Shards<T>>,
    dispatcher: Dispatcher<T>,
}

impl<T: Send + 'static> Tasks<T> {
    /// Creates the tasks of a timer, in so many shards with wheels of so many slots, numbered from
    /// `first` on.
    pub(crate) fn new(
        context: &Arc<TimerContext>,
        dispatcher: Dispatcher<T>,
        layout: (usize, usize),
        first: u32,
    ) -> Arc<Self> {
        let shards = Arc::new(Shards::new(Arc::clone(context), layout, first));
        Arc::new(Tasks { shards, dispatcher })
    }
}

impl<T: Send + 'static> Owner for Tasks<T> {
    fn flush(&self, step: &FlushStep, armed: &mut Vec<Expiration>, expired: &mut Expired) -> Flush {
        match step.poll(&self.shards.context, &self.shards.of(step.shard).0) {
            Ok((mut state, expiration)) => {
                let expired = expired.items();
                Flush::Done(state.flush(&self.shards.context, expiration, step.now, armed, expired))
            }
            Err(flush) => flush,
        }
    }

    fn hand_over(&self, expired: &mut Expired) -> usize {
        self.dispatcher.hand_over(&self.shards.context, expired.items())
    }

    fn forget_if_empty(&self, expiration: Expiration) -> Trimmed {
        // If another thread is at work there, waiting for it does not pay.
        let shard = &self.shards.of(expiration.shard).0;
        let Some(mut state) = shard.try_lock() else { return Trimmed::Live };
        self.shards.context.forget_if_empty(&mut state.core, expiration)
    }

    fn close(&self) {
        self.shards.iter().for_each(|shard| shard.close());
    }

    fn drop_pending(&self) -> u64 {
        let mut dropped = 0;
        self.shards.drain(|_, task| {
            dropped += 1;
            self.shards.context.discard(task);
        });
        dropped
    }

    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().core.len()).sum()
    }

    fn add_to(&self, stats: &mut Stats) {
        for shard in self.shards.iter() {
            let state = shard.lock();
            stats.absorb(&state.core.counters, state.core.len());
        }
        stats.refused += self.dispatcher.refused();
        stats.dropped += self.dispatcher.dropped();
        let panicked = self.dispatcher.panicked(&self.shards.context);
        stats.panicked = stats.panicked.saturating_add(panicked);
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: u64) {
        for shard in self.shards.iter() {
            let mut cursor = 0;
            while snapshot.absorb(&shard.lock().core, &mut cursor, now) {}
        }
    }

    fn assert_invariants(&self, queued: &Queued) {
        for shard in self.shards.iter() {
            shard.assert_invariants(|shard, id| queued.get(&(shard, id)).copied().unwrap_or(0));
        }
    }
}
