//! The tasks of a timer: the content of its shards, and the way from there to their executor.

use crate::store::key::Key;
use crate::sync::thread_number;
use crate::timer::context::TimerContext;
use crate::timer::dispatcher::Dispatcher;
use crate::timer::entry::When;
use crate::timer::homes::Homes;
use crate::timer::owner::{Driven, Expired, Owned, Shards};
use crate::timer::shard::{Admission, Body, Content, Refusal, Shard, Times};
use crate::timer::stats::Stats;
use crate::wheel::bucket_queue::Expiration;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// The number of calls by other threads that make a shard crowded. The thread that adds there then
/// changes to the other shard of its pair.
const CROWD: u32 = 64;

/// The tasks in a shard are the items of its core; besides, it knows which threads come there.
pub(crate) struct Tasks<T> {
    /// The thread that added last, and the number of calls by other threads since the shard was
    /// last crowded.
    adder: u32,
    strangers: u32,
    tasks: PhantomData<T>,
}

/// What a timer has beside its shards. Only the timer and its driver keep it alive, so that the
/// executor is dropped with the timer.
pub(crate) struct Handling<T: Send + 'static> {
    pub(crate) homes: Arc<Homes<T>>,
    dispatcher: Dispatcher<T>,
}

/// The key of an entry, and whether the shard is crowded; or the task that was not added.
pub(crate) type Added<T> = Result<(Key, bool), (Refusal, T)>;

/// How a deadline may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    To,
    /// Only to a later deadline.
    Extend,
}

impl<T> Content for Tasks<T> {
    type Item = T;

    fn new(_: usize) -> Self {
        Tasks { adder: 0, strangers: 0, tasks: PhantomData }
    }

    fn is_empty(&self) -> bool {
        true
    }

    fn is_filed(_: &T) -> bool {
        true
    }
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

impl<T> Shard<Tasks<T>> {
    /// Takes a task out. `seen` runs under the lock if it was still pending.
    #[inline]
    pub(crate) fn cancel(&self, key: Key, seen: impl FnOnce()) -> Option<T> {
        self.with(|body| {
            body.content.note_caller();
            let task = body.core.cancel(key)?;
            seen();
            body.release_permits(1);
            Some(task)
        })
    }

    /// Gives a pending timer another task. Returns the former one, or the new one as the error if
    /// the timer is not pending.
    pub(crate) fn replace(&self, key: Key, task: T) -> Result<T, T> {
        self.with(|body| {
            body.content.note_caller();
            match body.core.task_mut(key) {
                Some(former) => Ok(mem::replace(former, task)),
                None => Err(task),
            }
        })
    }

    pub(crate) fn is_pending(&self, key: Key) -> bool {
        self.with(|body| body.core.deadline(key).is_some())
    }

    pub(crate) fn deadline(&self, key: Key) -> Option<Instant> {
        self.with(|body| {
            let deadline = body.core.deadline(key)?;
            body.context().map(|context| context.time.instant_of(deadline))
        })
    }
}

impl<T> Body<Tasks<T>> {
    /// Adds a task for the calling thread.
    #[inline]
    pub(crate) fn add_task(&mut self, task: T, times: Times, admission: Admission) -> Added<T> {
        let key = self.add(task, times, admission)?;
        Ok((key, self.content.note_adder()))
    }

    /// Moves the deadline of a pending task. Returns whether it was still pending.
    pub(crate) fn reschedule(&mut self, key: Key, when: When, how: Move) -> bool {
        self.content.note_caller();
        // A closed shard is being drained: no deadline moves any more.
        let context = self.context().filter(|_| !self.closed);
        let (Some(context), Some(old)) = (context, self.core.deadline(key)) else { return false };
        let (now, deadline) = context.resolve(when);
        if deadline >= old || how == Move::Extend {
            self.core.extend(key.index, deadline);
        } else {
            self.refile(key.index, (now, deadline));
        }
        true
    }
}

impl<T> Tasks<T> {
    /// Records that the calling thread adds here. Returns whether too many other threads came in
    /// between.
    #[inline]
    fn note_adder(&mut self) -> bool {
        self.adder = thread_number();
        let crowded = self.strangers >= CROWD;
        if crowded {
            self.strangers = 0;
        }
        crowded
    }

    #[inline]
    fn note_caller(&mut self) {
        if self.adder != thread_number() {
            self.strangers = self.strangers.saturating_add(1);
        }
    }
}
