//! The purgatory: where delayed operations wait until they can be completed.

pub(crate) mod adding;
pub(crate) mod callbacks;
pub(crate) mod error;
pub(crate) mod future;
pub(crate) mod operation_ref;
pub(crate) mod operation;
pub(crate) mod pending;
pub(crate) mod place;
pub(crate) mod registration;
pub(crate) mod shard;
pub(crate) mod shards;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod triggers;
pub(crate) mod visit;
pub(crate) mod wait_queue;
pub(crate) mod watchers;

pub use crate::purgatory::error::WatchError;
pub use crate::purgatory::future::{FutureOperation, Wait, Waited};
pub use crate::purgatory::operation::DelayedOperation;
pub use crate::purgatory::pending::{CancelPendingOnDrop, Cancelled, Pending, Watch};
pub use crate::purgatory::stats::PurgatoryStats;

use crate::purgatory::operation_ref::OperationRef;
use crate::purgatory::registration::Registration;
use crate::purgatory::shards::Shards;
use crate::purgatory::state::EndedBy;
use crate::store::key_map;
use crate::sync::thread_number;
use crate::timer::Timer;
use crate::timer::entry::When;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

/// Where delayed operations wait, each until its condition holds or its time is up.
///
/// An operation is watched on keys: the partitions that a fetch reads, the group that a member
/// joins. Whoever changes something calls [`check_and_complete`](Self::check_and_complete) with the
/// key; the purgatory asks the operations there whether they can be completed now. What is
/// finished, whichever way, is gone at once: out of all its keys and out of the timer.
///
/// Keys are compared, cloned and dropped under a lock, so these must not use the purgatory, and
/// their `Drop` must not panic. Where a key is only looked up, it may be given in any form that it
/// can be borrowed as, a `String` as a `&str`.
///
/// The keys lie in shards, and each shard's table of keys is built anew, under the shard's lock,
/// when its keys have doubled or have become few. That takes time proportional to the keys in the
/// shard; there are 8 shards or more for each hardware thread, at most 4096. So the times that the
/// methods promise hold on average, and a call that meets this takes longer.
///
/// It keeps its timer alive. Cloning shares it; an operation that holds a clone keeps it alive.
/// When the last clone is dropped, pending operations are dropped, without a call to their code;
/// [`shutdown`](Self::shutdown) returns them instead.
///
/// After Apache Kafka's purgatory (`DelayedOperationPurgatory`); what differs stands in the
/// repository's `docs/PURGATORY.md`. An example is on the [crate's page](crate#purgatory).
pub struct Purgatory<K, O, S = RandomState>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    shared: Arc<Shared<K, O>>,
    hasher: S,
}

/// Dropped with the last clone; operations refer to the shards only.
struct Shared<K, O>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    timer: Timer,
    registration: Arc<Registration<K, O>>,
}

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// An empty purgatory whose operations expire on `timer`, which any number of purgatories
    /// share.
    pub fn new<U: Send + 'static>(timer: &Timer<U>) -> Self {
        Self::with_hasher(timer, RandomState::new())
    }
}

impl<K, O, S> Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
    S: BuildHasher,
{
    /// The same with another way to hash keys.
    pub fn with_hasher<U: Send + 'static>(timer: &Timer<U>, hasher: S) -> Self {
        let timer = timer.closures();
        let registration = Registration::new(&timer);
        Purgatory { shared: Arc::new(Shared { timer, registration }), hasher }
    }

    /// Completes an operation if its condition holds; otherwise watches it on `keys`, for `timeout`
    /// at most.
    ///
    /// Checks the condition twice, however many keys there are: at first, and again when the
    /// operation is watched on all of them. So whoever makes the condition true and then triggers
    /// one of the keys completes it, however the two calls meet. A key that is named twice is
    /// watched twice.
    ///
    /// `timeout` is a `Duration`, however long, or an `Instant`: the deadline, where the caller
    /// knows the time already. What has passed expires at the timer's next turn. Takes time
    /// proportional to the number of keys, and never waits but for a lock that is held
    /// for a bounded time.
    ///
    /// # Errors
    /// [`WatchError`] hands the operation back, if its condition did not hold at the first check:
    /// `NoKeys` if `keys` is empty, `Full` if the timer is, `Shutdown` after
    /// [`shutdown`](Self::shutdown) of the purgatory or of its timer.
    pub fn try_complete_else_watch(
        &self,
        mut operation: O,
        timeout: impl Into<When>,
        keys: &[K],
    ) -> Result<Watch<K, O>, WatchError<O>> {
        if keys.is_empty() {
            return Err(WatchError::NoKeys(operation));
        }
        let Registration { service, shards, .. } = &*self.shared.registration;
        // Any shard knows the timer's name.
        match shards.catch_panic(0, || operation.try_complete()) {
            Some(false) => {
                let (hash, hash_of) = (self.hash(&keys[0]), |key: &K| self.hash(key));
                let new = (operation, timeout.into());
                let added = OperationRef::watch(shards, &service.context, new, keys, hash, hash_of);
                return Ok(added?.map_or(Watch::Completed, |added| Watch::Pending(Pending(added))));
            }
            Some(true) => {
                let number = shards.of_thread(thread_number());
                shards.count_at_once(number);
                shards.conclude(number, operation, O::on_complete);
            }
            None => {
                let number = shards.of_thread(thread_number());
                shards.count_panic(number);
                shards.conclude(number, operation, |_| ());
            }
        }
        Ok(Watch::Completed)
    }

    /// How many entries are watched: an operation counts once for each of its keys. Looks at each
    /// shard once, at no operation.
    pub fn watched(&self) -> usize {
        self.shared.shards().sum(|shard| shard.watchers.len())
    }

    /// How many operations wait. Looks at each shard once, at no operation.
    pub fn delayed(&self) -> usize {
        self.shared.shards().sum(|shard| shard.core.len())
    }

    /// What the purgatory has done so far. Looks at each shard once.
    pub fn stats(&self) -> PurgatoryStats {
        let shards = self.shared.shards();
        let (completed_at_once, panicked) = shards.counts();
        let mut stats = PurgatoryStats { completed_at_once, panicked, ..PurgatoryStats::default() };
        for number in shards.numbers() {
            let shard = shards.lock(number);
            let ended = |by: EndedBy| shard.ended[by as usize];
            stats.watched += shard.watchers.len();
            stats.delayed += shard.core.len();
            stats.completed_at_once += ended(EndedBy::AtOnce);
            stats.completed_by_trigger += ended(EndedBy::Triggered);
            stats.completed_by_force += ended(EndedBy::Forced);
            stats.expired += ended(EndedBy::Expired);
            stats.cancelled += ended(EndedBy::Cancelled);
        }
        stats
    }

    /// Refuses what comes from now on, and returns the operations that wait: none of them is
    /// completed, none expires. The timer goes on.
    ///
    /// One that another thread is checking at this moment can't be returned: that thread calls its
    /// [`on_cancellation`](DelayedOperation::on_cancellation). One that is being added goes back to
    /// whoever adds it. Either is completed instead if that check finds that its condition holds.
    /// May be called again, and from an operation's code.
    pub fn shutdown(&self) -> Vec<O> {
        self.shared.shutdown()
    }

    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        key_map::spread(&self.hasher, key)
    }

    /// Checks every structure inside and panics if one is broken: for tests, while no other thread
    /// uses the purgatory. Takes time proportional to what is watched.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.shared.shards().assert_invariants(None);
    }
}

impl<K, O> Shared<K, O>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn shards(&self) -> &'static Shards<K, O> {
        self.registration.shards
    }

    fn shutdown(&self) -> Vec<O> {
        let shards = self.shards();
        shards.close();
        let (mut pending, mut waiting) = (Vec::new(), Vec::new());
        for number in shards.numbers() {
            // Nothing comes in any more, and nothing moves, so these are all. A part at a time, so
            // that the lock is never held for long.
            for part in 0.. {
                let more = shards.lock(number).waiting(part, &mut waiting);
                let cancel = |id| OperationRef { shards, id }.cancel().1;
                pending.extend(waiting.drain(..).filter_map(cancel));
                if !more {
                    break;
                }
            }
        }
        pending
    }
}

impl<K, O> Drop for Shared<K, O>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn drop(&mut self) {
        let shards = self.shards();
        let number = shards.of_thread(thread_number());
        let pending = self.shutdown().into_iter();
        pending.for_each(|operation| shards.conclude(number, operation, |_| ()));
        self.registration.retire(&self.timer);
    }
}

impl<K, O, S: Clone> Clone for Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn clone(&self) -> Self {
        Purgatory { shared: Arc::clone(&self.shared), hasher: self.hasher.clone() }
    }
}

impl<K, O, S> fmt::Debug for Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Purgatory").finish_non_exhaustive()
    }
}
