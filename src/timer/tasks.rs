//! The tasks of a timer: the content of its shards.

use crate::engine::clock::When;
use crate::engine::shard::{Body, Content, Times};
use crate::store::slab::Key;
use crate::sync::thread_number;
use std::marker::PhantomData;

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

/// How a deadline may be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    To,
    /// Only to a later deadline.
    Extend,
    /// Only to an earlier deadline.
    Hasten,
}

impl<T> Content for Tasks<T> {
    type Item = T;

    fn new() -> Self {
        Tasks { adder: 0, strangers: 0, tasks: PhantomData }
    }

    fn is_filed(_: &T) -> bool {
        true
    }
}

impl<T> Body<Tasks<T>> {
    /// Adds a task that was admitted, for the thread with this number. Calls `move_away` if too
    /// many other threads have come here since the last task was added.
    #[inline]
    pub(crate) fn add_task(
        &mut self,
        task: T,
        (tick, times): (u64, Times),
        thread: u32,
        move_away: impl FnOnce(),
    ) -> Key {
        let key = self.add(task, tick, times);
        self.content.adder = thread;
        if self.content.strangers >= CROWD {
            self.content.strangers = 0;
            move_away();
        }
        key
    }

    /// Moves the deadline of a pending task. Returns whether it was still pending.
    pub(crate) fn reschedule(&mut self, key: Key, when: When, how: Move) -> bool {
        self.content.note_caller();
        // A closed shard is being drained: no deadline moves any more.
        let (context, old) = (self.open_context(), self.core.deadline(key));
        let (Some(context), Some(old)) = (context, old) else { return false };
        let (now, deadline) = context.resolve(when);
        if deadline < old && how != Move::Extend {
            self.refile(key.index, (now, deadline));
        } else if how != Move::Hasten {
            self.core.extend(key.index, deadline);
        }
        true
    }
}

impl<T> Tasks<T> {
    #[inline]
    pub(crate) fn note_caller(&mut self) {
        if self.adder != thread_number() {
            self.strangers = self.strangers.saturating_add(1);
        }
    }
}
