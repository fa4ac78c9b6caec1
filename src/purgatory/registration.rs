//! The registration: a purgatory as an owner of wheels on its timer's driver.
//!
//! It is shared by the clones of a purgatory. When the last clone is dropped, the shards go back to
//! the [`pool`].

use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::OperationRef;
use crate::purgatory::place::Id;
use crate::purgatory::shard::Service;
use crate::purgatory::shards::Shards;
use crate::timer::Timer;
use crate::timer::alarm::Alarm;
use crate::timer::context::TimerContext;
use crate::timer::entry::Task;
use crate::timer::owner::{Expired, Flush, FlushStep, Owner, Queued, place_of, try_lock};
use crate::timer::pool;
use crate::timer::shards::Shards as TimerShards;
use crate::timer::stats::Stats;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use std::sync::Arc;

/// The part that the clones of a purgatory share, registered with the timer's driver.
pub(crate) struct Registration<K: 'static, O: 'static> {
    pub(crate) context: Arc<TimerContext>,
    closures: Arc<TimerShards<Task>>,
    pub(crate) shards: &'static Shards<K, O>,
    first: u32,
    /// One alarm for each shard: expires an operation by its key.
    alarms: Box<[Alarm]>,
}

impl<K, O> Registration<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Registers shards with the timer's driver.
    pub(crate) fn new(timer: &Timer) -> Arc<Self> {
        let driver = timer.driver();
        let (context, closures) = (Arc::clone(&driver.context), timer.shards());
        driver.register(|first| {
            let shards = pool::take(Shards::is_free, Shards::new);
            let service =
                Service { context: Arc::clone(&context), closures: Some(Arc::clone(&closures)) };
            shards.serve(&service, first);
            let alarm = |shard| {
                Alarm::new(move |key| {
                    OperationRef { shards, id: Id { shard, key } }.expire();
                })
            };
            let alarms = shards.numbers().map(alarm).collect();
            Arc::new(Registration { context, closures, shards, first, alarms })
        })
    }

    /// Gives the shards back. No thread adds operations any more. An operation that a thread is
    /// checking at this moment is cancelled, and leaves its shard when that check ends.
    pub(crate) fn retire(&self, timer: &Timer) {
        timer.driver().deregister(self.first);
        if self.shards.retire() {
            pool::put(self.shards);
        }
    }
}

impl<K, O> Owner for Registration<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn flush(&self, step: &FlushStep, armed: &mut Vec<Expiration>, expired: &mut Expired) -> Flush {
        let (context, place) = (&self.context, place_of(step.shard));
        let (mut shard, expiration) = match step.poll(context, self.shards.at(place)) {
            Ok(polled) => polled,
            Err(flush) => return flush,
        };
        let (alarm, tasks) = (&self.alarms[place], expired.items());
        let hand = |key| tasks.push(alarm.task(key));
        Flush::Done(shard.flush(context, (expiration, step.now), armed, hand))
    }

    fn hand_over(&self, expired: &mut Expired) -> usize {
        self.closures.hand_over(expired)
    }

    fn forget_if_empty(&self, expiration: Expiration) -> Trimmed {
        let shard = self.shards.at(place_of(expiration.shard));
        let Some(mut shard) = try_lock(shard) else { return Trimmed::Live };
        self.context.forget_if_empty(&mut shard.core, expiration)
    }

    fn close(&self) {
        self.shards.close();
    }

    /// Drops nothing: a purgatory keeps its timer alive, so nothing can be pending here.
    fn drop_pending(&self) -> u64 {
        0
    }

    fn len(&self) -> usize {
        self.shards.sum(|shard| shard.core.len())
    }

    fn add_to(&self, stats: &mut Stats) {
        for number in self.shards.numbers() {
            let core = &self.shards.lock(number).core;
            stats.absorb(&core.counters, core.len());
        }
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: u64) {
        for number in self.shards.numbers() {
            let mut cursor = 0;
            while snapshot.absorb(&self.shards.lock(number).core, &mut cursor, now) {}
        }
    }

    fn assert_invariants(&self, queued: &Queued) {
        self.shards.assert_invariants(Some(queued));
    }
}
