//! A purgatory's shard: the watchers of its keys, and the records of operations whose first key is
//! one of them.
//!
//! No user code is called here except a key's `Eq`, `Clone` and `Drop`. A record is filed in the
//! wheels when the adding thread lets go of its operation. When the time is up, the record is no
//! longer filed, and its task is on its way through the executor. Until the task runs, any thread
//! may end the operation.
//!
//! Invariants, checked by [`LockedShard::assert_operations`] while no operation is being added:
//! those of the watchers; each operation has its entries; and exactly the operations whose time is
//! not up are filed. The source checks those of the wheel.

use crate::engine::clock::When;
use crate::engine::report::catch_panic_of;
use crate::engine::shard::{AnyShard, Extra, Limit, Refusal, Shard, ShardState};
use crate::purgatory::agenda::{Item, Nesting, queue};
use crate::purgatory::operation::{Cancel, DelayedOperation};
use crate::purgatory::state::{EndedBy, Next, OperationState};
use crate::purgatory::watchers::{Id, Spots, Visit, Watchers};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::timer::entry::SharedClosure;
use crate::wheel::bucket::Reference;
use crate::wheel::slab::Key;
use crate::wheel::tick::Due;
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;

/// What a shard keeps beside its records; see the [module](self).
pub(crate) struct Operations<K> {
    pub(crate) watchers: Watchers<K>,
    /// Counters of ended operations, by [`EndedBy`].
    pub(crate) ended: [u64; EndedBy::Withdrawn as usize + 1],
    /// `None` while the shard has no purgatory.
    pub(crate) panics: Option<Arc<Panics>>,
    /// Shared by the shard's tasks, so that tasks do not allocate. Made with the first of them,
    /// because an empty purgatory has very many shards.
    pub(crate) task_closure: Option<SharedClosure>,
}

impl<K> Default for Operations<K> {
    fn default() -> Self {
        Operations {
            watchers: Watchers::default(),
            ended: Default::default(),
            panics: None,
            task_closure: None,
        }
    }
}

impl<K> Extra for Operations<K> {
    fn is_empty(&self) -> bool {
        self.watchers.len == 0
    }
}

pub(crate) type OperationShard<K, O> = Shard<Record<O>, Operations<K>>;
pub(crate) type LockedShard<K, O> = ShardState<Record<O>, Operations<K>>;

/// A purgatory's shards, which handles refer to.
pub(crate) type OperationSet<K, O> = &'static [CachePadded<OperationShard<K, O>>];

pub(crate) struct Record<O> {
    /// One for each key; none while the operation is being added.
    spots: Spots,
    pub(crate) state: OperationState<O>,
}

/// What the adding thread stores with an operation when it lets go of it.
pub(crate) struct Added {
    pub(crate) due: Due,
    /// To the record, to be filed.
    reference: Reference,
    pub(crate) spots: Spots,
}

impl Added {
    pub(crate) fn new(due: Due, keys: usize) -> Self {
        Added {
            due,
            reference: Reference::default(),
            spots: Spots::of(keys),
        }
    }
}

#[inline]
pub(crate) fn with_shard<K, O, R>(
    set: OperationSet<K, O>,
    id: Id,
    act: impl FnOnce(&mut LockedShard<K, O>) -> R,
) -> R {
    set[usize::from(id.shard)].with_lock(act)
}

/// Removes an ended operation from all its keys but the first.
#[inline]
pub(crate) fn leave<K: Eq + Clone, O>(set: OperationSet<K, O>, spots: &Spots) {
    for spot in spots.made(1) {
        set[usize::from(spot.shard)].with_lock(|state| state.extra.watchers.remove(spot));
    }
}

/// Ends an operation, or makes its holder end it.
pub(crate) fn claim<K: Eq + Clone, O>(
    set: OperationSet<K, O>,
    id: Id,
    wants: EndedBy,
) -> Cancel<O> {
    let mut spots = Spots::NONE;
    let claimed = with_shard(set, id, |state| state.claim(id.key, wants, &mut spots));
    leave(set, &spots);
    claimed
}

/// Closes a purgatory's shards, and returns the waiting operations.
pub(crate) fn shutdown<K: Eq + Clone, O>(set: OperationSet<K, O>) -> Vec<O> {
    // First, so that the walk overlooks nothing that is added meanwhile.
    set.iter().for_each(|shard| shard.close());
    cancel_all(set)
}

/// Takes out the waiting operations, except those that another thread checks or adds.
pub(crate) fn cancel_all<K: Eq + Clone, O>(set: OperationSet<K, O>) -> Vec<O> {
    let mut cancelled = Vec::new();
    visit_all(set, |id| {
        let claimed = claim(set, id, EndedBy::Cancelled);
        cancelled.extend(claimed.into_operation());
    });
    cancelled
}

/// Calls `see` with each operation, a chunk at a time and without a lock.
pub(crate) fn visit_all<K, O>(set: OperationSet<K, O>, mut see: impl FnMut(Id)) {
    for (ordinal, shard) in (0..).zip(set) {
        for chunk in 0.. {
            let Some(state) = shard.lock_chunk(chunk) else {
                break;
            };
            let keys: Vec<_> = state.keys_of(chunk).collect();
            drop(state);
            for key in keys {
                see(Id {
                    shard: ordinal,
                    key,
                });
            }
        }
    }
}

/// Calls `see` with the operations of a visit, a batch at a time and without a lock, until its
/// results add up to `limit`. Returns the sum.
pub(crate) fn visit<K: Eq + Clone, O>(
    shard: &OperationShard<K, O>,
    begin: impl Fn(&Watchers<K>) -> Option<Visit>,
    limit: usize,
    mut see: impl FnMut(&[Id]) -> usize,
) -> usize {
    let mut seen = 0;
    let mut batch = Vec::new();
    let mut rest = None;
    loop {
        rest = shard.with_lock(|state| {
            let visit = rest.or_else(|| begin(&state.extra.watchers))?;
            // No more than are still wanted, so that each of them is seen.
            let rest = state.extra.watchers.go_on(visit, limit - seen, &mut batch);
            state.leave_out_ended(&mut batch);
            rest
        });
        seen += see(&batch);
        batch.clear();
        if rest.is_none() || seen >= limit {
            return seen;
        }
    }
}

impl<K: Eq + Clone, O> LockedShard<K, O> {
    pub(crate) fn begin(&mut self, added: &mut Added) -> Result<Id, Refusal> {
        self.admit(Limit::Keep)?;
        let record = Record {
            spots: Spots::NONE,
            state: OperationState::adding(),
        };
        let (key, reference) = self.insert(added.due, record);
        added.reference = reference;
        Ok(Id {
            shard: self.extra.watchers.shard,
            key,
        })
    }

    pub(crate) fn operation(&mut self, key: Key) -> Option<&mut OperationState<O>> {
        self.get_mut(key).map(|record| &mut record.state)
    }

    /// Stores the spots of an operation that is being added.
    #[inline]
    pub(crate) fn settle(&mut self, index: u32, added: &mut Added) {
        let record = self.at_mut(index);
        record.spots = mem::replace(&mut added.spots, Spots::NONE);
    }

    /// Lets go of an operation whose condition is false; returns it to the holder if something else
    /// has to be done. `may_check`: the holder may check again. `added`: what to store for an
    /// operation that is being added.
    pub(crate) fn let_go(
        &mut self,
        key: Key,
        operation: O,
        may_check: bool,
        added: Option<&mut Added>,
    ) -> Next<O> {
        let is_closed = self.is_closed();
        if is_closed && added.is_some() {
            // It goes back to the thread that adds it.
            return Next::End(operation, EndedBy::Withdrawn);
        }
        let record = self.at_mut(key.index);
        let next = record.state.let_go(operation, may_check, !is_closed);
        let Next::LetGo { leaves_check } = next else {
            return next;
        };
        // Under the same lock as before. If the lock were released once the operation is back,
        // another thread could end it, find no spots in the record, and leave its entries under the
        // other keys. The record would then be filed although it is gone.
        if let Some(added) = added {
            self.settle(key.index, added);
            self.file(added.reference, added.due);
        }
        if leaves_check {
            self.file_now(key.index);
        }
        next
    }

    /// Ends an operation that no thread holds; otherwise its holder ends it. Stores spots as
    /// [`finish`](Self::finish) does.
    pub(crate) fn claim(&mut self, key: Key, wants: EndedBy, spots: &mut Spots) -> Cancel<O> {
        let Some(operation) = self.operation(key) else {
            return Cancel::Finished;
        };
        let claimed = operation.end(wants);
        if let Cancel::Cancelled(_) = claimed {
            self.finish(key, wants, spots);
        }
        claimed
    }

    /// Returns an operation whose task runs, to be checked or expired.
    pub(crate) fn run_task(&mut self, key: Key, spots: &mut Spots) -> Option<(O, EndedBy)> {
        let (operation, by) = self.operation(key)?.task_runs()?;
        // Under the lock that takes the operation. Between two locks, a trigger would find a record
        // without an operation, and leave a request that nobody serves. A check keeps the record,
        // because it may put the operation back.
        if by == EndedBy::Expired {
            self.finish(key, by, spots);
        }
        Some((operation, by))
    }

    pub(crate) fn is_pending(&mut self, key: Key) -> bool {
        self.operation(key)
            .is_some_and(|operation| !operation.is_sealed())
    }

    /// Moves a deadline by `change`, unless the time is up or the end is decided.
    pub(crate) fn moved(
        &mut self,
        key: Key,
        when: When,
        change: impl FnOnce(&mut Self, u32, Due),
    ) -> bool {
        let Some(context) = self.open_context() else {
            return false;
        };
        let mut due = context.time.due(when);
        let now = *due.present.get_or_insert_with(|| context.time.now());
        let Some(Record { state, .. }) = self.get(key) else {
            return false;
        };
        let is_waiting = state.is_filed() && !state.is_sealed();
        let awaits_check = state.awaits_check();
        if !is_waiting || self.deadline_at(key.index) <= now {
            return false;
        }
        change(self, key.index, due);
        // The check has to come, although what never expires is filed nowhere, and what has moved
        // is filed for its new deadline only.
        if awaits_check {
            self.file_now(key.index);
        }
        true
    }

    /// Removes an operation's record and its entry in this shard, ended as the holder `wants` or
    /// another thread has requested. Stores the spots of the other entries in `spots`: returning
    /// them would move them once more.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, wants: EndedBy, spots: &mut Spots) -> EndedBy {
        let mut ended_by = wants;
        let ended = self.end_at(key.index, |record, now| {
            ended_by = record.state.finish(wants);
            *spots = mem::replace(&mut record.spots, Spots::NONE);
            (ended_by == EndedBy::Expired).then(now)
        });
        drop(ended.expect("whoever ends an operation holds it"));
        self.extra.ended[ended_by as usize] += 1;
        if let Some(here) = spots.made(0).next() {
            self.extra.watchers.remove(here);
        }
        ended_by
    }

    /// Removes this shard's ended operations from a batch. A loop of its own, so that cache misses
    /// overlap.
    pub(crate) fn leave_out_ended(&mut self, operations: &mut Vec<Id>) {
        // mutants(()): an ended operation is left out when it is claimed as well.
        let shard = self.extra.watchers.shard;
        operations.retain(|id| id.shard != shard || self.is_pending(id.key));
    }

    pub(crate) fn assert_operations(&self) {
        self.extra.watchers.assert_invariants();
        self.assert_invariants(|record| {
            assert!(
                record.spots.made(0).next().is_some(),
                "who waits has entries"
            );
            record.state.is_filed()
        });
    }
}

/// Contains, counts and reports panics of operations' code. Separate from the shards, which may
/// serve another purgatory when the code runs.
pub(crate) struct Panics {
    pub(crate) timer: Arc<str>,
    pub(crate) count: AtomicU64,
}

impl Panics {
    #[inline]
    pub(crate) fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        let returned = catch_panic_of(&self.timer, code);
        if returned.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed); // It publishes nothing.
        }
        returned
    }

    /// Calls the code that ends an operation, and drops the operation: now, or after the code that
    /// this thread is running.
    pub(crate) fn conclude<O: DelayedOperation>(
        self: &Arc<Self>,
        nesting: &Nesting<'_>,
        operation: O,
        by: EndedBy,
    ) {
        if nesting.is_outermost {
            return self.call(operation, by);
        }
        let panics = Arc::clone(self);
        queue(Item {
            is_trigger: false,
            act: Box::new(move |_| panics.call(operation, by)),
        });
    }

    fn call<O: DelayedOperation>(&self, mut operation: O, by: EndedBy) {
        self.catch(|| match by {
            EndedBy::AtOnce | EndedBy::Triggered | EndedBy::Forced => operation.on_complete(),
            EndedBy::Expired => {
                operation.on_complete();
                operation.on_expiration();
            }
            EndedBy::Cancelled => operation.on_cancellation(),
            EndedBy::Panicked | EndedBy::Withdrawn => {}
        });
        self.catch(|| drop(operation));
    }
}
