//! The shards of a purgatory, each behind its lock.
//!
//! A handle refers to them without counting the reference, so they are never freed. When their
//! purgatory is dropped, they wait in the [pool](crate::timer::pool) for the next one. Handles of
//! the old purgatory stay harmless, because its keys are never issued again.
//!
//! # Locks
//! Each shard has one, of the same rank as the lock of a timer's shard: the delay queue's lock may
//! be taken under it, but never another shard's. A key's `Eq`, `Clone` and `Drop` may run under it.
//! The code of operations does not: operations are called and dropped outside.

use crate::purgatory::callbacks::{CallbackTurn, postpone};
use crate::purgatory::place::{Id, Places};
use crate::purgatory::service::Service;
use crate::purgatory::shard::Shard;
use crate::purgatory::state::EndedBy;
use crate::store::key_map::{shard_of, shards_for};
use crate::sync::{MutexGuard, parallelism, thread_number};
use crate::timer::delay_queue::Wakes;
use crate::timer::owner::{MAX_SHARDS, Queued};
use crate::timer::report::{contain, report_panic};
use crate::timer::shard_lock::ShardLock;
use crate::wheel::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::any::Any;

/// Slots of each wheel: few, because there are many shards, and most operations end long before
/// their deadline.
const WHEEL_SIZE: usize = 64;

/// The shards of a purgatory; their number is a power of two. Padded, so that two locks never share
/// a cache line. See the [module](self).
pub(crate) struct Shards<K, O>(Box<[PaddedShard<K, O>]>);

type PaddedShard<K, O> = CachePadded<ShardLock<Shard<K, O>>>;

impl<K, O> Shards<K, O> {
    /// Returns the shard with this number, behind its lock.
    #[inline]
    pub(crate) fn at(&self, number: usize) -> &ShardLock<Shard<K, O>> {
        &self.0[number]
    }

    #[inline]
    pub(crate) fn lock(&self, number: u16) -> MutexGuard<'_, Shard<K, O>> {
        self.0[usize::from(number)].lock()
    }

    /// Locks one shard after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<K, O>>> {
        self.0.iter().map(|shard| shard.lock())
    }

    /// Returns the number of the shard of keys with this hash.
    #[inline]
    pub(crate) fn number_of(&self, hash: u64) -> u16 {
        shard_of(hash, self.0.len()) as u16
    }

    /// Closes all shards: nothing can be added any more.
    pub(crate) fn close(&self) {
        self.each().for_each(|mut shard| shard.closed = true);
    }

    /// Adds up a figure of all shards.
    pub(crate) fn sum(&self, of: impl Fn(&Shard<K, O>) -> usize) -> usize {
        self.each().map(|shard| of(&shard)).sum()
    }

    /// Returns the numbers of all shards.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> {
        (0..self.0.len()).map(|number| number as u16)
    }

    /// Calls the code of an operation; contains its panic, and reports it with the timer's name.
    /// The caller counts it.
    #[inline]
    pub(crate) fn catch_panic<R>(&self, id: Id, code: impl FnOnce() -> R) -> Option<R> {
        contain(code).map_err(|panic| self.report_panic(id, panic)).ok()
    }

    #[cold]
    fn report_panic(&self, id: Id, panic: Box<dyn Any + Send>) {
        // Not under the lock: a subscriber is the user's code.
        let context = self.lock(id.shard).context_of(id.key).cloned();
        report_panic(context.as_ref().map(|context| &*context.name), panic);
    }

    /// Counts the end of an operation that no shard knows, in a shard that depends on the thread,
    /// so that threads do not contend. Returns the name of no operation in that shard.
    pub(crate) fn count(&self, ended_by: EndedBy) -> Id {
        let mut shard = self.home();
        shard.ended[ended_by as usize] += 1;
        shard.nobody()
    }

    /// Locks the shard in which the calling thread counts.
    pub(crate) fn home(&self) -> MutexGuard<'_, Shard<K, O>> {
        self.0[thread_number() as usize & (self.0.len() - 1)].lock()
    }

    /// Counts a panic of an operation's code, unless the shard serves another purgatory by now.
    pub(crate) fn count_panic(&self, id: Id) {
        let mut shard = self.lock(id.shard);
        let counts = shard.context_of(id.key).is_some();
        shard.panicked += u64::from(counts);
    }

    /// Calls the `code` with which an operation ends, and drops the operation. This happens now, or
    /// after the callback that this thread is running.
    pub(crate) fn conclude(
        &'static self,
        id: Id,
        mut operation: O,
        code: impl FnOnce(&mut O) + 'static,
    ) where
        O: 'static,
    {
        let end = move || {
            if self.catch_panic(id, || code(&mut operation)).is_none() {
                self.count_panic(id);
            }
            if self.catch_panic(id, || drop(operation)).is_none() {
                self.count_panic(id);
            }
        };
        match CallbackTurn::begin() {
            Some(_turn) => end(),
            None => postpone(end),
        }
    }
}

impl<K: Eq + Clone, O> Shards<K, O> {
    pub(crate) fn new() -> Self {
        let count = shards_for(parallelism()).min(MAX_SHARDS);
        let shard = |number| CachePadded::new(ShardLock::new(Shard::new(number as u16)));
        Shards((0..count).map(shard).collect())
    }

    /// Returns whether nothing is left of the purgatory that the shards served.
    pub(crate) fn is_free(&self) -> bool {
        self.each().all(|shard| shard.is_free())
    }

    /// Begins to serve a purgatory.
    pub(crate) fn serve(&self, service: &Service) {
        let time = &service.context.time;
        let current = time.ticks.floor(time.now());
        for (number, mut shard) in (service.first..).zip(self.each()) {
            shard.serve(service.clone(), Wheels::new(number, WHEEL_SIZE, current));
        }
    }

    /// Gives back what the shards hold for a purgatory that is gone. Returns whether they may serve
    /// another one once they are free: not if too many of their keys are used up.
    pub(crate) fn retire(&self) -> bool {
        for number in self.numbers() {
            let closures = self.lock(number).retire();
            drop(closures);
        }
        !self.each().any(|shard| shard.core.is_worn())
    }

    /// Checks every shard.
    pub(crate) fn assert_invariants(&self, queued: Option<&Queued>) {
        self.each().for_each(|shard| shard.assert_invariants(queued));
    }

    /// Removes an ended operation from all its keys but the first.
    #[inline]
    pub(crate) fn leave(&self, places: &Places) {
        places.others().for_each(|place| self.lock(place.shard).watchers.remove(place));
    }

    /// Wakes the sleepers of a shard's timer, if `wakes` says so.
    #[inline]
    pub(crate) fn wake(&self, shard: MutexGuard<'_, Shard<K, O>>, wakes: Wakes) {
        if wakes != Wakes::Nobody {
            let service = shard.service.clone();
            drop(shard);
            service.iter().for_each(|service| service.context.wake(wakes));
        }
    }
}
