//! The owner: shards, and where the entries go that expire in them.
//!
//! A timer is an owner; the keyed timers and purgatories on it are others. A driver knows neither
//! the content of the shards nor what happens to it when it expires: it only says which bucket is
//! due.
//!
//! # The life of a set of shards
//! A handle refers to its shard without counting the reference, so shards are never freed. When the
//! last reference to [`Shards`] goes, they are emptied, and wait in the pool for the next owner.
//! The driver has such a reference for as long as it may close, count or flush them, so it never
//! takes one owner's shards for another's. Handles of a former owner, its tasks and what its
//! entries report or count stay harmless, because they name their entry, and the keys of a shard
//! are never issued again.
//!
//! # The pool
//! Shards that are not in use, kept for the next timer or purgatory of the same types.
//!
//! A handle refers to its shard by a plain reference. Counting these references, so that shards
//! could be freed, would take two more locked instructions for each timer, which is a fifth of the
//! time that adding and cancelling it takes. So a shard lives forever. While it is not in use it
//! holds less than a kilobyte. There are never more shards than were in use at once, except for
//! worn ones: each of them had used a place of its slab 2^31 times.

use crate::engine::context::TimerContext;
use crate::engine::shard::{Body, Content, Shard, Wakeup};
use crate::engine::stats::Stats;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use crate::wheel::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

/// These bits of a shard's number are its ordinal among the shards of its owner; the others
/// identify the owner.
const OWN_BITS: u32 = 12;

/// The most shards that an owner can have.
pub(crate) const MAX_SHARDS: usize = 1 << OWN_BITS;

/// Returns the number of an owner's first shard; the others follow.
pub(crate) fn first_shard(owner: u32) -> u64 {
    u64::from(owner) << OWN_BITS
}

/// Returns the owner of a shard.
pub(crate) fn owner_of(shard: u64) -> u32 {
    (shard >> OWN_BITS) as u32
}

/// Returns the ordinal of a shard among the shards of its owner.
pub(crate) fn ordinal_of(shard: u64) -> usize {
    shard as usize & (MAX_SHARDS - 1)
}

/// An owner as a driver sees it.
pub(crate) trait Owner: Send + Sync {
    /// Flushes a batch of the bucket that comes first, if it still belongs to `shard`, for a turn
    /// that began at a tick, at a time. What has to be done about it once no lock is held goes to
    /// `expired`. Returns whether it could: not if another thread holds the shard. A turn that
    /// `insists` is let go first there at its next try.
    fn flush(
        &self,
        due: (Expiration, u64),
        times: (u64, u64),
        insists: bool,
        expired: &mut Expired,
    ) -> bool;

    /// Hands over what a flush took out, with no lock held, after waking who has to be woken.
    /// Returns the number of items.
    fn hand_over(&self, expired: &mut Expired) -> usize;

    /// Takes a bucket that holds only cancelled entries out of the delay queue, where it came
    /// first. Without this, a thread would wake up for nothing. Does bounded work, and returns what
    /// it found; `None` if it could not look.
    fn trim(&self, expiration: Expiration) -> Option<Trimmed>;

    /// Closes the owner: nothing can be added any more.
    fn close(&self);

    /// Drops all pending entries, when no caller can want them any more. Returns how many there
    /// were.
    fn drop_pending(&self) -> u64;

    fn len(&self) -> usize;

    fn add_to(&self, stats: &mut Stats);

    /// Adds the content of the levels at `now`. Releases each lock after some buckets.
    fn snapshot(&self, snapshot: &mut Snapshot, now: u64);

    /// Checks every shard, and checks that the delay queue contains each armed bucket once.
    fn assert_invariants(&self);
}

/// A content whose entries expire.
///
/// It may be sent if its entries may. That is no condition of the trait: an entry can own its
/// owner, and the compiler would have to know the one for the other.
pub(crate) trait Driven: Content + 'static {
    /// What an owner has beside its shards.
    type Beside;

    /// Flushes a batch of a bucket that was polled under the lock of the body, at a time.
    fn flush(
        owned: &Owned<Self>,
        body: &mut Body<Self>,
        due: (Expiration, u64),
        expired: &mut Expired,
    );

    /// Hands over what was flushed; see [`Owner::hand_over`].
    fn hand_over(owned: &Owned<Self>, expired: &mut Expired) -> usize;

    /// Adds what was counted beside the shards; by default, nothing is.
    fn count(_: &Owned<Self>, _: &mut Stats) {}
}

/// All shards of an owner; their number is a power of two. Padded, so that two shards' locks never
/// share a cache line.
pub(crate) struct Set<C: Content>(Box<[CachePadded<Shard<C>>]>);

impl<C: Content> Set<C> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the shard with this ordinal.
    #[inline]
    pub(crate) fn at(&self, ordinal: usize) -> &Shard<C> {
        &self.0[ordinal]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shard<C>> {
        self.0.iter().map(|shard| &**shard)
    }

    /// Closes all shards: nothing can be added any more.
    pub(crate) fn close(&self) {
        self.iter().for_each(|shard| shard.with(|body| body.closed = true));
    }
}

/// A set of shards that serves an owner, until the last reference is dropped. Whoever adds to them
/// may keep them: they own no code of a user's, and are empty when their owner has ended.
pub(crate) struct Shards<C: Driven> {
    pub(crate) set: &'static Set<C>,
    pub(crate) context: Arc<TimerContext>,
    /// The number of the first shard.
    pub(crate) first: u64,
    /// Gives the set back to the pool. Known since the set was taken out, where the compiler knew
    /// that it may be.
    give_back: fn(&'static Set<C>),
}

impl<C: Driven> Shards<C> {
    /// Takes `count` shards, a power of two, with wheels of `wheel_size` slots, numbered from
    /// `first` on.
    pub(crate) fn new(
        context: &Arc<TimerContext>,
        (count, wheel_size): (usize, usize),
        first: u64,
    ) -> Arc<Self>
    where
        Set<C>: Sync,
    {
        let set = Set::take(count);
        let current = context.time.ticks.floor(context.time.now());
        for (number, shard) in (first..).zip(set.iter()) {
            let wheels = Wheels::new(number, wheel_size, current).ending_at(context.time.end());
            shard.serve(Arc::clone(context), wheels);
        }
        Arc::new(Shards { set, context: Arc::clone(context), first, give_back: Set::give_back })
    }

    /// Closes all shards, and takes the pending entries out of them, in small batches.
    pub(crate) fn drain(&self, mut out: impl FnMut(u64, C::Item)) {
        self.set.close();
        let mut batch = Vec::new();
        for shard in self.set.iter() {
            let (mut cursor, mut more) = (0, true);
            while more {
                more = shard.with(|body| body.drain(&mut cursor, &mut batch));
                batch.drain(..).for_each(|(deadline, item)| out(deadline, item));
            }
        }
    }
}

impl<C: Driven> Drop for Shards<C> {
    fn drop(&mut self) {
        self.set.iter().for_each(Shard::retire);
        // With few keys left it is not used again.
        if !self.set.iter().any(|shard| shard.with(|body| body.core.entries.is_worn())) {
            (self.give_back)(self.set);
        }
    }
}

/// An owner: shards, and what belongs to them.
pub(crate) struct Owned<C: Driven> {
    pub(crate) shards: Arc<Shards<C>>,
    pub(crate) beside: C::Beside,
}

impl<C: Driven> Owned<C> {
    fn shard(&self, number: u64) -> &'static Shard<C> {
        self.shards.set.at(ordinal_of(number))
    }
}

impl<C: Driven> Owner for Owned<C>
where
    Self: Send + Sync,
{
    fn flush(
        &self,
        (named, others): (Expiration, u64),
        (turn_start, now): (u64, u64),
        insists: bool,
        expired: &mut Expired,
    ) -> bool {
        let ticks = self.shards.context.time.ticks;
        let Some(mut body) = self.shard(named.shard).lock_for_turn(insists) else { return false };
        if let Some(due) = body.poll(named, (turn_start, ticks.floor(now)), others) {
            expired.tick = due.start;
            C::flush(self, &mut body, (due, now), expired);
        }
        body.flushed();
        expired.wakeup = Shard::release(body);
        true
    }

    fn hand_over(&self, expired: &mut Expired) -> usize {
        expired.wake();
        C::hand_over(self, expired)
    }

    fn trim(&self, expiration: Expiration) -> Option<Trimmed> {
        // If another thread is at work there, waiting for it does not pay.
        Some(self.shard(expiration.shard).try_lock()?.trim(expiration))
    }

    fn close(&self) {
        self.shards.set.close();
    }

    fn drop_pending(&self) -> u64 {
        let mut dropped = 0;
        self.shards.drain(|_, item| {
            dropped += 1;
            self.shards.context.discard(item);
        });
        dropped
    }

    fn len(&self) -> usize {
        self.shards.set.iter().map(|shard| shard.with(|body| body.core.len())).sum()
    }

    fn add_to(&self, stats: &mut Stats) {
        for shard in self.shards.set.iter() {
            shard.with(|body| stats.absorb(&body.core.counters, body.core.len()));
        }
        C::count(self, stats);
    }

    fn snapshot(&self, snapshot: &mut Snapshot, now: u64) {
        for shard in self.shards.set.iter() {
            let mut cursor = 0;
            while shard.with(|body| snapshot.absorb(&body.core, &mut cursor, now)) {}
        }
    }

    fn assert_invariants(&self) {
        for shard in self.shards.set.iter() {
            shard.with(|body| body.core.assert_invariants(C::is_filed));
        }
    }
}

/// Items that were taken out of an owner's shards and have to be handed over. Only the owner knows
/// their type.
#[derive(Default)]
pub(crate) struct Expired {
    items: Option<Box<dyn Items>>,
    /// The tick of all of them; zero for those that were due when they were added.
    pub(crate) tick: u64,
    wakeup: Wakeup,
}

impl Expired {
    /// Wakes those that the flush has to wake, now that no lock is held.
    pub(crate) fn wake(&mut self) {
        drop(mem::take(&mut self.wakeup));
    }

    /// Gives its buffer to one that has none. Both are empty.
    pub(crate) fn lend_to(&mut self, other: &mut Self) {
        if other.items.is_none() {
            mem::swap(self, other);
        }
    }

    /// Returns the items, which are of type `T`. There are none if the last ones belonged to
    /// another owner and were handed over.
    pub(crate) fn items<T: Send + 'static>(&mut self) -> &mut Vec<T> {
        if !self.items.as_mut().is_some_and(|items| items.as_any().is::<Vec<T>>()) {
            self.items = Some(Box::new(Vec::<T>::new()));
        }
        let items = self.items.as_mut().and_then(|items| items.as_any().downcast_mut());
        items.expect("it was just seen to")
    }

    pub(crate) fn len(&self) -> usize {
        self.items.as_ref().map_or(0, |items| items.len())
    }

    /// Moves an item to another one's; the last item takes its place.
    pub(crate) fn move_to(&mut self, other: &mut Self, nth: usize) {
        if let Some(items) = &mut self.items {
            items.move_to(other, nth);
        }
    }
}

/// A vector, whatever the type of its items.
trait Items: Send {
    fn as_any(&mut self) -> &mut dyn Any;
    fn len(&self) -> usize;
    fn move_to(&mut self, other: &mut Expired, nth: usize);
}

impl<T: Send + 'static> Items for Vec<T> {
    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn move_to(&mut self, other: &mut Expired, nth: usize) {
        other.items().push(self.swap_remove(nth));
    }
}

/// By type and size: who looks for one of its size takes no others out meanwhile, which another
/// thread would miss, and replace by new ones.
///
/// Not from the lock facade: it protects no more than a few steps, and outlives any model.
static POOL: parking_lot::Mutex<BTreeMap<(TypeId, usize), Box<dyn Any + Send>>> =
    parking_lot::Mutex::new(BTreeMap::new());

impl<C: Content + 'static> Set<C>
where
    Self: Sync,
{
    /// Returns so many shards that are free: from the pool if it has such, otherwise new ones.
    fn take(count: usize) -> &'static Self {
        let (mut free, mut busy) = (None, Vec::new());
        // Looked at outside of the pool's lock: that takes locks whose holders may want the pool.
        while let Some(pooled) = Self::with_pool(count, Vec::pop) {
            if pooled.iter().all(|shard| shard.with(|body| body.is_free())) {
                free = Some(pooled);
                break;
            }
            busy.push(pooled);
        }
        busy.into_iter().for_each(Self::give_back);
        free.unwrap_or_else(|| {
            let shards = (0..count).map(|_| CachePadded::new(Shard::new()));
            Box::leak(Box::new(Set(shards.collect())))
        })
    }

    /// Puts shards into the pool that are no longer in use, or soon will not be.
    fn give_back(&'static self) {
        // The locks of a model checker belong to one schedule, and can't be used in the next.
        if !cfg!(tickwheel_model) {
            Self::with_pool(self.len(), |pool| pool.push(self));
        }
    }

    fn with_pool<R>(count: usize, change: impl FnOnce(&mut Vec<&'static Self>) -> R) -> R {
        let mut pool = POOL.lock();
        let pooled = pool.entry((TypeId::of::<Self>(), count));
        let pooled = pooled.or_insert_with(|| Box::new(Vec::<&'static Self>::new()));
        change(pooled.downcast_mut().expect("a vector of the type that it is filed under"))
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;

    #[test]
    fn each_shard_of_each_owner_has_a_number_of_its_own() {
        for owner in [0, 1 << 20, u32::MAX] {
            let last = first_shard(owner) + MAX_SHARDS as u64 - 1;
            assert_eq!((owner_of(last), ordinal_of(last)), (owner, MAX_SHARDS - 1));
        }
    }

    #[test]
    fn what_is_free_is_taken_again() {
        let made = [8, 8].map(Set::<()>::take);
        made.into_iter().for_each(Set::give_back);
        made[0].at(7).with(|body| body.closed = false);
        let taken = [4, 8, 8].map(Set::<()>::take);
        assert_eq!(taken.map(Set::len), [4, 8, 8]);
        assert!(std::ptr::eq(taken[1], made[1]) && !std::ptr::eq(taken[2], made[0]));
        made[0].close();
        assert!(std::ptr::eq(Set::take(8), made[0]), "it was put back, and is free now");
        // What is not there is leaked.
        taken.into_iter().chain([made[0]]).for_each(Set::give_back);
    }
}
