//! The source of operations: expires those whose time is up.
//!
//! The flush leaves a record in its place, no longer filed, and hands over a task that ends the
//! operation. Until the task runs, any thread may end the operation. A dropped task does the same
//! as one that runs: no operation waits forever.

use crate::engine::pool::Shards;
use crate::engine::shard::AnyShard;
use crate::engine::source::Source;
use crate::engine::source::Turn;
use crate::purgatory::agenda::enter;
use crate::purgatory::check::Call;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::shard::{Operations, Panics, Record, leave, shutdown, with_shard};
use crate::purgatory::state::EndedBy;
use crate::purgatory::watchers::{Id, Spots};
use crate::sync::atomic::AtomicU64;
use crate::timer::entry::{SharedClosure, Task};
use crate::timer::registered::Closures;
use crate::wheel::slab::Key;
use std::sync::Arc;

/// The operations of a purgatory; see the [module](self).
pub(crate) struct OperationSource<K: 'static, O: 'static> {
    pub(crate) shards: Shards<Record<O>, Operations<K>>,
    closures: Closures,
    pub(crate) panics: Arc<Panics>,
}

impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> OperationSource<K, O> {
    pub(crate) fn new(shards: Shards<Record<O>, Operations<K>>, closures: Closures) -> Arc<Self> {
        let panics = Arc::new(Panics {
            timer: Arc::clone(&shards.context.name),
            count: AtomicU64::new(0),
        });
        for (ordinal, shard) in (0..).zip(shards.set) {
            let operations = &mut shard.lock().extra;
            operations.watchers.shard = ordinal;
            operations.panics = Some(Arc::clone(&panics));
        }
        Arc::new(OperationSource {
            shards,
            closures,
            panics,
        })
    }

    /// Returns what a task of a shard calls with the key of its record.
    fn task_closure(self: &Arc<Self>, shard: u16) -> SharedClosure {
        let source = Arc::downgrade(self);
        // Long enough that two closures' reference counts never share a cache line. (Alignment
        // would cost twice as much.)
        let padding = [0u64; 12];
        Arc::new(move |key| {
            let _ = &padding;
            if let Some(source) = source.upgrade() {
                let key = Key::from_bits(key);
                source.run_task(Id { shard, key });
            }
        })
    }

    /// Checks or expires an operation whose task runs.
    /// Called when the task runs, and when it is dropped by an executor that refuses it. If a
    /// dropped task did nothing, its operation would wait for ever: after `DUE` nothing flushes the
    /// record again, and while `CHECK` stays no other task is made.
    fn run_task(&self, id: Id) {
        let set = self.shards.set;
        let panics = &self.panics;
        let mut spots = Spots::NONE;
        let taken = with_shard(set, id, |state| state.run_task(id.key, &mut spots));
        let Some((operation, by)) = taken else { return };
        leave(set, &spots);
        enter(|nesting| {
            if by == EndedBy::Expired {
                return panics.conclude(nesting, operation, by);
            }
            let call = Call {
                set,
                panics,
                nesting,
            };
            drop(call.check(id, operation, by, None, |_| ()));
        });
    }
}

impl<K: Eq + Clone + Send + 'static, O: DelayedOperation> Source for OperationSource<K, O> {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        self.closures
            .flush(&self.shards.set[ordinal], turn, |state, flush, tasks| {
                let is_closed = state.is_closed();
                let shard = state.extra.watchers.shard;
                let mut closure = state.extra.task_closure.take();
                state.flush_in_place(flush, |key, record, is_due| {
                    // After a shutdown nothing expires any more.
                    if record.state.flushed(is_due) && !is_closed {
                        let closure = closure.get_or_insert_with(|| self.task_closure(shard));
                        tasks.push(Task::on_run_or_drop(Arc::clone(closure), key.to_bits()));
                    }
                });
                state.extra.task_closure = closure;
            })
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.any(ordinal)
    }

    /// Drops what is waiting, without calling its code.
    fn clear(&self) {
        for operation in shutdown(self.shards.set) {
            enter(|nesting| self.panics.conclude(nesting, operation, EndedBy::Withdrawn));
        }
    }

    fn assert_invariants(&self) {
        for shard in self.shards.set {
            shard
                .lock()
                .assert_invariants(|record| record.state.is_filed());
        }
    }
}
