//! The tasks of a timer: the source whose entries go to the timer's executor.

use crate::engine::clock::When;
use crate::engine::pool::Shards;
use crate::engine::reaper::Engine;
use crate::engine::report::{self, catch_panic_of};
use crate::engine::shard::{AnyShard, Limit, Shard, ShardGuard, ShardState, Spare};
use crate::engine::source::{Source, Turn};
use crate::engine::stats::Stats;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{change_home, home};
use crate::timer::entry::TimerEntry;
use crate::timer::error::AddError;
use crate::timer::executor::{Batch, Executor};
use crate::timer::timeout::Timeout;
use crate::wheel::tick::Nanos;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Takes the tasks that an executor refuses.
pub(crate) type OnRefused<T> = Box<dyn Fn(T) + Send + Sync>;

/// The source of a timer's own tasks: their shards, and the executor that gets what expires.
pub(crate) struct Tasks<T: 'static> {
    pub(crate) shards: Shards<T>,
    executor: Box<dyn Executor<T>>,
    on_refused: Option<OnRefused<T>>,
    /// Relaxed: the count publishes nothing.
    refused: AtomicU64,
    spare: Spare<T>,
}

// User code is called with no lock held, and the crate sees nothing that it changes.
impl<T> UnwindSafe for Tasks<T> {}
impl<T> RefUnwindSafe for Tasks<T> {}

impl<T: 'static> Tasks<T> {
    /// Creates the tasks of a timer, and registers them.
    pub(crate) fn register(
        engine: &Engine,
        shards: usize,
        wheel_size: usize,
        executor: Box<dyn Executor<T>>,
        on_refused: Option<OnRefused<T>>,
    ) -> Arc<Self>
    where
        T: Send,
    {
        let make = |number| {
            let shards = Shards::new(&engine.context, number, shards, wheel_size);
            Arc::new(Tasks {
                shards,
                executor,
                on_refused,
                refused: AtomicU64::new(0),
                spare: Spare::default(),
            })
        };
        engine.sources.register(make).1
    }

    /// Adds a task to the calling thread's shard. Returns it as an entry if it was refused. Always
    /// inlined: otherwise the task and the answer go through memory.
    #[inline(always)]
    pub(crate) fn add(&self, when: When, task: T, limit: Limit) -> Result<Timeout<T>, AddError<T>> {
        // Read and divided before the lock is taken.
        let due = self.shards.context.time.due(when);
        let (shard, mut state) = self.lock_home();
        if let Err(refusal) = state.admit(limit) {
            drop(state);
            return Err(AddError::of(refusal, TimerEntry::new(when, task)));
        }
        let key = state.add(due, task);
        Shard::unlock(state);
        Ok(Timeout::new(shard, key))
    }

    /// Locks the calling thread's shard, or its other one if that is taken.
    #[inline]
    fn lock_home(&self) -> (&'static Shard<T>, ShardGuard<'static, T>) {
        let shard = self.home();
        if let Some(state) = shard.try_lock() {
            return (shard, state);
        }
        change_home();
        let shard = self.home();
        (shard, shard.lock())
    }

    #[inline]
    fn home(&self) -> &'static Shard<T> {
        let shards = self.shards.set;
        &shards[home() & (shards.len() - 1)]
    }

    /// Hands tasks to the executor; on a seeded clock, once their tick is complete. Returns their
    /// number.
    pub(crate) fn hand_over(self: &Arc<Self>, turn: &mut Turn<'_>, tasks: &mut Vec<T>) -> usize {
        let count = tasks.len();
        let later = |task| -> Box<dyn FnOnce()> {
            let own = Arc::clone(self);
            Box::new(move || own.execute(&mut vec![task]))
        };
        if count > 0 && !turn.defer(tasks, later) {
            self.execute(tasks);
        }
        count
    }

    /// Hands tasks to the executor, contains its panics, and handles refused tasks. All user code
    /// that runs on expiry runs in here, with no lock held.
    fn execute(&self, tasks: &mut Vec<T>) {
        let context = &*self.shards.context;
        let mut batch = Batch::new(tasks.drain(..));
        loop {
            let before = batch.len();
            let executed = context.catch_panic(|| self.executor.execute_batch(&mut batch));
            // After a panic the executor gets the rest, unless it took none.
            if executed.is_some() || batch.len() == before || batch.len() == 0 {
                break;
            }
        }
        let Batch {
            tasks: left,
            mut refused,
            added,
        } = batch;
        refused.extend(left);
        for entry in added {
            // After a shutdown the entry is dropped here. A panic of that drop must not lose the
            // refused tasks.
            context.catch_panic(|| {
                drop(self.add(entry.when(), entry.into_task(), Limit::Exceed));
            });
        }
        if refused.is_empty() {
            return;
        }
        self.refused
            .fetch_add(refused.len() as u64, Ordering::Relaxed);
        let Some(on_refused) = &self.on_refused else {
            let tasks = refused.len();
            report::event!(
                warn,
                timer = &*context.name,
                tasks = tasks,
                "the executor refused expired tasks: dropped"
            );
            return;
        };
        for task in refused {
            context.catch_panic(|| on_refused(task));
        }
    }

    /// Takes all pending tasks out of closed shards, ordered by deadline.
    pub(crate) fn drain(&self) -> Vec<TimerEntry<T>> {
        let mut pending: Vec<(Nanos, T)> = self
            .shards
            .set
            .iter()
            .flat_map(|shard| shard.drain())
            .collect();
        pending.sort_by_key(|(deadline, _)| *deadline);
        let time = &self.shards.context.time;
        let entry = |(deadline, task)| {
            TimerEntry::new(When::at_or_never(time.instant_or_never(deadline)), task)
        };
        pending.into_iter().map(entry).collect()
    }

    /// Drops all pending tasks. Returns their number.
    pub(crate) fn drop_pending(&self) -> u64 {
        self.shards
            .set
            .iter()
            .map(|shard| shard.drop_pending())
            .sum()
    }
}

impl<T: Send + 'static> Source for Tasks<T> {
    fn flush(self: Arc<Self>, ordinal: usize, turn: &mut Turn<'_>) -> Option<usize> {
        let flush = |state: &mut ShardState<T, ()>, flush, tasks: &mut Vec<T>| {
            state.flush(flush, |_, _, task| tasks.push(task));
        };
        let shard = &self.shards.set[ordinal];
        shard.flush_and_hand_over(turn.start, &self.spare, flush, |tasks| {
            self.hand_over(turn, tasks)
        })
    }

    fn shard(&self, ordinal: usize) -> Option<&dyn AnyShard> {
        self.shards.any(ordinal)
    }

    fn count(&self, stats: &mut Stats) {
        let refused = self.refused.load(Ordering::Relaxed);
        stats.refused += refused;
        if self.on_refused.is_none() {
            stats.dropped += refused;
        }
        let name = &self.shards.context.name;
        let panicked = catch_panic_of(name, || self.executor.panicked());
        stats.panicked = stats.panicked.saturating_add(panicked.unwrap_or(0));
    }

    fn assert_invariants(&self) {
        self.shards
            .set
            .iter()
            .for_each(|shard| shard.lock().assert_invariants(|_| true));
    }
}
