//! The registration: a purgatory as an owner of wheels on its timer's driver.
//!
//! It is shared by the clones of a purgatory. When the last clone is dropped, the shards go back to
//! the [`pool`].

use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operation_ref::OperationRef;
use crate::purgatory::place::Id;
use crate::purgatory::service::Service;
use crate::purgatory::shard::Shard;
use crate::purgatory::shards::Shards;
use crate::sync::MutexGuard;
use crate::timer::Timer;
use crate::timer::alarm::Alarm;
use crate::timer::context::TimerContext;
use crate::timer::entry::Task;
use crate::timer::owner::{Expired, Flush, FlushStep, Owned, Owner, Queued, place_of};
use crate::timer::pool;
use crate::timer::shard::Wakeup;
use crate::timer::stats::Stats;
use crate::timer::tasks::Tasks;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use std::sync::{Arc, Weak};

/// The part that the clones of a purgatory share, registered with the timer's driver.
pub(crate) struct Registration<K: 'static, O: 'static> {
    pub(crate) context: Arc<TimerContext>,
    /// What hands the alarms' tasks over. Weakly: a turn that is under way when the timer ends must
    /// not keep the executor alive.
    closures: Weak<Owned<Tasks<Task>>>,
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
        let (context, closures) = (Arc::clone(&driver.context), timer.base().closures());
        driver.register(|first| {
            let shards = pool::take(Shards::is_free, Shards::new);
            let shards_of_checks = Some(Arc::clone(closures.homes()));
            let service =
                Service { context: Arc::clone(&context), first, closures: shards_of_checks };
            shards.serve(&service);
            let alarm = |shard| {
                Alarm::new(move |key| {
                    OperationRef { shards, id: Id { shard, key } }.expire();
                })
            };
            let alarms = shards.numbers().map(alarm).collect();
            let closures = Arc::downgrade(closures);
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

    /// Locks one shard after the other. None of them once they serve another purgatory: a driver
    /// that goes through its owners may come late.
    fn each(&self) -> impl Iterator<Item = MutexGuard<'static, Shard<K, O>>> {
        self.shards.each().filter(|shard| self.is_served_by(shard))
    }

    fn is_served_by(&self, shard: &Shard<K, O>) -> bool {
        shard.service.as_ref().is_some_and(|service| service.is_for(&self.context, self.first))
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
        let wakes = shard.flush(context, (expiration, step.now), armed, hand);
        Flush::Done(Wakeup::new(context, wakes))
    }

    fn hand_over(&self, expired: &mut Expired) -> usize {
        self.closures.upgrade().map_or(0, |closures| Owner::hand_over(&*closures, expired))
    }

    fn forget_if_empty(&self, expiration: Expiration) -> Trimmed {
        let shard = self.shards.at(place_of(expiration.shard));
        let Some(mut shard) = shard.try_lock() else { return Trimmed::Live };
        self.context.forget_if_empty(&mut shard.core, expiration)
    }

    fn close(&self) {
        self.each().for_each(|mut shard| shard.closed = true);
    }

    /// Drops nothing: a purgatory keeps its timer alive, so nothing can be pending here.
    fn drop_pending(&self) -> u64 {
        // mutants(1): it is not called.
        0
    }

    fn len(&self) -> usize {
        self.each().map(|shard| shard.core.len()).sum()
    }

    fn add_to(&self, stats: &mut Stats) {
        self.each().for_each(|shard| stats.absorb(&shard.core.counters, shard.core.len()));
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: u64) {
        for number in self.shards.numbers() {
            let mut cursor = 0;
            let mut absorb = |shard: &Shard<K, O>| {
                self.is_served_by(shard) && snapshot.absorb(&shard.core, &mut cursor, now)
            };
            while absorb(&self.shards.lock(number)) {}
        }
    }

    fn assert_invariants(&self, queued: &Queued) {
        self.shards.assert_invariants(Some(queued));
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use crate::purgatory::{FutureOperation, Purgatory};
    use std::time::Duration;

    /// What a driver does that has listed its owners before one of them left; no other test uses
    /// purgatories of these types.
    #[test]
    fn a_purgatory_that_is_gone_closes_and_counts_nothing_in_the_next() {
        let [timer, other] = [(); 2].map(|()| Timer::builder().build().expect("in range"));
        let gone = Registration::<[u8; 9], FutureOperation>::new(&timer);
        gone.close();
        gone.retire(&timer);
        let next: Purgatory<[u8; 9], FutureOperation> = Purgatory::new(&other);
        let hour = Duration::from_secs(3600);
        let wait = || next.wait(&[[1; 9]], hour, || false);
        let waits = [wait(), wait()];
        assert_eq!(gone.shards.sum(|shard| shard.core.len()), 2, "the pool has one set of shards");
        gone.close();
        let (mut stats, mut snapshot) = (Stats::default(), Snapshot::new(1));
        gone.add_to(&mut stats);
        gone.snapshot(&mut snapshot, 0);
        assert_eq!((gone.len(), stats.added, snapshot.levels.len()), (0, 0, 0));
        assert!(wait().is_ok() && waits.iter().all(Result::is_ok));
        assert_eq!((next.delayed(), other.stats().added), (2, 3));
    }
}
