//! The check: what is done with one operation, from its adding to its end.
//!
//! Ending an operation means taking it out of its wheel first, so that no other thread finds it,
//! then removing it from all its keys, then calling its code, and then dropping it.

use crate::engine::context::Refusal;
use crate::engine::pool::Shards;
use crate::engine::shard::AnyShard;
use crate::engine::source::Source;
use crate::engine::turn;
use crate::purgatory::agenda::{Turn, take_turn};
use crate::purgatory::operation::{DelayedOperation, WatchError};
use crate::purgatory::shard::{
    OperationSet, OperationShard, Operations, Panics, Record, claim, leave, with,
};
use crate::purgatory::state::{EndedBy, Next};
use crate::purgatory::watchers::{Id, Spots, Visit, Watchers};
use crate::sync::atomic::AtomicU64;
use crate::table::shard_of;
use crate::timer::registered::Closures;
use crate::timer::entry::{SharedClosure, Task};
use crate::wheel::slab::Key;
use crate::wheel::tick::Due;
use crossbeam_utils::CachePadded;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

/// How often a thread checks an operation before it lets go of it. In models, once for itself and
/// once for the triggers that arrive during that.
const MAX_CHECKS: u32 = if cfg!(tickwheel_model) { 2 } else { 8 };

/// A call that may run the code of a purgatory's operations.
pub(crate) struct Call<'a, K: 'static, O: 'static> {
    pub(crate) set: OperationSet<K, O>,
    pub(crate) panics: &'a Arc<Panics>,
    pub(crate) turn: &'a Turn<'a>,
}

/// How an operation ended after its holder has served all requests; `None` if it waits, and another
/// thread may hold it now. One that is withdrawn from the thread that adds it comes back.
type Served<O> = Result<Option<EndedBy>, O>;

impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> Call<'_, K, O> {
    /// Watches an operation on its keys, and checks it once more. Returns its name, unless that
    /// check ended it.
    pub(crate) fn watch(
        &self,
        mut operation: O,
        due: Due,
        keys: &[K],
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<Id>, WatchError<O>> {
        let set = self.set;
        let mut spots = Spots::of(keys.len());
        let mut begun = Err(Refusal::Closed);
        // Caught only so that nothing is left behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            for (number, key) in keys.iter().enumerate() {
                let hash = hash_of(key);
                set[shard_of(hash, set.len())].with(|state| {
                    if number == 0 {
                        begun = state.begin(due);
                    }
                    if let Ok(id) = begun {
                        spots.set(number, state.extra.watchers.push(hash, key, id));
                    }
                });
                if begun.is_err() {
                    return;
                }
            }
        }));
        let id = match begun {
            Ok(id) => id,
            Err(refusal) => {
                entered.unwrap_or_else(|panic| resume_unwind(panic));
                return Err(match refusal {
                    Refusal::Full => WatchError::Full(operation.into()),
                    Refusal::Closed => WatchError::Shutdown(operation.into()),
                });
            }
        };
        let ended_by = match &entered {
            Ok(()) => self.condition(&mut operation, EndedBy::AtOnce),
            Err(_) => Some(EndedBy::Withdrawn),
        };
        let next = with(set, id, |state| {
            state.settle(id.key, spots);
            match ended_by {
                None => state.release_operation(id.key, operation, true, Some(due)),
                Some(ended_by) => Next::End(operation, ended_by),
            }
        });
        let served = self.serve(id, next, Some(due));
        if let Err(panic) = entered {
            resume_unwind(panic);
        }
        let ended_by = served.map_err(|operation| WatchError::Shutdown(operation.into()))?;
        Ok(ended_by.is_none().then_some(id))
    }

    /// Checks those of some operations that no other thread holds. Returns how many this completed.
    pub(crate) fn check_all(&self, batch: &[Id]) -> usize {
        let (mut completed, mut taken) = (0, None);
        for (number, &id) in batch.iter().enumerate() {
            // It may have been taken along with the one before it.
            let held = taken.take().or_else(|| with(self.set, id, |state| state.hand_out(id.key)));
            let Some(held) = held else { continue };
            let (is_completed, next) = self.check(id, held, batch.get(number + 1).copied());
            completed += usize::from(is_completed);
            taken = next;
        }
        completed
    }

    /// Checks the condition of an operation that was triggered. Returns whether this call completed
    /// it. If the operation continues to wait, and the operation `next` is in the same shard,
    /// triggers `next` under the same lock and returns it too.
    #[inline]
    pub(crate) fn check(&self, id: Id, mut operation: O, next: Option<Id>) -> (bool, Option<O>) {
        let is_triggered = |served| matches!(served, Ok(Some(EndedBy::Triggered)));
        if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
            return (is_triggered(self.end(id, operation, ended_by)), None);
        }
        let (then, triggered) = with(self.set, id, |state| {
            let then = state.release_operation(id.key, operation, true, None);
            let waits = matches!(then, Next::LetGo(_));
            let next = next.filter(|next| next.shard == id.shard && waits);
            (then, next.and_then(|next| state.hand_out(next.key)))
        });
        (is_triggered(self.serve(id, then, None)), triggered)
    }

    /// Serves the requests that are left after the condition was found false. Checks a few times
    /// for the triggers that arrive during checks, and leaves later ones to a task: otherwise this
    /// thread could go on serving others without end.
    #[inline]
    fn serve(&self, id: Id, next: Next<O>, added: Option<Due>) -> Served<O> {
        if let Next::LetGo(_) = next { Ok(None) } else { self.serve_others(id, next, added) }
    }

    #[cold]
    fn serve_others(&self, id: Id, mut next: Next<O>, added: Option<Due>) -> Served<O> {
        for checks in 2.. {
            let mut operation = match next {
                Next::LetGo(_) => break,
                Next::End(operation, ended_by) => return self.end(id, operation, ended_by),
                Next::CheckAgain(operation) => operation,
            };
            if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
                return self.end(id, operation, ended_by);
            }
            next = with(self.set, id, |state| {
                state.release_operation(id.key, operation, checks < MAX_CHECKS, added)
            });
        }
        Ok(None)
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    fn end(&self, id: Id, operation: O, wants: EndedBy) -> Served<O> {
        let mut spots = Spots::NONE;
        let ended_by = with(self.set, id, |state| state.finish(id.key, wants, &mut spots));
        leave(self.set, &spots);
        if ended_by == EndedBy::Withdrawn {
            return Err(operation);
        }
        self.panics.conclude(self.turn, operation, ended_by);
        Ok(Some(ended_by))
    }

    /// Checks an operation. Returns how the check ends it: by what it `is` if its condition holds;
    /// `None` if its condition is false.
    #[inline]
    pub(crate) fn condition(&self, operation: &mut O, is: EndedBy) -> Option<EndedBy> {
        match self.turn.check(|| self.panics.catch(|| operation.try_complete())) {
            Some(false) => None,
            Some(true) => Some(is),
            None => Some(EndedBy::Panicked),
        }
    }
}

/// The operations of a purgatory: a source.
///
/// The flush leaves the record of an operation in its place, filed nowhere, and hands a task over,
/// which ends the operation. Until the task runs, whoever wins the operation may end it. A task
/// that is dropped does the same as one that runs: no operation waits for ever.
pub(crate) struct OperationSource<K: Eq + Clone + Send + 'static, O: DelayedOperation> {
    pub(crate) shards: Shards<Record<O>, Operations<K>>,
    closures: Closures,
    pub(crate) panics: Arc<Panics>,
    /// What the tasks of each shard call: so none of them allocates.
    arrivals: Box<[SharedClosure]>,
}

impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> OperationSource<K, O> {
    pub(crate) fn new(shards: Shards<Record<O>, Operations<K>>, closures: Closures) -> Arc<Self> {
        let (timer, count) = (Arc::clone(&shards.context.name), AtomicU64::new(0));
        let panics = Arc::new(Panics { timer, count });
        Arc::new_cyclic(|source: &Weak<Self>| {
            let arrival = |(ordinal, shard): (u16, &CachePadded<OperationShard<K, O>>)| {
                let operations = &mut shard.lock().extra;
                operations.watchers.shard = ordinal;
                operations.panics = Some(Arc::clone(&panics));
                // So long that two closures' counts of references never share a cache line.
                // (Aligned, each would take twice as much.)
                let (source, padding) = (Weak::clone(source), [0u64; 12]);
                let arrive = move |key| {
                    let _ = &padding;
                    let id = Id { shard: ordinal, key: Key::from_bits(key) };
                    source.upgrade().into_iter().for_each(|source| source.arrive(id));
                };
                Arc::new(arrive) as SharedClosure
            };
            let arrivals = (0..).zip(shards.iter()).map(arrival).collect();
            OperationSource { shards, closures, panics, arrivals }
        })
    }

    #[inline]
    pub(crate) fn set(&self) -> OperationSet<K, O> {
        self.shards.static_set()
    }

    /// Checks or expires an operation whose task has arrived.
    fn arrive(&self, id: Id) {
        let (set, panics) = (self.set(), &self.panics);
        let Some((operation, spots)) = with(set, id, |state| state.arrive(id.key)) else { return };
        take_turn(|turn| {
            let Some(spots) = spots else {
                Call { set, panics, turn }.check(id, operation, None);
                return;
            };
            leave(set, &spots);
            panics.conclude(turn, operation, EndedBy::Expired);
        });
    }
}

impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> Source for OperationSource<K, O> {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut turn::Turn<'_>) -> Option<usize> {
        self.closures.flush(self.shards.get(ordinal), turn, |state, flush, tasks| {
            let closed = state.closed;
            state.wheel.flush_by(flush, |wheel, index, due| {
                let Some(key) = wheel.entries.key_at(index) else { return false };
                let Some(entry) = wheel.entries.get_mut(key) else { return false };
                let is_due = entry.deadline() <= due;
                // After a shutdown nothing expires any more.
                if entry.item.state.flushed(is_due) && !closed {
                    let arrival = Arc::clone(&self.arrivals[ordinal]);
                    tasks.push(Task::on_run_or_drop(arrival, key.to_bits()));
                }
                is_due
            });
        })
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.any(ordinal)
    }

    /// Drops what is waiting, without calling its code.
    fn clear(&self) {
        for operation in shutdown(self.set()) {
            take_turn(|turn| self.panics.conclude(turn, operation, EndedBy::Withdrawn));
        }
    }

    fn assert_invariants(&self) {
        for shard in self.shards.iter() {
            shard.lock().wheel.assert_invariants(|record| record.state.is_filed());
        }
    }
}

/// Closes the shards of a purgatory, and takes back what is waiting there.
pub(crate) fn shutdown<K: Eq + Clone, O>(set: OperationSet<K, O>) -> Vec<O> {
    set.iter().for_each(|shard| shard.close());
    let mut pending = Vec::new();
    for (ordinal, shard) in (0..).zip(set) {
        // Nothing can be added any more, and nothing moves, so these are all operations. They are
        // taken in parts, so that the lock is never held for long.
        for part in 0.. {
            let (waiting, more) = shard.with(|state| {
                let entries = &state.wheel.entries;
                let id = |(key, _)| Id { shard: ordinal, key };
                let waiting: Vec<_> = entries.of_chunk(part).map(id).collect();
                // mutants(<=): one more part is asked for, and is empty.
                (waiting, part + 1 < entries.chunks())
            });
            let cancel = |id| claim(set, id, EndedBy::Cancelled).into_operation();
            pending.extend(waiting.into_iter().filter_map(cancel));
            if !more {
                break;
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
