//! The dispatcher: takes expired tasks from the shards of a timer to its executor, and handles
//! refused ones.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::timer::context::TimerContext;
use crate::timer::executor::{Batch, Executor};
use crate::timer::homes::Homes;
use crate::timer::owner::{Driven, Expired, Owned, Shards};
use crate::timer::report::{self, Contained, catch_panic_of};
use crate::timer::shard::Body;
use crate::timer::stats::Stats;
use crate::timer::tasks::Tasks;
use crate::wheel::bucket_queue::Expiration;
use std::sync::Arc;

/// Handles a task that the executor refused.
pub(crate) type OnRefused<T> = Box<dyn Fn(T) + Send + Sync>;

/// All user code that runs on expiry runs in here, with no lock held.
pub(crate) struct Dispatcher<T: Send + 'static> {
    executor: Contained<Box<dyn Executor<T>>>,
    on_refused: Contained<Option<OnRefused<T>>>,
    refused: AtomicU64,
}

/// What a timer has beside its shards. Only the timer and its driver keep it alive, so that the
/// executor is dropped with the timer.
pub(crate) struct Handling<T: Send + 'static> {
    pub(crate) homes: Arc<Homes<T>>,
    dispatcher: Dispatcher<T>,
}

impl<T: Send + 'static> Owned<Tasks<T>> {
    /// Creates the tasks of a timer, in so many shards with wheels of so many slots, numbered from
    /// `first` on.
    pub(crate) fn new(
        context: &Arc<TimerContext>,
        dispatcher: Dispatcher<T>,
        layout: (usize, usize),
        first: u32,
    ) -> Arc<Self> {
        let shards = Shards::new(context, layout, first);
        let homes = Arc::new(Homes::new(Arc::clone(&shards)));
        Arc::new(Owned { shards, beside: Handling { homes, dispatcher } })
    }

    /// Returns where threads add to them.
    pub(crate) fn homes(&self) -> &Arc<Homes<T>> {
        &self.beside.homes
    }
}

impl<T: Send + 'static> Driven for Tasks<T> {
    type Beside = Handling<T>;

    fn flush(
        _: &Owned<Self>,
        body: &mut Body<Self>,
        (expiration, now): (Expiration, u64),
        armed: &mut Vec<Expiration>,
        expired: &mut Expired,
    ) -> Option<Expiration> {
        let tasks = expired.items();
        let before = tasks.len();
        let arm = |expiration| armed.push(expiration);
        let unfinished = body.core.flush(expiration, now, arm, |task| tasks.push(task));
        body.release_permits(tasks.len() - before);
        unfinished
    }

    fn hand_over(owned: &Owned<Self>, expired: &mut Expired) -> usize {
        owned.beside.dispatcher.hand_over(&owned.shards.context, expired.items())
    }

    fn count(owned: &Owned<Self>, stats: &mut Stats) {
        let Handling { dispatcher, .. } = &owned.beside;
        stats.refused += dispatcher.refused();
        stats.dropped += dispatcher.dropped();
        let panicked = dispatcher.panicked(&owned.shards.context);
        stats.panicked = stats.panicked.saturating_add(panicked);
    }
}

impl<T: Send + 'static> Dispatcher<T> {
    pub(crate) fn new(executor: Box<dyn Executor<T>>) -> Self {
        let (executor, on_refused) = (Contained::unnamed(executor), Contained::unnamed(None));
        Dispatcher { executor, on_refused, refused: AtomicU64::new(0) }
    }

    pub(crate) fn with_on_refused(mut self, handler: OnRefused<T>) -> Self {
        self.on_refused = Contained::unnamed(Some(handler));
        self
    }

    pub(crate) fn named(self, timer: &Arc<str>) -> Self {
        let Dispatcher { executor, on_refused, refused } = self;
        let (executor, on_refused) = (executor.named(timer), on_refused.named(timer));
        Dispatcher { executor, on_refused, refused }
    }

    pub(crate) fn has_on_refused(&self) -> bool {
        self.on_refused.is_some()
    }

    /// Hands tasks to the executor, contains its panics, and handles the tasks that it refuses.
    /// Returns how many tasks there were.
    pub(crate) fn hand_over(&self, context: &TimerContext, tasks: &mut Vec<T>) -> usize {
        let count = tasks.len();
        if count == 0 {
            return 0;
        }
        let mut batch = Batch { tasks: tasks.drain(..), refused: Vec::new() };
        loop {
            let before = batch.len();
            let executed = || self.executor.execute_batch(&mut batch);
            if catch_panic_of(&context.name, executed).is_some() {
                break;
            }
            context.count_panic();
            if batch.len() == before || batch.len() == 0 {
                break;
            }
        }
        let Batch { tasks, mut refused } = batch;
        refused.extend(tasks); // What the executor left lying.
        if !refused.is_empty() {
            self.refuse(context, refused);
        }
        count
    }

    fn refuse(&self, context: &TimerContext, tasks: Vec<T>) {
        self.refused.fetch_add(tasks.len() as u64, Ordering::Relaxed);
        if !self.has_on_refused() {
            report::warn!(
                timer = &*context.name,
                tasks = tasks.len(),
                "the executor refused expired tasks: dropped"
            );
        }
        for task in tasks {
            context.catch_panic(|| match &*self.on_refused {
                Some(handler) => handler(task),
                None => drop(task),
            });
        }
    }

    /// Returns how many tasks were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns how many refused tasks were dropped, because there is no `on_refused`.
    pub(crate) fn dropped(&self) -> u64 {
        if self.has_on_refused() { 0 } else { self.refused() }
    }

    /// Returns how many tasks panicked after they were handed on.
    pub(crate) fn panicked(&self, context: &TimerContext) -> u64 {
        catch_panic_of(&context.name, || self.executor.panicked()).unwrap_or(0)
    }
}
