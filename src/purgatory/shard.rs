//! The operations in a shard of a purgatory: the watchers of its keys, and the records of the
//! operations whose first key is one of them.
//!
//! The record of an operation contains everything that belongs to it: the operation, its state, the
//! spots of its entries, and, in the wheel, its deadline. This is plain data. No user code is
//! called here except a key's `Eq`, `Clone` and `Drop`: operations go in and come out by value.
//!
//! A record is filed in the wheels when the thread that adds the operation lets go of it. It is no
//! longer filed once its time is up and its task is on its way through the executor. Until the
//! task runs, any thread that wins the operation may end it.
//!
//! Invariants, checked by [`OperationsState::assert_operations`] while no operation is being added,
//! and, of the wheel, by the source: those of the watchers; each operation has its entries; and
//! exactly the operations whose time is not up are filed.

use crate::engine::clock::When;
use crate::engine::report::catch_panic_of;
use crate::engine::shard::{AnyShard, Extra, Limit, Refusal, Shard, ShardState};
use crate::purgatory::agenda::{Item, Nesting, queue};
use crate::purgatory::operation::{Cancel, DelayedOperation};
use crate::purgatory::state::{EndedBy, Next, OperationState};
use crate::purgatory::watchers::{Id, Spots, Visit, Watchers};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wheel::bucket::{Entry, Reference};
use crate::wheel::slab::Key;
use crate::wheel::tick::Due;
use crossbeam_utils::CachePadded;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// What a shard keeps beside the records of its operations; see the [module](self).
pub(crate) struct Operations<K> {
    pub(crate) watchers: Watchers<K>,
    /// How many operations have ended, by [`EndedBy`].
    pub(crate) ended: [u64; EndedBy::Withdrawn as usize + 1],
    /// `None` while the shard has no purgatory.
    pub(crate) panics: Option<Arc<Panics>>,
}

impl<K> Default for Operations<K> {
    fn default() -> Self {
        Operations { watchers: Watchers::default(), ended: Default::default(), panics: None }
    }
}

impl<K> Extra for Operations<K> {
    fn is_empty(&self) -> bool {
        self.watchers.len == 0
    }
}

pub(crate) type OperationShard<K, O> = Shard<Record<O>, Operations<K>>;
pub(crate) type OperationsState<K, O> = ShardState<Record<O>, Operations<K>>;

/// All shards of a purgatory, which handles refer to.
pub(crate) type OperationSet<K, O> = &'static [CachePadded<OperationShard<K, O>>];

/// The record of an operation that waits, or is being added.
pub(crate) struct Record<O> {
    /// Where its entries are, one for each key; none while it is being added.
    spots: Spots,
    pub(crate) state: OperationState<O>,
}

/// What the thread that adds an operation stores with it when it lets go: when it is due, and where
/// its entries are.
pub(crate) struct Added {
    pub(crate) due: Due,
    pub(crate) spots: Spots,
}

/// Calls `act` with the state of an operation's shard, under its lock.
#[inline]
pub(crate) fn with<K, O, R>(
    set: OperationSet<K, O>,
    id: Id,
    act: impl FnOnce(&mut OperationsState<K, O>) -> R,
) -> R {
    set[usize::from(id.shard)].with(act)
}

/// Removes an ended operation from all its keys but the first.
#[inline]
pub(crate) fn leave<K: Eq + Clone, O>(set: OperationSet<K, O>, spots: &Spots) {
    for spot in spots.made(1) {
        set[usize::from(spot.shard)].lock().extra.watchers.remove(spot);
    }
}

/// Takes an operation out to end it, or makes its holder end it.
pub(crate) fn claim<K: Eq + Clone, O>(
    set: OperationSet<K, O>,
    id: Id,
    wants: EndedBy,
) -> Cancel<O> {
    let mut spots = Spots::NONE;
    let claimed = with(set, id, |state| state.claim(id.key, wants, &mut spots));
    leave(set, &spots);
    claimed
}

/// Closes the shards of a purgatory, and takes back what is waiting there.
pub(crate) fn shutdown<K: Eq + Clone, O>(set: OperationSet<K, O>) -> Vec<O> {
    set.iter().for_each(|shard| shard.close());
    let mut pending = Vec::new();
    for (ordinal, shard) in (0..).zip(set) {
        // Nothing can be added any more, and nothing moves, so these are all operations. They are
        // taken in parts, so that the lock is never held for long.
        let chunks = shard.lock().wheel.entries.chunks();
        for chunk in 0..chunks {
            let state = shard.lock();
            let keys: Vec<_> = state.wheel.entries.of_chunk(chunk).map(|(key, _)| key).collect();
            drop(state);
            for key in keys {
                let claimed = claim(set, Id { shard: ordinal, key }, EndedBy::Cancelled);
                pending.extend(claimed.into_operation());
            }
        }
    }
    pending
}

/// Calls `see` with the operations of the visit that `begin` begins, a batch at a time and without
/// any lock, until what it returns adds up to `limit`. Returns the sum.
pub(crate) fn visit<K: Eq + Clone, O>(
    shard: &OperationShard<K, O>,
    begin: impl Fn(&Watchers<K>) -> Option<Visit>,
    limit: usize,
    mut see: impl FnMut(&[Id]) -> usize,
) -> usize {
    let (mut seen, mut batch, mut rest) = (0, Vec::new(), None);
    loop {
        rest = shard.with(|state| {
            let visit = rest.or_else(|| begin(&state.extra.watchers))?;
            // No more are taken along than are still wanted, so each of them is seen, and no other.
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

impl<K: Eq + Clone, O> OperationsState<K, O> {
    /// Makes a record for an operation that is being added.
    pub(crate) fn begin(&mut self, due: Due) -> Result<Id, Refusal> {
        self.admit(Limit::Keep)?;
        let record = Record { spots: Spots::NONE, state: OperationState::adding() };
        let (key, _) = self.wheel.insert(due, record);
        Ok(Id { shard: self.extra.watchers.shard, key })
    }

    /// Returns the state of an operation, if it has not ended.
    pub(crate) fn operation(&mut self, key: Key) -> Option<&mut OperationState<O>> {
        self.wheel.entries.get_mut(key).map(|entry| &mut entry.item.state)
    }

    /// Stores where the entries of an operation are that is being added.
    #[inline]
    pub(crate) fn settle(&mut self, index: u32, added: &mut Added) {
        let record = &mut self.wheel.entries.at_mut(index).item;
        record.spots = mem::replace(&mut added.spots, Spots::NONE);
    }

    /// Releases an operation whose condition its holder found false; the holder gets it back if
    /// something else has to be done with it. The holder says whether it still `may_check` then;
    /// and what to store, if it is adding the operation.
    pub(crate) fn release_operation(
        &mut self,
        key: Key,
        operation: O,
        may_check: bool,
        added: Option<&mut Added>,
    ) -> Next<O> {
        if self.closed && added.is_some() {
            // It goes back to the thread that adds it.
            return Next::End(operation, EndedBy::Withdrawn);
        }
        let (filing, entry) = self.wheel.entries.at_mut_with_tag(key.index);
        let next = entry.item.state.release(operation, may_check, !self.closed);
        let Next::LetGo { leaves_check } = next else { return next };
        if let Some(added) = added {
            self.settle(key.index, added);
            let reference = Reference { tick: added.due.tick.0 as u32, index: key.index, filing };
            self.file_new(reference, added.due);
        }
        if leaves_check {
            self.file_for_check(key.index);
        }
        next
    }

    /// Files a record as one with a zero delay is filed, so that the next turn looks at it.
    #[cold]
    fn file_for_check(&mut self, index: u32) {
        let Some(context) = &self.context else { return };
        let due = context.time.due(When::After(Duration::ZERO));
        self.wheel.file_again(index, due, due.deadline);
    }

    /// Ends an operation if no thread holds it; otherwise leaves that to its holder. Stores the
    /// spots of its entries as [`finish`](Self::finish) does.
    pub(crate) fn claim(&mut self, key: Key, wants: EndedBy, spots: &mut Spots) -> Cancel<O> {
        let Some(operation) = self.operation(key) else { return Cancel::Finished };
        let claimed = operation.end(wants);
        if let Cancel::Cancelled(_) = claimed {
            self.finish(key, wants, spots);
        }
        claimed
    }

    /// Hands an operation out whose task runs: to be checked; or, as one that has ended, to be
    /// expired.
    pub(crate) fn run_task(&mut self, key: Key, spots: &mut Spots) -> Option<(O, EndedBy)> {
        let (operation, by) = self.operation(key)?.task_runs()?;
        if by == EndedBy::Expired {
            self.finish(key, by, spots);
        }
        Some((operation, by))
    }

    /// Returns whether an operation waits and its end is undecided.
    pub(crate) fn is_pending(&mut self, key: Key) -> bool {
        self.operation(key).is_some_and(|operation| !operation.is_sealed())
    }

    /// Extends an operation's deadline, unless its time is up or its end is decided.
    pub(crate) fn touch(&mut self, key: Key, when: When) -> bool {
        let Some(context) = self.open_context() else { return false };
        let due = context.time.due(when);
        let now = due.present.unwrap_or_else(|| context.time.now());
        let Some(entry) = self.wheel.entries.get(key) else { return false };
        let state = &entry.item.state;
        let in_time = entry.deadline() > now && state.is_filed() && !state.is_sealed();
        let awaits_check = state.awaits_check();
        if in_time {
            self.wheel.extend(key.index, due.deadline);
            // What never expires is filed nowhere, but the check has to come.
            if awaits_check {
                self.file_for_check(key.index);
            }
        }
        in_time
    }

    /// Removes the record of an operation for its holder, as that `wants` or another thread has
    /// requested, and its entry in this shard. Stores the spots of its entries in `spots`, for the
    /// caller to remove the others: returning them would move them once more.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, wants: EndedBy, spots: &mut Spots) -> EndedBy {
        let mut ended_by = wants;
        let ended = self.wheel.entries.remove_if(key.index, |Entry { item: record, .. }| {
            ended_by = record.state.finish(wants);
            *spots = mem::replace(&mut record.spots, Spots::NONE);
            true
        });
        let ended = ended.expect("who ends an operation holds it");
        if ended_by == EndedBy::Expired {
            let now = self.context.as_ref().map(|context| context.time.now());
            self.wheel.expired(ended, now.unwrap_or_default());
        } else {
            self.wheel.cancelled(ended);
        }
        self.release_permits(1);
        self.extra.ended[ended_by as usize] += 1;
        if let Some(here) = spots.made(0).next() {
            self.extra.watchers.remove(here);
        }
        ended_by
    }

    /// Removes from a batch those operations of this shard that have ended. It is a loop of its
    /// own, so that their cache misses overlap.
    pub(crate) fn leave_out_ended(&mut self, operations: &mut Vec<Id>) {
        // mutants(()): an ended operation is left out when it is claimed as well.
        let shard = self.extra.watchers.shard;
        operations.retain(|id| id.shard != shard || self.is_pending(id.key));
    }

    /// Checks the invariants that the module states. Takes time proportional to the shard.
    pub(crate) fn assert_operations(&self) {
        self.extra.watchers.assert_invariants();
        for (_, entry) in self.wheel.entries.iter() {
            assert!(entry.item.spots.made(0).next().is_some(), "who waits has entries");
        }
    }
}

/// Contains the panics of a purgatory's operations. It counts them, and reports them with the
/// timer's name.
///
/// Whoever calls an operation's code refers to this, and not to a shard: the code may run after the
/// purgatory has gone, and its shards serve another one by then.
pub(crate) struct Panics {
    pub(crate) timer: Arc<str>,
    pub(crate) count: AtomicU64,
}

impl Panics {
    /// Calls the code of an operation, with no lock held.
    #[inline]
    pub(crate) fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        let returned = catch_panic_of(&self.timer, code);
        if returned.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed); // It publishes nothing.
        }
        returned
    }

    /// Calls the code with which an operation ends, and drops the operation: now, or after the code
    /// that this thread is running.
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
        queue(Item { is_trigger: false, act: Box::new(move |_| panics.call(operation, by)) });
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
