//! The purgatory: where delayed operations wait until they can be completed.

pub(crate) mod adding;
pub(crate) mod callbacks;
pub(crate) mod error;
pub(crate) mod future;
pub(crate) mod nesting;
pub(crate) mod operation_ref;
pub(crate) mod operation;
pub(crate) mod pending;
pub(crate) mod place;
pub(crate) mod set;
pub(crate) mod operations;
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

use crate::purgatory::operation_ref::{OperationRef, shutdown};
use crate::purgatory::operations::Operations;
use crate::purgatory::state::EndedBy;
use crate::store::table;
use crate::timer::Timer;
use crate::timer::entry::When;
use crate::timer::owner::Set;
use crate::timer::part::Part;
use crate::timer::report::catch_panic_of;
use crate::timer::shard::Body;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

/// Where delayed operations wait, each until its condition holds or its time is up.
///
/// An operation is watched on keys: the partitions that a fetch reads, the group that a member
/// joins. Code that changes something calls [`check_and_complete`](Self::check_and_complete) with
/// the key, and the purgatory asks the operations there whether they can be completed now. An
/// operation that has ended, in whichever way, is removed at once from all its keys and from the
/// timer.
///
/// Keys are compared, cloned and dropped under a lock, so their `Eq`, `Clone` and `Drop` must not
/// use the purgatory, and their `Drop` must not panic. A method that only looks a key up takes any
/// borrowed form of it, such as a `&str` for a `String`.
///
/// The keys lie in shards: at least 8 for each hardware thread, and at most 4096. Each shard's
/// table of keys is rebuilt, under the shard's lock, when its keys have doubled or have become few.
/// A rebuild takes time proportional to the keys in the shard. The documented times are averages:
/// a call that triggers a rebuild takes longer.
///
/// A purgatory keeps its timer alive. Clones share one purgatory; an operation that holds a clone
/// keeps it alive. Dropping the last clone drops the pending operations without calling their code;
/// [`shutdown`](Self::shutdown) returns them instead.
///
/// Modelled on Apache Kafka's purgatory (`DelayedOperationPurgatory`). The page
/// [`guide::purgatory`](crate::guide::purgatory) has examples, and lists the differences.
pub struct Purgatory<K, O, S = RandomState>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Dropped with the last clone; operations refer to the set of shards only.
    part: Arc<Part<Operations<K, O>>>,
    hasher: S,
}

impl<K, O> Purgatory<K, O>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Creates an empty purgatory whose operations expire on `timer`. Any number of purgatories may
    /// share a timer.
    #[must_use]
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
    /// Creates an empty purgatory that hashes its keys with `hasher`; otherwise like
    /// [`new`](Self::new).
    pub fn with_hasher<U: Send + 'static>(timer: &Timer<U>, hasher: S) -> Self {
        let part = Part::<Operations<K, O>>::new(timer.closures(), ());
        for shard in part.owned.shards.set.iter() {
            let executor = Arc::downgrade(timer.base().closures().homes());
            shard.with(|body| body.content.executor = executor);
        }
        Purgatory { part, hasher }
    }

    /// Completes an operation if its condition holds; otherwise watches it on `keys` for at most
    /// `timeout`.
    ///
    /// The condition is checked twice, however many keys there are: first at once, and again when
    /// the operation is watched on all of them. So a thread that makes the condition true and then
    /// triggers one of the keys completes the operation, however the two calls interleave. A key
    /// that is named twice is watched twice.
    ///
    /// `timeout` is a `Duration`, however long, or an `Instant`: the deadline. An operation whose
    /// deadline has passed expires at the timer's next turn. The call takes time proportional to
    /// the number of keys, and waits only for locks that are held for a bounded time.
    ///
    /// # Errors
    /// [`WatchError`] hands the operation back: `NoKeys` if `keys` is empty (the condition is not
    /// checked then); and, if the condition did not hold at the first check, `Full` if the timer is
    /// full, or `Shutdown` after a [`shutdown`](Self::shutdown) of the purgatory or of its timer.
    pub fn try_complete_else_watch(
        &self,
        mut operation: O,
        timeout: impl Into<When>,
        keys: &[K],
    ) -> Result<Watch<K, O>, WatchError<O>> {
        if keys.is_empty() {
            return Err(WatchError::NoKeys(operation));
        }
        let (set, context) = (self.set(), &*self.part.owned.shards.context);
        match catch_panic_of(&context.name, || operation.try_complete()) {
            Some(false) => {
                let (new, hash_of) = ((operation, timeout.into()), |key: &K| self.hash(key));
                let added = OperationRef::watch(set, context, new, keys, hash_of);
                return Ok(added?.map_or(Watch::Completed, |added| Watch::Pending(Pending(added))));
            }
            Some(true) => {
                let id = set.count(EndedBy::AtOnce);
                set.conclude(id, operation, O::on_complete);
            }
            None => {
                let id = set.count(EndedBy::Panicked);
                set.count_panic(id);
                set.conclude(id, operation, |_| ());
            }
        }
        Ok(Watch::Completed)
    }

    /// Returns how many entries are watched: an operation counts once for each of its keys. Locks
    /// each shard once, and takes time proportional to the shards.
    pub fn watched(&self) -> usize {
        self.sum(|body| body.content.watchers.len())
    }

    /// Returns how many operations are waiting. Locks each shard once, and takes time proportional
    /// to the shards.
    pub fn delayed(&self) -> usize {
        self.sum(|body| body.core.len())
    }

    /// Returns what the purgatory has done so far. Locks each shard once.
    pub fn stats(&self) -> PurgatoryStats {
        let mut stats = PurgatoryStats::default();
        self.each(|body| {
            let ended = |by: EndedBy| body.content.ended[by as usize];
            stats.watched += body.content.watchers.len();
            stats.delayed += body.core.len();
            stats.completed_at_once += ended(EndedBy::AtOnce);
            stats.completed_by_trigger += ended(EndedBy::Triggered);
            stats.completed_by_force += ended(EndedBy::Forced);
            stats.expired += ended(EndedBy::Expired);
            stats.cancelled += ended(EndedBy::Cancelled);
            stats.panicked += body.content.panicked;
        });
        stats
    }

    /// Shuts the purgatory down: refuses further operations, and returns those that are waiting,
    /// which neither complete nor expire. The timer is not shut down.
    ///
    /// An operation that another thread is checking at this moment can't be returned: that thread
    /// calls its [`on_cancellation`](DelayedOperation::on_cancellation). An operation that is being
    /// added is handed back to the thread that adds it. Either is completed instead if its check
    /// finds that its condition holds. This may be called more than once, and from an operation's
    /// code.
    pub fn shutdown(&self) -> Vec<O> {
        shutdown(self.set())
    }

    #[inline]
    fn set(&self) -> &'static Set<Operations<K, O>> {
        self.part.owned.shards.set
    }

    /// Calls `see` with one shard after the other.
    fn each(&self, mut see: impl FnMut(&mut Body<Operations<K, O>>)) {
        self.set().iter().for_each(|shard| shard.with(&mut see));
    }

    /// Adds up a figure of all shards.
    fn sum(&self, of: impl Fn(&Body<Operations<K, O>>) -> usize) -> usize {
        self.set().iter().map(|shard| shard.with(|body| of(body))).sum()
    }

    #[inline]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        table::spread(&self.hasher, key)
    }

    /// Checks every internal structure and panics if one is broken: for tests, while no other
    /// thread uses the purgatory. Takes time proportional to what is watched.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.each(|body| body.assert_operations());
    }
}

impl<K, O, S: Clone> Clone for Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn clone(&self) -> Self {
        Purgatory { part: Arc::clone(&self.part), hasher: self.hasher.clone() }
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
