//! The owners of a driver: how they come and go, and what they contain together.

use crate::engine::context::TimerContext;
use crate::engine::driver::{Driver, Turn};
use crate::engine::owner::{Owner, first_shard, owner_of};
use crate::engine::stats::Stats;
use crate::store::slab::{Key, Slab};
use crate::sync::atomic::Ordering;
use crate::wheel::snapshot::Snapshot;
use std::mem;
use std::sync::Arc;

/// How many owners have left before their buckets are looked for.
const GONE: usize = 1_024;
/// How many buckets there may always be before: some kilobytes of them.
const QUEUED: usize = 256;

fn counts_of(owner: &dyn Owner) -> Stats {
    let mut stats = Stats::default();
    owner.add_to(&mut stats);
    stats
}

impl Driver {
    /// Registers an owner, which `make` creates from the number of its first shard.
    pub(crate) fn register<O: Owner + 'static>(&self, make: impl FnOnce(u64) -> Arc<O>) -> Arc<O> {
        let number = self.turn.lock().owners.insert(None, 0).index;
        let owner = make(first_shard(number));
        let registered: Arc<dyn Owner> = Arc::clone(&owner) as _;
        let mut turn = self.turn.lock();
        *turn.owners.at_mut(number) = Some(registered);
        let closed = turn.closed;
        drop(turn);
        if closed {
            owner.close();
        }
        owner
    }

    /// Removes an owner. Nothing may be left in its shards, and nothing may be added any more.
    ///
    /// Its buckets stay in the delay queue until they come first there, or the queue has grown to
    /// twice of what it was when all buckets were looked at, or [`GONE`] owners have left since.
    /// Only then are all looked at, those of owners that have left taken out, and their numbers
    /// given to others. So whoever adds a bucket pays for a look at two.
    pub(crate) fn deregister(&self, first_shard: u64) {
        let number = owner_of(first_shard);
        let mut turn = self.turn.lock();
        let owner = turn.owners.at(number).clone();
        drop(turn);
        // Without the turn's lock: a thread may hold a shard for long, to drop a key.
        let mut counted = owner.as_deref().map(counts_of).unwrap_or_default();
        // An operation that a thread is checking: it is cancelled, and leaves after that.
        counted.cancelled += mem::take(&mut counted.pending) as u64;
        turn = self.turn.lock();
        turn.departed.add(&counted);
        let Turn { owners, gone, queued, .. } = &mut *turn;
        let registered = owners.at_mut(number).take();
        gone.push(number);
        let delay_queue = &self.context.delay_queue;
        if gone.len() == GONE || delay_queue.len() > 2 * *queued + QUEUED {
            delay_queue.forget(|expiration| owners.at(owner_of(expiration.shard)).is_none());
            *queued = delay_queue.len();
            gone.drain(..).for_each(|number| owners.release(number));
        }
        drop(turn);
        drop((owner, registered));
    }

    /// Returns the owners that are registered, to be used without a lock.
    fn owners(&self) -> impl Iterator<Item = Arc<dyn Owner>> {
        self.owners_by_key().into_iter().map(|(_, owner)| owner)
    }

    fn owners_by_key(&self) -> Vec<(Key, Arc<dyn Owner>)> {
        let turn = self.turn.lock();
        turn.owners.iter().filter_map(|(key, owner)| Some((key, owner.clone()?))).collect()
    }

    /// Returns how much is pending, with all owners together.
    pub(crate) fn len(&self) -> usize {
        self.owners().map(|owner| owner.len()).sum()
    }

    pub(crate) fn stats(&self) -> Stats {
        let TimerContext { name, delay_queue, .. } = &*self.context;
        let count = |(key, owner): (Key, Arc<dyn Owner>)| (key, counts_of(&*owner));
        let mut counted: Vec<_> = self.owners_by_key().into_iter().map(count).collect();
        let turn = self.turn.lock();
        // One that has left meanwhile may have been counted in part, and was counted as it left.
        counted.retain(|(key, _)| turn.owners.get(*key).is_some_and(Option::is_some));
        let mut stats = turn.departed.clone();
        drop(turn);
        counted.iter().for_each(|(_, owner)| stats.add(owner));
        stats.name = name.to_string();
        stats.panicked =
            stats.panicked.saturating_add(self.context.panicked.load(Ordering::Relaxed));
        stats.wakeups = delay_queue.wakeups();
        stats
    }

    /// Returns a snapshot of the levels of all owners together.
    pub(crate) fn snapshot(&self, shards: usize) -> Snapshot {
        let mut snapshot = Snapshot::new(shards);
        let now = self.context.time.now();
        self.owners().for_each(|owner| owner.snapshot(&mut snapshot, now));
        snapshot
    }

    /// Closes all owners: nothing can be added any more. Ends the waits of listeners that may wait
    /// for that.
    pub(crate) fn close(&self) {
        self.turn.lock().closed = true;
        self.owners().for_each(|owner| owner.close());
        self.context.stop();
    }

    /// Drops the owners, whose entries were dropped. A listener may keep the driver for longer, but
    /// not the user's code.
    pub(crate) fn retire(&self) {
        let mut turn = self.turn.lock();
        self.context.delay_queue.forget(|_| true);
        let owners = mem::replace(&mut turn.owners, Slab::new());
        drop(turn);
        drop(owners);
    }

    /// Returns whether `close` was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.turn.lock().closed
    }

    /// Drops what is pending, with all owners. Returns how much that was.
    pub(crate) fn drop_pending(&self) -> u64 {
        self.owners().map(|owner| owner.drop_pending()).sum()
    }

    pub(crate) fn assert_invariants(&self) {
        let turn = self.turn.lock();
        let owners = turn.owners.iter().filter_map(|(_, owner)| owner.as_ref());
        owners.for_each(|owner| owner.assert_invariants());
    }
}
