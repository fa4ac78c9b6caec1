//! The source of a purgatory's operations: its shards, and the tasks of what is due there.
//!
//! The flush leaves the record of an operation in its place, filed nowhere, and hands a task over,
//! which ends the operation. Until the task runs, whoever wins the operation may end it. A task
//! that is dropped does the same as one that runs: no operation waits for ever.

use crate::engine::pool::Shards;
use crate::engine::reaper::Engine;
use crate::engine::shard::AnyShard;
use crate::engine::source::Source;
use crate::engine::turn::Turn;
use crate::purgatory::agenda::take_turn;
use crate::purgatory::check::{Call, shutdown};
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::operations::{OperationSet, Operations, Panics, Record};
use crate::purgatory::state::EndedBy;
use crate::purgatory::wait_queue::Id;
use crate::store::slab::Key;
use crate::store::table::shards_for;
use crate::sync::{Mutex, parallelism};
use crate::timer::Timer;
use crate::timer::entry::{SharedClosure, Task};
use crate::timer::tasks::Tasks;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};

/// Slots of each wheel: few, because there are many shards, and a deadline is seldom near.
const WHEEL_SIZE: usize = 64;

/// The shards of a purgatory; see the [module](self).
pub(crate) struct OperationSource<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    shards: Shards<Record<O>, Operations<K>>,
    pub(crate) panics: Arc<Panics>,
    /// What the tasks of each shard call: so none of them allocates.
    arrivals: Box<[SharedClosure]>,
    /// Whose executor runs them. Weakly: a check that is under way when the timer ends must not
    /// keep the executor alive.
    closures: Weak<Tasks<Task>>,
    /// A buffer for what a flush makes, unless a turn has it.
    spare: Mutex<Vec<Task>>,
}

// The code of operations is called with no lock held.
impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> UnwindSafe for OperationSource<K, O> {}
impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> RefUnwindSafe for OperationSource<K, O> {}

/// What the clones of a purgatory own together: it ends with the last of them.
pub(crate) struct OperationsOwner<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    pub(crate) timer: Timer,
    number: u32,
    pub(crate) source: Arc<OperationSource<K, O>>,
}

impl<K, O> OperationsOwner<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    pub(crate) fn new(timer: Timer) -> Arc<Self> {
        let engine: &Engine = &timer.base.engine;
        let context = &engine.context;
        // In virtual time no hash decides an order, unless the timer has several shards itself. In
        // models threads meet in several.
        let is_manual = context.time.clock.as_manual().is_some() && !cfg!(tickwheel_model);
        let is_single = is_manual && timer.base.layout.shards == 1;
        let count = if is_single { 1 } else { shards_for(parallelism()) };
        let make = |number| {
            Arc::new_cyclic(|source: &Weak<OperationSource<K, O>>| {
                let shards = Shards::new(context, number, count, WHEEL_SIZE);
                let panics = Panics::new(&context.name);
                for (ordinal, shard) in (0..).zip(shards.iter()) {
                    let mut state = shard.lock();
                    let operations: &mut Operations<K> = &mut state.extra;
                    operations.watchers.shard = ordinal;
                    operations.panics = Some(Arc::clone(&panics));
                }
                let arrivals = (0..count).map(|ordinal| arrival(Weak::clone(source), ordinal));
                let (arrivals, closures) =
                    (arrivals.collect(), Arc::downgrade(&timer.base.closures));
                let spare = Mutex::new(Vec::new());
                OperationSource { shards, panics, arrivals, closures, spare }
            })
        };
        let (number, source) = engine.sources.register(context, count, make);
        Arc::new(OperationsOwner { timer, number, source })
    }
}

/// Returns what is called for a shard's operations whose tasks have arrived.
fn arrival<K, O>(source: Weak<OperationSource<K, O>>, ordinal: usize) -> SharedClosure
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    // So long that two closures' counts of references never share a cache line. (Aligned, each
    // would take twice as much.)
    let padding = [0u64; 12];
    Arc::new(move |key| {
        let _ = &padding;
        if let Some(source) = source.upgrade() {
            source.arrive(ordinal, Key::from_bits(key));
        }
    })
}

impl<K, O> Drop for OperationsOwner<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Drops what is waiting, without calling its code.
    fn drop(&mut self) {
        let Engine { sources, context, .. } = &*self.timer.base.engine;
        sources.remove(context, self.number);
        let panics = &self.source.panics;
        for operation in shutdown(self.source.set()) {
            take_turn(|turn| panics.conclude(turn, operation, EndedBy::Withdrawn));
        }
    }
}

impl<K, O> OperationSource<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    #[inline]
    pub(crate) fn set(&self) -> OperationSet<K, O> {
        OperationSet(self.shards.leaked())
    }

    /// Checks or expires an operation whose task has arrived.
    fn arrive(&self, ordinal: usize, key: Key) {
        let (set, panics) = (self.set(), &self.panics);
        let id = Id { shard: ordinal as u16, key };
        let (to_check, expired) = set.of(id).with(|state| state.arrive(key));
        take_turn(|turn| {
            if let Some(to_check) = to_check {
                Call { set, panics, turn }.check(id, to_check, None);
            } else if let Some((expired, spots)) = expired {
                set.leave(&spots);
                panics.conclude(turn, expired, EndedBy::Expired);
            }
        });
    }
}

impl<K, O> Source for OperationSource<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        let Some(shard) = self.shards.get(ordinal) else { return Some(0) };
        let (mut tasks, arrival) = (mem::take(&mut *self.spare.lock()), &self.arrivals[ordinal]);
        let flushed = shard.flush(turn, |state, flush| {
            let closed = state.closed;
            state.wheel.flush_by(flush, |wheel, index, due| {
                let Some(key) = wheel.entries.key_at(index) else { return false };
                let Some(entry) = wheel.entries.get_mut(key) else { return false };
                let is_due = entry.deadline() <= due;
                // After a shutdown nothing expires any more.
                if entry.item.state.flushed(is_due) && !closed {
                    tasks.push(Task::due(Arc::clone(arrival), key.to_bits()));
                }
                is_due
            });
        });
        let closures = self.closures.upgrade();
        let count = closures.map_or(0, |closures| closures.hand_over(turn, &mut tasks));
        *self.spare.lock() = tasks;
        flushed.then_some(count)
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.get(ordinal).map(|shard| &**shard as &dyn AnyShard)
    }

    fn assert_invariants(&self) {
        for shard in self.shards.iter() {
            shard.lock().wheel.assert_invariants(|record| record.state.is_filed());
        }
    }
}
