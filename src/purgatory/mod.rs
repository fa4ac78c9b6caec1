//! The purgatory: where delayed operations wait until they can be completed, and their handles.

use crate::engine::clock::When;
use crate::engine::shard::{AnyShard, ShardState};
use crate::purgatory::agenda::{Item, Nesting, enter, queue};
use crate::purgatory::check::Call;
use crate::purgatory::shard::{
    LockedShard, OperationSet, cancel_all, claim, leave, shutdown, visit, visit_all, with_shard,
};
use crate::purgatory::source::OperationSource;
use crate::purgatory::state::EndedBy;
use crate::purgatory::watchers::{Id, Spots};
use crate::sync::atomic::Ordering;
use crate::sync::home;
use crate::table::{self, shard_of};
use crate::timer::Timer;
use crate::timer::registered::Registered;
use crate::wheel::tick::Due;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Deref;
use std::sync::Arc;

pub(crate) mod agenda;
pub(crate) mod future;
pub(crate) mod operation;
pub(crate) mod check;
pub(crate) mod shard;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod watchers;

pub use crate::purgatory::future::{FutureOperation, Wait, Waited};
pub use crate::purgatory::operation::{Cancel, DelayedOperation, Stats, WatchError};

/// Shards for each hardware thread. An operation takes six locks. With half as many shards, two
/// threads take 12 % longer. With twice as many, they take 8 % less, but one thread takes 4 % more.
const SHARDS: usize = 16;

/// Holds delayed operations, each until its condition holds or its timeout has passed.
///
/// ```
/// # use std::time::Duration;
/// # use tickwheel::{Timer, purgatory::{DelayedOperation, Purgatory}};
/// # struct Fetch;
/// # impl DelayedOperation for Fetch {
/// #     fn try_complete(&mut self) -> bool { false }
/// #     fn on_complete(&mut self) {}
/// # }
/// let timer = Timer::builder().start()?;
/// let fetches = Purgatory::new(&timer);
/// // Fetch is your `DelayedOperation`: a fetch of a partition, which waits for half a second.
/// fetches.try_complete_else_watch(Fetch, Duration::from_millis(500), &["orders-0"])?;
/// // Something was appended to the partition: what waits for it is checked again.
/// fetches.check_and_complete("orders-0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An operation is watched on keys: the partitions that a fetch reads, the group that a member
/// joins. Code that changes something calls [`check_and_complete`](Self::check_and_complete) with
/// the key. The purgatory then checks the key's operations. An operation that has ended is removed
/// at once from all its keys and from the timer.
///
/// A purgatory keeps its timer alive. Clones share one purgatory; an operation that holds a clone
/// keeps the purgatory alive. Dropping the last clone drops the pending operations without calling
/// their code, except for an operation that is being checked. [`shutdown`](Self::shutdown) returns
/// them instead.
///
/// Keys are compared, cloned and dropped under a lock. Their `Eq`, `Borrow`, `Clone` and `Drop`
/// must not use the purgatory, and their `Drop` must not panic. A look-up takes any borrowed form
/// of a key, such as a `&str` for a `String`.
///
/// Keys lie in shards: at least 16 for each hardware thread, and at most 4096. A shard's table is
/// rebuilt under the shard's lock when its keys have doubled or have become few, or, now and then,
/// while keys come and go, in time proportional to them. The documented times are averages: a call
/// that triggers a rebuild takes longer.
///
/// Modelled on Apache Kafka's `DelayedOperationPurgatory`. The page
/// [`guide::purgatory`](crate::guide::purgatory) has examples and lists the differences.
pub struct Purgatory<K: 'static, O: 'static, S = RandomState> {
    /// Dropped with the last clone: operations refer only to the set of shards.
    registered: Arc<Registered<OperationSource<K, O>>>,
    hasher: S,
}

impl<K: Hash + Eq + Clone + Send + 'static, O: DelayedOperation> Purgatory<K, O> {
    /// Creates an empty purgatory whose operations expire on `timer`. Any number of purgatories may
    /// share a timer.
    #[must_use]
    pub fn new<U: 'static>(timer: &Timer<U>) -> Self {
        Self::with_hasher(timer, RandomState::new())
    }
}

impl<K, O, S> Purgatory<K, O, S>
where
    K: Hash + Eq + Clone + 'static,
    O: DelayedOperation,
    S: BuildHasher,
{
    /// Creates an empty purgatory as [`new`](Self::new) does, but hashes its keys with `hasher`.
    pub fn with_hasher<U: 'static>(timer: &Timer<U>, hasher: S) -> Self
    where
        K: Send,
    {
        Purgatory {
            registered: Registered::new(timer.closures(), SHARDS, OperationSource::new),
            hasher,
        }
    }

    /// Completes an operation if its condition holds; otherwise watches it on `keys` for at most
    /// `timeout`.
    ///
    /// The condition is checked twice, however many keys there are: at once, and again when the
    /// operation is watched on all of them. If a thread makes the condition true and then triggers
    /// a key, the operation always completes: by that trigger, or by the second check. A key that
    /// is named twice is watched twice.
    ///
    /// An operation whose deadline has passed expires at the timer's next turn. The call takes time
    /// proportional to the number of keys, and waits only for locks that are held for a bounded
    /// time.
    ///
    /// # Errors
    /// [`WatchError`] returns the operation:
    ///
    /// - `NoKeys` if `keys` is empty; the condition is not checked then;
    /// - `Full` if the first check fails and the timer is full;
    /// - `Shutdown` if the first check fails after a [`shutdown`](Self::shutdown) of the purgatory
    ///   or its timer.
    pub fn try_complete_else_watch(
        &self,
        mut operation: O,
        timeout: impl Into<When>,
        keys: &[K],
    ) -> Result<Watch<K, O>, WatchError<O>> {
        if keys.is_empty() {
            return Err(WatchError::NoKeys(operation.into()));
        }
        let set = self.set();
        self.call(|call| {
            let Some(ended_by) = call.condition(&mut operation, EndedBy::AtOnce) else {
                let due = self.source().shards.context.time.due(timeout.into());
                let added = call.watch(operation, due, keys, |key| self.hash(key))?;
                return Ok(added.map_or(Watch::Completed, |id| Watch::Pending(Pending { set, id })));
            };
            // In a shard of the calling thread's, so that threads do not contend.
            set[home() & (set.len() - 1)].lock().extra.ended[ended_by as usize] += 1;
            call.panics.conclude(call.nesting, operation, ended_by);
            Ok(Watch::Completed)
        })
    }

    /// Returns how many operations are waiting. Locks each shard once, in time proportional to the
    /// shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.set().iter().map(|shard| shard.len()).sum()
    }

    /// Returns whether no operation is waiting, at the cost of [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the purgatory's counters. Locks each shard once.
    pub fn stats(&self) -> Stats {
        let panicked = self.source().panics.count.load(Ordering::Relaxed);
        let mut stats = Stats {
            panicked,
            ..Stats::default()
        };
        for shard in self.set() {
            let state = shard.lock();
            let ended = |by: EndedBy| state.extra.ended[by as usize];
            stats.watched += state.extra.watchers.len;
            stats.delayed += state.len();
            stats.completed_at_once += ended(EndedBy::AtOnce);
            stats.completed_by_trigger += ended(EndedBy::Triggered);
            stats.completed_by_force += ended(EndedBy::Forced);
            stats.expired += ended(EndedBy::Expired);
            stats.cancelled += ended(EndedBy::Cancelled);
        }
        stats
    }

    /// Refuses further operations, and returns the waiting ones, which neither complete nor expire.
    /// Does not shut the timer down.
    ///
    /// It does not return:
    ///
    /// - an operation that another thread is checking, which ends as for [`Cancel::Deferred`];
    /// - an operation that is being added, which is returned to the adding thread, unless its check
    ///   finds that the condition holds;
    /// - an operation that has ended. Its callback may still run when this call returns.
    ///
    /// May be called more than once, and from an operation's code.
    pub fn shutdown(&self) -> Vec<O> {
        shutdown(self.set())
    }

    /// Checks the operations that are watched on `key`, in the order in which they were added, and
    /// completes those whose condition holds. Returns how many this call completed.
    ///
    /// Call this after the change, and after releasing any lock that `try_complete` takes. Each
    /// operation's `on_complete` is called before the next check.
    ///
    /// On a key without operations it costs a hash and a lock. Otherwise it takes time proportional
    /// to the key's operations, and takes a few dozen out of the shard at a time. An operation
    /// whose deadline has passed is checked until the executor expires it.
    ///
    /// If the operations that come next end during a check, the call looks for its place from the
    /// front of the key. On a key whose checks keep ending their neighbours, the time may be
    /// proportional to the square of the key's operations.
    ///
    /// # Inside an operation's code
    /// A call from a check or a callback, of any purgatory, is queued and returns 0. The call that
    /// runs this code makes the queued call afterwards, together with the callbacks of operations
    /// that ended meanwhile. No call counts these completions. No chain of operations needs a deep
    /// stack.
    ///
    /// A call from a [`try_complete`](DelayedOperation::try_complete) is dropped unless that check
    /// returns true. Do not rely on a check that returns false to pass a trigger on.
    ///
    /// # Beside other threads
    /// An operation that another thread is checking is left to that thread, which checks it again.
    /// This call does not count it. While triggers arrive, that thread makes up to eight checks,
    /// and leaves the ninth to the timer's executor, in its next turn. No call serves others
    /// without bound, and no trigger is lost. After a `shutdown` of the timer nobody makes the
    /// ninth check: trigger the key again.
    pub fn check_and_complete<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.check_and_complete_up_to(key, usize::MAX)
    }

    /// Checks the operations that are watched on `key` until this call has completed `limit` of
    /// them. Returns how many it completed.
    ///
    /// Use it for a change that serves a limited number of operations, such as an item that one of
    /// many waiting workers takes. If the first worker takes the item, this costs one check;
    /// [`check_and_complete`](Self::check_and_complete) checks all workers. A `limit` of 0 checks
    /// nothing; `usize::MAX` checks all operations.
    ///
    /// ```
    /// use std::collections::VecDeque;
    /// use std::sync::{Arc, Mutex, mpsc};
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    /// use tickwheel::purgatory::{DelayedOperation, Purgatory};
    ///
    /// type Jobs = Arc<Mutex<VecDeque<u32>>>;
    ///
    /// /// A worker that waits for a job.
    /// struct Worker {
    ///     jobs: Jobs,
    ///     job: Option<u32>,
    ///     response: mpsc::Sender<Option<u32>>,
    /// }
    ///
    /// impl DelayedOperation for Worker {
    ///     // Takes the job: an operation that returns true here is completed in any case.
    ///     fn try_complete(&mut self) -> bool {
    ///         self.job = self.jobs.lock().unwrap().pop_front();
    ///         self.job.is_some()
    ///     }
    ///
    ///     // `None` if the time is up. If the worker has gone, its job goes to another one.
    ///     fn on_complete(&mut self) {
    ///         if let Err(mpsc::SendError(Some(job))) = self.response.send(self.job.take()) {
    ///             self.jobs.lock().unwrap().push_front(job); // Then trigger the key again.
    ///         }
    ///     }
    /// }
    ///
    /// let timer = Timer::builder().start()?;
    /// let workers = Purgatory::new(&timer);
    /// let jobs = Jobs::default();
    /// let (response, answers) = mpsc::channel();
    /// for _ in 0..10_000 {
    ///     let worker = Worker { jobs: Arc::clone(&jobs), job: None, response: response.clone() };
    ///     let max_wait = Duration::from_secs(30);
    ///     assert!(!workers.try_complete_else_watch(worker, max_wait, &["mails"])?.is_completed());
    /// }
    ///
    /// jobs.lock().unwrap().push_back(7); // Released, then:
    /// assert_eq!(workers.check_and_complete_up_to("mails", 1), 1); // one check, not 10,000.
    /// assert_eq!(answers.try_recv()?, Some(7));
    ///
    /// jobs.lock().unwrap().extend([8, 9]);
    /// assert_eq!(workers.check_and_complete_up_to("mails", 2), 2);
    /// assert_eq!(workers.watched_for("mails"), 9_997);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The longest waiter is checked first. Only operations that were watched when the call began
    /// are checked, each at most once for each time that it named the key. Operations that [other
    /// threads](Self::check_and_complete) check do not count, so a check may be in vain. A result
    /// below `limit` means that each operation was checked, or left to a thread that checks it
    /// again. Calls on several threads at once may each complete as many operations as their own
    /// limit allows.
    ///
    /// # No item is left while an operation waits for it
    /// That holds on three conditions:
    ///
    /// - A thread that adds items calls this afterwards, with their number as the `limit`.
    /// - Every completed operation takes at least one item in its
    ///   [`try_complete`](DelayedOperation::try_complete).
    /// - Every operation accepts any item.
    ///
    /// Operations that wait for different items need different keys, or `check_and_complete`. An
    /// event that completes operations without an item, such as the end of the queue, needs
    /// `check_and_complete` too.
    ///
    /// # Cost
    /// Takes time proportional to the operations that it checks, including waiters that take no
    /// item. It takes at most as many operations out of the shard at a time as are still to be
    /// completed. With a small limit, each check in vain costs an additional lock.
    pub fn check_and_complete_up_to<Q: Hash + Eq + ?Sized>(&self, key: &Q, limit: usize) -> usize
    where
        K: Borrow<Q>,
    {
        self.call(|call| {
            if !call.nesting.is_outermost {
                self.queue_check(key, limit);
                return 0;
            }
            self.visit(key, limit, |batch| {
                let completed = call.check_all(batch);
                call.nesting.work_off();
                completed
            })
        })
    }

    /// Returns how many operations are watched on `key`. An operation that named the key twice
    /// counts twice.
    ///
    /// Counts block by block, seven entries in each, and touches no operation. Takes time
    /// proportional to the blocks, and holds the lock for a few dozen of them at a time.
    pub fn watched_for<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let set = self.set();
        let hash = self.hash(key);
        let shard = &set[shard_of(hash, set.len())];
        let mut count = 0;
        let mut rest = shard.with_lock(|state| state.extra.watchers.visit(hash, key));
        while let Some(visit) = rest {
            rest = shard.with_lock(|state| state.extra.watchers.count(visit, &mut count));
        }
        count
    }

    /// Visits the watched keys in steps, for a list of what waits. Calls `visit` with some keys and
    /// with how many operations are watched on each. Returns the position of the next step.
    ///
    /// A key with many operations is visited more than once: add its counts up.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use std::time::Duration;
    /// # use tickwheel::{Timer, purgatory::Purgatory};
    /// # let timer = Timer::builder().build()?;
    /// # let fetches = Purgatory::new(&timer);
    /// # let waits: Vec<_> = (0..20)
    /// #     .map(|_| fetches.wait(|| false, Duration::MAX, &["orders-0", "orders-1"]))
    /// #     .collect();
    /// let mut waiting = HashMap::new();
    /// let mut position = Some(0);
    /// while let Some(from) = position {
    ///     position = fetches.visit_keys_from(from, |key, count| {
    ///         *waiting.entry(*key).or_insert(0) += count;
    ///     });
    /// }
    /// assert_eq!(waiting, HashMap::from([("orders-0", 20), ("orders-1", 20)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Begin at position 0; `None` is the end. Any number is a valid position. All steps together
    /// count an operation that waits throughout once for each time that it named the key.
    /// Operations that are added or end meanwhile may be counted or not.
    ///
    /// A step visits at most 32 keys, and at least one if there is one from its position on. It
    /// clones these keys under a shard's lock, and calls `visit` without a lock.
    pub fn visit_keys_from(&self, position: u64, mut visit: impl FnMut(&K, usize)) -> Option<u64> {
        // A shard's ordinal, above 32 bits for the number of a chunk of blocks.
        let mut ordinal = usize::try_from(position >> 32).ok()?;
        let mut chunk = (position & u64::from(u32::MAX)) as usize;
        while let Some(shard) = self.set().get(ordinal) {
            let Some(keys) = shard.lock_by_trying().extra.watchers.keys_of(chunk) else {
                ordinal += 1;
                chunk = 0;
                continue;
            };
            chunk += 1;
            keys.iter().for_each(|(key, count)| visit(key, *count));
            if !keys.is_empty() {
                return Some((ordinal as u64) << 32 | chunk as u64);
            }
        }
        None
    }

    /// Removes the operations that are watched on `key` from *all* their keys and from the timer.
    /// Returns them in the order in which they were added.
    ///
    /// An operation that another thread is checking is not returned, and ends as for
    /// [`Cancel::Deferred`]. An operation that is being added is left alone.
    pub fn cancel_for_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Vec<O>
    where
        K: Borrow<Q>,
    {
        let mut cancelled = Vec::new();
        let set = self.set();
        self.visit(key, usize::MAX, |batch| {
            let claims = batch.iter().map(|id| claim(set, *id, EndedBy::Cancelled));
            cancelled.extend(claims.filter_map(Cancel::into_operation));
            0
        });
        cancelled
    }

    /// Removes all waiting operations from their keys and from the timer, and returns them, in no
    /// particular order. The purgatory stays open; [`shutdown`](Self::shutdown) also closes it.
    ///
    /// An operation that another thread is checking is not returned, and ends as for
    /// [`Cancel::Deferred`]. An operation that is added during the call may be left alone.
    pub fn cancel_all(&self) -> Vec<O> {
        cancel_all(self.set())
    }

    /// Completes all waiting operations, whether their conditions hold or not, in no particular
    /// order. Returns how many this call completed. The purgatory stays open.
    ///
    /// Use it when everybody is to be answered: the broker closes, or loses its partitions. Each
    /// operation is completed as by [`force_complete`](Pending::force_complete), also one that
    /// another thread is checking. An operation that is added during the call may be left alone.
    /// To check all operations instead, trigger their keys.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{Timer, purgatory::{DelayedOperation, Purgatory}};
    /// # struct Fetch;
    /// # impl DelayedOperation for Fetch {
    /// #     fn try_complete(&mut self) -> bool { false }
    /// #     fn on_complete(&mut self) {}
    /// # }
    /// # let timer = Timer::builder().start()?;
    /// let fetches = Purgatory::new(&timer);
    /// let max_wait = Duration::from_secs(30);
    /// assert!(!fetches.try_complete_else_watch(Fetch, max_wait, &["orders-0"])?.is_completed());
    /// assert_eq!(fetches.force_complete_all(), 1); // Calls the fetch's `on_complete`.
    /// assert!(fetches.shutdown().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn force_complete_all(&self) -> usize {
        let set = self.set();
        let mut completed = 0;
        visit_all(set, |id| {
            completed += usize::from(Pending { set, id }.force_complete());
        });
        completed
    }

    /// Panics if an internal structure is broken: for tests, while no other thread uses the
    /// purgatory.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.set()
            .iter()
            .for_each(|shard| shard.lock().assert_operations());
    }

    /// Queues a check of `key`'s operations, for a call from an operation's code.
    #[cold]
    fn queue_check<Q: Hash + Eq + ?Sized>(&self, key: &Q, limit: usize)
    where
        K: Borrow<Q>,
    {
        let set = self.set();
        let hash = self.hash(key);
        let shard = &set[shard_of(hash, set.len())];
        // A borrowed key cannot be cloned: a visit names the key's queue instead.
        let Some(named) = shard.with_lock(|state| state.extra.watchers.visit(hash, key)) else {
            return;
        };
        // Keeps the shards from serving another purgatory meanwhile.
        let source = Arc::clone(self.source());
        let act = move |nesting: &Nesting<'_>| {
            let call = Call {
                set,
                panics: &source.panics,
                nesting,
            };
            visit(
                shard,
                |it| it.visit_again(named),
                limit,
                |batch| call.check_all(batch),
            );
        };
        queue(Item {
            is_trigger: true,
            act: Box::new(act),
        });
    }

    /// Makes a call that may run operations' code.
    #[inline]
    fn call<R>(&self, act: impl FnOnce(&Call<'_, K, O>) -> R) -> R {
        let panics = &self.source().panics;
        enter(|nesting| {
            act(&Call {
                set: self.set(),
                panics,
                nesting,
            })
        })
    }

    /// Calls `see` with the operations that are watched on a key now; see [`visit`].
    fn visit<Q: Hash + Eq + ?Sized>(
        &self,
        key: &Q,
        limit: usize,
        see: impl FnMut(&[Id]) -> usize,
    ) -> usize
    where
        K: Borrow<Q>,
    {
        let set = self.set();
        let hash = self.hash(key);
        let shard = &set[shard_of(hash, set.len())];
        visit(shard, |watchers| watchers.visit(hash, key), limit, see)
    }

    #[inline]
    fn source(&self) -> &Arc<OperationSource<K, O>> {
        &self.registered.source
    }

    #[inline]
    fn set(&self) -> OperationSet<K, O> {
        self.source().shards.set
    }

    #[inline]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        table::spread(&self.hasher, key)
    }
}

/// The result of
/// [`Purgatory::try_complete_else_watch`](crate::purgatory::Purgatory::try_complete_else_watch) for
/// an accepted operation.
pub enum Watch<K: 'static, O: 'static> {
    /// The operation has ended: its condition held at a check, or a check panicked. If the
    /// condition held, `on_complete` was called; inside another operation's code, it is called once
    /// that code returns.
    Completed,
    /// The operation is watched on all its keys. Dropping the handle changes nothing.
    Pending(Pending<K, O>),
}

impl<K, O> Watch<K, O> {
    /// Returns whether the operation ended at once.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, Watch::Completed)
    }

    /// Returns the handle, if the operation is watched.
    #[must_use]
    pub fn pending(self) -> Option<Pending<K, O>> {
        match self {
            Watch::Completed => None,
            Watch::Pending(pending) => Some(pending),
        }
    }
}

/// The handle of a watched operation: completes, cancels or moves it.
///
/// A handle takes 32 bytes on a 64-bit machine. Dropping it changes nothing, and takes no lock.
/// Keep it as long as you like, even beyond the purgatory: a handle keeps neither operation nor
/// timer alive, and never affects another operation.
pub struct Pending<K: 'static, O: 'static> {
    set: OperationSet<K, O>,
    id: Id,
}

impl<K: Eq + Clone + 'static, O: DelayedOperation> Pending<K, O> {
    /// Returns whether the operation is still waiting, with its end undecided. Inside its own
    /// `on_complete` it is not. Only its callbacks tell how it ended.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        with_shard(self.set, self.id, |state| state.is_pending(self.id.key))
    }

    /// Completes the operation, whether its condition holds or not. Returns whether this call did
    /// so: of all triggers, the expiry, `force_complete` and `cancel`, exactly one wins.
    ///
    /// Calls `on_complete` before it returns; inside an operation's code, after that code has
    /// returned. Never waits for another thread's check: that thread then calls `on_complete`. The
    /// operation counts as forced even if that check finds that the condition holds. If that check
    /// panics, the operation ends without `on_complete`.
    pub fn force_complete(&self) -> bool {
        let set = self.set;
        let key = self.id.key;
        let mut spots = Spots::NONE;
        let (claimed, panics) = with_shard(set, self.id, |state| {
            (
                state.claim(key, EndedBy::Forced, &mut spots),
                state.extra.panics.clone(),
            )
        });
        leave(set, &spots);
        match (claimed, panics) {
            (Cancel::Cancelled(operation), Some(panics)) => {
                enter(|nesting| panics.conclude(nesting, operation, EndedBy::Forced));
                true
            }
            (claimed, _) => matches!(claimed, Cancel::Deferred),
        }
    }

    /// Removes the operation from all its keys and the timer, and returns it. Never waits for a
    /// check that is under way.
    pub fn cancel(&self) -> Cancel<O> {
        claim(self.set, self.id, EndedBy::Cancelled)
    }

    /// Extends the time that the operation waits, and never shortens it. Returns whether the
    /// operation was waiting with time left. Takes constant time.
    ///
    /// Works during the timer's `shutdown` until the reaper has stopped. After that it changes
    /// nothing and returns false.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::purgatory::Purgatory;
    /// # use tickwheel::{ManualClock, Timer};
    /// # struct Fetch;
    /// # impl tickwheel::purgatory::DelayedOperation for Fetch {
    /// #     fn try_complete(&mut self) -> bool { false }
    /// #     fn on_complete(&mut self) {}
    /// # }
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let fetches = Purgatory::new(&timer);
    /// let second = Duration::from_secs(1);
    /// let watch = fetches.try_complete_else_watch(Fetch, second, &["orders-0"])?;
    /// let fetch = watch.pending().unwrap();
    /// clock.run_for(second / 2);
    /// assert!(fetch.touch(second)); // The client asks for more time.
    /// clock.run_for(second / 2);
    /// assert!(fetch.is_pending());
    /// clock.run_for(second / 2);
    /// assert!(!fetch.touch(second)); // It has expired.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch(&self, when: impl Into<When>) -> bool {
        self.moved(when.into(), ShardState::extend)
    }

    /// Shortens the time that the operation waits, and never extends it. Returns whether the
    /// operation was waiting with time left, as [`touch`](Self::touch) does.
    ///
    /// Use it for several callers with different time limits: in any order of calls, the earliest
    /// counts. With a delay of zero the operation expires at the timer's next turn.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::purgatory::Purgatory;
    /// # use tickwheel::{ManualClock, Timer};
    /// # struct Fetch;
    /// # impl tickwheel::purgatory::DelayedOperation for Fetch {
    /// #     fn try_complete(&mut self) -> bool { false }
    /// #     fn on_complete(&mut self) {}
    /// # }
    /// # let clock = ManualClock::new();
    /// # let timer = Timer::builder().clock(clock.clone()).build()?;
    /// # let fetches = Purgatory::new(&timer);
    /// # let second = Duration::from_secs(1);
    /// let watch = fetches.try_complete_else_watch(Fetch, 30 * second, &["orders-0"])?;
    /// let fetch = watch.pending().unwrap();
    /// assert!(fetch.hasten(5 * second) && fetch.hasten(60 * second));
    /// clock.run_for(5 * second);
    /// assert!(!fetch.is_pending());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hasten(&self, when: impl Into<When>) -> bool {
        self.moved(when.into(), ShardState::hasten)
    }

    /// Moves the end of the time that the operation waits, earlier or later. Returns whether the
    /// operation was waiting with time left, as [`touch`](Self::touch) does.
    ///
    /// Moving to an earlier deadline costs as much as filing a new timer.
    pub fn reschedule(&self, when: impl Into<When>) -> bool {
        self.moved(when.into(), ShardState::move_to)
    }

    fn moved(&self, when: When, change: impl FnOnce(&mut LockedShard<K, O>, u32, Due)) -> bool {
        with_shard(self.set, self.id, |state| {
            state.moved(self.id.key, when, change)
        })
    }

    /// Returns a guard that cancels the operation when dropped, for example with its connection.
    pub fn cancel_on_drop(self) -> CancelPendingOnDrop<K, O> {
        CancelPendingOnDrop(self)
    }
}

/// A [`Pending`] that cancels its operation when dropped. The operation is dropped without a call
/// to its code. An operation that another thread is checking ends as for [`Cancel::Deferred`]. An
/// operation that has ended is not affected.
///
/// ```
/// # use std::time::Duration;
/// # use tickwheel::{Timer, purgatory::{DelayedOperation, Purgatory}};
/// # struct Fetch;
/// # impl DelayedOperation for Fetch {
/// #     fn try_complete(&mut self) -> bool { false }
/// #     fn on_complete(&mut self) { unreachable!("the connection was closed before") }
/// # }
/// # let timer = Timer::builder().start()?;
/// # let fetches = Purgatory::new(&timer);
/// let watch = fetches.try_complete_else_watch(Fetch, Duration::MAX, &["orders-0"])?;
/// let connection = watch.pending().map(|pending| pending.cancel_on_drop());
/// assert!(connection.as_ref().is_some_and(|fetch| fetch.is_pending()));
/// drop(connection);
/// assert!(fetches.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropped at once, it cancels at once"]
pub struct CancelPendingOnDrop<K: Eq + Clone + 'static, O: 'static>(Pending<K, O>);

/// A guard can do what the handle can.
impl<K: Eq + Clone, O> Deref for CancelPendingOnDrop<K, O> {
    type Target = Pending<K, O>;

    fn deref(&self) -> &Pending<K, O> {
        &self.0
    }
}

impl<K: Eq + Clone, O> Drop for CancelPendingOnDrop<K, O> {
    fn drop(&mut self) {
        // Not `cancel`, which would demand of every struct around a guard that `O` is an operation.
        drop(claim(self.0.set, self.0.id, EndedBy::Cancelled));
    }
}

impl<K, O> fmt::Debug for Watch<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Watch::Completed => f.write_str("Completed"),
            Watch::Pending(pending) => f.debug_tuple("Pending").field(pending).finish(),
        }
    }
}

impl<K: Eq + Clone, O> fmt::Debug for CancelPendingOnDrop<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelPendingOnDrop").field(&self.0).finish()
    }
}

impl<K, O> fmt::Debug for Pending<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl<K, O, S: Clone> Clone for Purgatory<K, O, S> {
    fn clone(&self) -> Self {
        Purgatory {
            registered: Arc::clone(&self.registered),
            hasher: self.hasher.clone(),
        }
    }
}

impl<K, O, S> fmt::Debug for Purgatory<K, O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Purgatory").finish_non_exhaustive()
    }
}
