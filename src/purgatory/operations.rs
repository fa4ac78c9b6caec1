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
//!
//! # The set
//! The set of a purgatory's shards: where an operation is.
//!
//! ## Locks
//! A key's `Eq`, `Clone` and `Drop` may run under a shard's lock. The code of operations does not:
//! operations are called and dropped outside.

use crate::engine::clock::When;
use crate::engine::context::{Limit, Refusal};
use crate::engine::report::{contain, report_panic};
use crate::engine::shard::{Extra, Shard, ShardState};
use crate::purgatory::agenda::{Turn, queue_callback};
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::state::{Claim, EndedBy, Next, OperationState};
use crate::purgatory::wait_queue::Id;
use crate::purgatory::watchers::{Spots, Watchers};
use crate::store::slab::Key;
use crate::store::table::shard_of;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::home;
use crate::wheel::bucket::Reference;
use crate::wheel::entry::Entry;
use crate::wheel::tick::Due;
use crossbeam_utils::CachePadded;
use std::any::Any;
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
        let ended = [0; EndedBy::Withdrawn as usize + 1];
        Operations { watchers: Watchers::default(), ended, panics: None }
    }
}

impl<K> Extra for Operations<K> {
    fn is_empty(&self) -> bool {
        self.watchers.len == 0
    }
}

pub(crate) type OperationShard<K, O> = Shard<Record<O>, Operations<K>>;
pub(crate) type OperationsState<K, O> = ShardState<Record<O>, Operations<K>>;

/// The record of an operation that waits, or is being added.
#[derive(Debug)]
pub(crate) struct Record<O> {
    spots: Spots,
    pub(crate) state: OperationState,
    /// `None` while a thread holds it.
    operation: Option<O>,
}

impl<K: Eq + Clone, O> OperationsState<K, O> {
    /// Returns what contains the panics of the operations here.
    pub(crate) fn panics(&self) -> Arc<Panics> {
        self.extra.panics.clone().expect("set before anything is watched")
    }

    /// Makes a record for an operation that is being added.
    pub(crate) fn begin(&mut self, due: Due) -> Result<Id, Refusal> {
        self.admit(Limit::Keep)?;
        let record =
            Record { spots: Spots::NONE, state: OperationState::adding(), operation: None };
        let (key, _) = self.wheel.insert(due, record);
        Ok(Id { shard: self.extra.watchers.shard, key })
    }

    fn record(&mut self, key: Key) -> Option<&mut Record<O>> {
        self.wheel.entries.get_mut(key).map(|entry| &mut entry.item)
    }

    /// Stores the spots of an operation's entries, one for each key.
    pub(crate) fn settle(&mut self, key: Key, spots: Spots) {
        self.wheel.entries.at_mut(key.index).item.spots = spots;
    }

    /// Hands the operation out so that its condition can be checked.
    #[inline]
    pub(crate) fn hand_out(&mut self, key: Key) -> Option<O> {
        let record = self.record(key)?;
        record.state.trigger().won().and_then(|()| record.operation.take())
    }

    /// Does what a task was made for that has arrived: returns the operation, to check it, or to
    /// expire it, with the spots of its entries.
    pub(crate) fn arrive(&mut self, key: Key) -> (Option<O>, Option<(O, Spots)>) {
        let Some(record) = self.record(key) else { return (None, None) };
        match record.state.arrive() {
            (true, _) => (record.operation.take(), None),
            (_, true) => (None, self.claim(key, EndedBy::Expired).won()),
            _ => (None, None),
        }
    }

    /// Releases an operation whose condition its holder found false; the holder gets it back if
    /// something else has to be done with it. The holder says whether it still `may_check` then.
    /// Whoever `added` it says where.
    pub(crate) fn release_operation(
        &mut self,
        key: Key,
        operation: O,
        may_check: bool,
        added: Option<Added>,
    ) -> Next<O> {
        let (filing, entry) = self.wheel.entries.at_mut_with_tag(key.index);
        let (deadline, record) = (entry.deadline(), &mut entry.item);
        let due = added.map(|Added { spots, due }| {
            record.spots = spots;
            due
        });
        let was_adding = record.state.is_adding();
        if self.closed && was_adding {
            record.state.end(EndedBy::Cancelled); // It goes back to the thread that adds it.
        }
        let leaves_check = match record.state.release(may_check, !self.closed) {
            Next::CheckAgain(()) => return Next::CheckAgain(operation),
            Next::End((), ended_by) => return Next::End(operation, ended_by),
            Next::LetGo(leaves_check) => leaves_check,
        };
        record.operation = Some(operation);
        if leaves_check {
            self.file_for_check(key.index);
        } else if was_adding {
            // After a second check, which nobody has to hurry with, the entry tells the deadline.
            let due = due.unwrap_or_else(|| Due {
                deadline,
                tick: self.wheel.length.ceil(deadline),
                present: None,
            });
            let reference = Reference { tick: due.tick.0 as u32, index: key.index, filing };
            self.file_new(reference, due);
        }
        Next::LetGo(leaves_check)
    }

    /// Files a record as one with a zero delay is filed, so that the next turn looks at it.
    #[cold]
    fn file_for_check(&mut self, index: u32) {
        let Some(context) = self.context() else { return };
        let due = context.time.due(When::After(Duration::ZERO));
        self.wheel.file_again(index, due, due.deadline);
    }

    /// Ends an operation for its holder. Stores the spots of its entries, of which the first is
    /// removed already, in `spots`: returning them would move them once more.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, wants: EndedBy, spots: &mut Spots) -> EndedBy {
        self.end(key, spots, |record| record.state.finish(wants))
    }

    /// Ends an operation if it is idle; otherwise leaves that to its holder. Returns the spots of
    /// its entries with it, of which the first is removed already.
    pub(crate) fn claim(&mut self, key: Key, wants: EndedBy) -> Claim<(O, Spots)> {
        let Some(record) = self.record(key) else { return Claim::Lost };
        let claim = record.state.end(wants);
        let claim = claim.map(|()| record.operation.take().expect("no thread holds it"));
        claim.map(|operation| {
            let mut spots = Spots::NONE;
            self.end(key, &mut spots, |_| wants);
            (operation, spots)
        })
    }

    /// Cancels an operation in the same way, but skips it while it is still being added: then it
    /// counts as added after this call.
    pub(crate) fn cancel_unless_adding(&mut self, key: Key) -> Claim<(O, Spots)> {
        match self.record(key) {
            Some(record) if !record.state.is_adding() => self.claim(key, EndedBy::Cancelled),
            _ => Claim::Lost,
        }
    }

    /// Returns whether an operation waits and its end is undecided.
    pub(crate) fn is_pending(&mut self, key: Key) -> bool {
        self.record(key).is_some_and(|record| !record.state.is_sealed())
    }

    /// Extends an operation's deadline, unless its time is up or its end is decided.
    pub(crate) fn touch(&mut self, key: Key, when: When) -> bool {
        let Some(context) = self.open_context() else { return false };
        let due = context.time.due(when);
        let now = due.present.unwrap_or_else(|| context.time.now());
        let is_up = self.wheel.deadline(key).is_none_or(|deadline| deadline <= now);
        let record = self.record(key).filter(|_| !is_up);
        let is_open = |state: &OperationState| state.is_filed() && !state.is_sealed();
        let in_time = record.is_some_and(|record| is_open(&record.state));
        if in_time {
            self.wheel.extend(key.index, due.deadline);
        }
        in_time
    }

    /// Removes the record of an operation that is out of it, and its entry in this shard; the other
    /// entries are left to the caller.
    #[inline]
    fn end(
        &mut self,
        key: Key,
        spots: &mut Spots,
        decide: impl FnOnce(&mut Record<O>) -> EndedBy,
    ) -> EndedBy {
        let mut ended_by = EndedBy::Cancelled;
        let ended = self.wheel.entries.remove_if(key.index, |Entry { item: record, .. }| {
            ended_by = decide(record);
            *spots = mem::take(&mut record.spots);
            true
        });
        let ended = ended.expect("who ends an operation holds it");
        if ended_by == EndedBy::Expired {
            let now = self.context().map(|context| context.time.now());
            self.wheel.expired(ended, now.unwrap_or_default());
        } else {
            self.wheel.cancelled(ended);
        }
        self.release_permits(1);
        self.extra.ended[ended_by as usize] += 1;
        if let Some(here) = spots.first() {
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

    /// Appends the operations of one part of the records to `out`. Returns whether there are parts
    /// after it.
    pub(crate) fn waiting(&self, part: usize, out: &mut Vec<Id>) -> bool {
        let shard = self.extra.watchers.shard;
        let records = self.wheel.entries.of_chunk(part);
        out.extend(records.map(|(key, _)| Id { shard, key }));
        // mutants(<=): one more part is asked for, and is empty.
        part + 1 < self.wheel.entries.chunks()
    }

    /// Checks the invariants that the module states. Takes time proportional to the shard.
    pub(crate) fn assert_operations(&self) {
        self.extra.watchers.assert_invariants();
        for (_, entry) in self.wheel.entries.iter() {
            assert!(entry.item.spots.first().is_some(), "who waits has entries");
        }
    }
}

/// The spots of an operation that was added, and when it is due.
pub(crate) struct Added {
    pub(crate) spots: Spots,
    pub(crate) due: Due,
}

/// All shards of a purgatory, which handles refer to.
pub(crate) struct OperationSet<K: 'static, O: 'static>(
    pub(crate) &'static [CachePadded<OperationShard<K, O>>],
);

impl<K, O> Clone for OperationSet<K, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, O> Copy for OperationSet<K, O> {}

impl<K: Eq + Clone, O> OperationSet<K, O> {
    /// Returns the shard of an operation.
    #[inline]
    pub(crate) fn of(self, id: Id) -> &'static OperationShard<K, O> {
        &self.0[usize::from(id.shard)]
    }

    /// Returns the shard of the keys with this hash.
    #[inline]
    pub(crate) fn of_key(self, hash: u64) -> &'static OperationShard<K, O> {
        &self.0[shard_of(hash, self.0.len())]
    }

    /// Counts the end of an operation that no shard knows, on behalf of the calling thread, so that
    /// threads do not contend.
    pub(crate) fn count(self, ended_by: EndedBy) {
        let home = &self.0[home() & (self.0.len() - 1)];
        home.lock().extra.ended[ended_by as usize] += 1;
    }

    /// Removes an ended operation from all its keys but the first.
    #[inline]
    pub(crate) fn leave(self, spots: &Spots) {
        for spot in spots.others() {
            self.0[usize::from(spot.shard)].lock().extra.watchers.remove(spot);
        }
    }
}

/// Contains the panics of a purgatory's operations. It counts them, and reports them with the
/// timer's name.
///
/// Whoever calls an operation's code refers to this, and not to a shard: the code may run after the
/// purgatory has gone, and its shards serve another one by then.
#[derive(Debug)]
pub(crate) struct Panics {
    timer: Arc<str>,
    count: AtomicU64,
}

impl Panics {
    pub(crate) fn new(timer: &Arc<str>) -> Arc<Self> {
        Arc::new(Panics { timer: Arc::clone(timer), count: AtomicU64::new(0) })
    }

    /// Returns how many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Calls the code of an operation, with no lock held.
    #[inline]
    pub(crate) fn catch<R>(&self, code: impl FnOnce() -> R) -> Option<R> {
        contain(code).map_err(|panic| self.report(panic)).ok()
    }

    #[cold]
    fn report(&self, panic: Box<dyn Any + Send>) {
        self.count.fetch_add(1, Ordering::Relaxed); // It publishes nothing.
        report_panic(Some(&self.timer), panic);
    }

    /// Calls the code with which an operation ends, and drops the operation: now, or after the code
    /// that this thread is running.
    pub(crate) fn conclude<O: DelayedOperation>(
        self: &Arc<Self>,
        turn: &Turn<'_>,
        operation: O,
        by: EndedBy,
    ) {
        if turn.is_outermost {
            return self.call(operation, by);
        }
        let panics = Arc::clone(self);
        queue_callback(move || panics.call(operation, by));
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
