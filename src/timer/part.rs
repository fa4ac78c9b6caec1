//! The part: an owner that is built on a timer, as keyed timers and purgatories are. What is due in
//! its shards becomes tasks of the timer's closures.

use crate::engine::owner::{Driven, Expired, MAX_SHARDS, Owned, Owner, Set, Shards};
use crate::engine::shard::{Body, Content};
use crate::store::table::shards_for;
use crate::sync::parallelism;
use crate::timer::Timer;
use crate::timer::entry::Task;
use crate::timer::tasks::Tasks;
use crate::wheel::bucket_queue::Expiration;
use std::sync::{Arc, Weak};

/// Slots of each wheel: few, because there are many shards, and a deadline is seldom near.
const WHEEL_SIZE: usize = 64;

/// A content whose entries expire as tasks of a timer.
pub(crate) trait Expiring: Content + 'static {
    /// What the owner has once, for all its shards.
    type Shared;

    /// Flushes a batch of a bucket, at a time. Appends the tasks that this causes.
    fn flush(
        shared: &Self::Shared,
        body: &mut Body<Self>,
        due: (Expiration, u64),
        tasks: &mut Vec<Task>,
    );

    /// Ends what is left when the part's last reference is dropped.
    fn end(owned: &Owned<Self>);
}

/// An owner that is built on a timer; see the [module](self).
pub(crate) struct Part<C: Expiring> {
    pub(crate) timer: Timer,
    pub(crate) owned: Arc<Owned<C>>,
}

/// What a part has beside its shards.
pub(crate) struct Beside<S> {
    /// What hands the tasks over. Weakly: a call that is under way when the timer ends must not
    /// keep the executor alive.
    closures: Weak<Owned<Tasks<Task>>>,
    pub(crate) shared: S,
}

impl<C: Expiring> Part<C> {
    /// Registers shards with the timer's driver.
    pub(crate) fn new(timer: Timer, share: impl FnOnce(&Arc<Shards<C>>) -> C::Shared) -> Arc<Self>
    where
        Owned<C>: Send + Sync,
        Set<C>: Sync,
    {
        // In virtual time no hash decides an order, unless the timer has several shards itself. In
        // models threads meet in several.
        let is_manual = timer.base.driver.context.time.clock.as_manual().is_some();
        let is_manual = is_manual && !cfg!(tickwheel_model);
        let is_single = is_manual && timer.base.layout.0 == 1;
        let count = if is_single { 1 } else { shards_for(parallelism()).min(MAX_SHARDS) };
        let closures = Arc::downgrade(timer.base.closures());
        let owned = timer.base.driver.register(|first| {
            let shards = Shards::new(&timer.base.driver.context, (count, WHEEL_SIZE), first);
            let shared = share(&shards);
            Arc::new(Owned { shards, beside: Beside { closures, shared } })
        });
        Arc::new(Part { timer, owned })
    }
}

impl<C: Expiring> Drop for Part<C> {
    fn drop(&mut self) {
        C::end(&self.owned);
        self.timer.base.driver.deregister(self.owned.shards.first);
    }
}

impl<C: Expiring> Driven for C {
    type Beside = Beside<C::Shared>;

    fn flush(
        owned: &Owned<Self>,
        body: &mut Body<Self>,
        due: (Expiration, u64),
        expired: &mut Expired,
    ) {
        C::flush(&owned.beside.shared, body, due, expired.items());
    }

    fn hand_over(owned: &Owned<Self>, expired: &mut Expired) -> usize {
        let closures = owned.beside.closures.upgrade();
        closures.map_or(0, |closures| closures.hand_over(expired))
    }
}
