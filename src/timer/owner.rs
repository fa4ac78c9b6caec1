//! The owner: a trait for structures whose shards contain wheels, which a driver flushes.
//!
//! A timer is an owner; the keyed timers and purgatories on it are others. A driver knows neither
//! the content of the wheels nor what happens to it when it expires: it only says which bucket is
//! due.

use crate::sync::MutexGuard;
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::Wakes;
use crate::timer::shard_lock::ShardLock;
use crate::timer::stats::Stats;
use crate::wheel::bucket::BucketId;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::Trimmed;
use crate::wheel::snapshot::Snapshot;
use std::any::Any;
use std::collections::HashMap;
use std::mem;

/// These bits of a shard's number are its place among the shards of its owner; the others identify
/// the owner.
const OWN_BITS: u32 = 12;

/// The most shards that an owner can have.
pub(crate) const MAX_SHARDS: usize = 1 << OWN_BITS;

/// Returns the number of an owner's first shard; the others follow.
pub(crate) fn first_shard(owner: u32) -> u32 {
    owner << OWN_BITS
}

/// Returns the owner of a shard.
pub(crate) fn owner_of(shard: u32) -> u32 {
    shard >> OWN_BITS
}

/// Returns the place of a shard among the shards of its owner.
pub(crate) fn place_of(shard: u32) -> usize {
    shard as usize & (MAX_SHARDS - 1)
}

/// How often a bucket is in the delay queue.
pub(crate) type Queued = HashMap<(u32, BucketId), usize>;

pub(crate) trait Owner: Send + Sync {
    /// Flushes a batch of the bucket that comes first, if it still belongs to the step's shard.
    /// Expired entries go to `expired`.
    fn flush(&self, step: &FlushStep, armed: &mut Vec<Expiration>, expired: &mut Expired) -> Flush;

    /// Hands over what a flush took out, with no lock held. Returns the number of items.
    fn hand_over(&self, expired: &mut Expired) -> usize;

    /// Takes a bucket that holds only cancelled entries out of the delay queue, where it came
    /// first. Without this, a thread would wake up for nothing. Does bounded work, and returns what
    /// it found.
    fn forget_if_empty(&self, expiration: Expiration) -> Trimmed;

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
    fn assert_invariants(&self, queued: &Queued);
}

/// A step of a turn that flushes a bucket of one shard.
pub(crate) struct FlushStep {
    pub(crate) shard: u32,
    pub(crate) turn_start: u64,
    /// The present, as read for this step, and its tick.
    pub(crate) now: u64,
    pub(crate) present: u64,
    /// Whether to wait for a thread that holds the shard, and whether to have others let the turn
    /// go first.
    pub(crate) waits: bool,
    pub(crate) insists: bool,
}

/// The result of a step.
pub(crate) enum Flush {
    /// A batch was flushed. Contains the sleepers to wake, now that no lock is held.
    Done(Wakes),
    /// Another thread holds the shard.
    Busy,
    /// Another shard's bucket comes first by now.
    Overtaken,
}

impl FlushStep {
    /// Locks the step's shard and polls the bucket that comes first, if it still belongs to that
    /// shard.
    pub(crate) fn poll<'a, S>(
        &self,
        context: &TimerContext,
        shard: &'a ShardLock<S>,
    ) -> Result<(MutexGuard<'a, S>, Expiration), Flush> {
        let state = shard.lock_for_turn(self.waits, self.insists).ok_or(Flush::Busy)?;
        let due = context.delay_queue.poll(self.shard, self.turn_start, self.present);
        due.map(|expiration| (state, expiration)).ok_or(Flush::Overtaken)
    }
}

/// Items that were taken out of an owner's shards and have to be handed over. Only the owner knows
/// their type.
#[derive(Default)]
pub(crate) struct Expired {
    items: Option<Box<dyn Any + Send>>,
    /// How many of them were handed over, and counted, before.
    pub(crate) again: usize,
}

impl Expired {
    /// Gives its buffer to one that has none. Both are empty.
    pub(crate) fn lend_to(&mut self, other: &mut Self) {
        if other.items.is_none() {
            mem::swap(self, other);
        }
    }

    /// Returns the items, which are of type `T`. There are none if the last ones belonged to
    /// another owner and were handed over.
    pub(crate) fn items<T: Send + 'static>(&mut self) -> &mut Vec<T> {
        if !self.items.as_ref().is_some_and(|items| items.is::<Vec<T>>()) {
            self.items = Some(Box::new(Vec::<T>::new()));
        }
        let items = self.items.as_mut().and_then(|items| items.downcast_mut());
        items.expect("it was just seen to")
    }
}
