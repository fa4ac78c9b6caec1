//! The turn: what a thread does that advances the clock, as far as the sources take part in it.
//!
//! On a seeded clock, what expires in the same tick is handed over one by one, in an order that the
//! seed decides, once all of it was taken out. So sources give that to the turn.

use crate::engine::context::{TimerContext, Wake};
use crate::engine::delay_queue::{ShardId, TurnStart};
use crate::engine::manual_clock::ManualClock;
use crate::sync::thread_local;
use crate::wheel::tick::Tick;
use std::cell::Cell;
use std::mem;

/// The maximum nesting of turns on one thread: a task may advance the clock, whose tasks may do the
/// same, and so on. It bounds the stack that this takes, however much is due.
const MAX_NESTED: u32 = 8;

thread_local! {
    /// The nesting depth of turns on this thread.
    static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// A turn that is under way.
pub(crate) struct Turn<'a> {
    pub(crate) start: TurnStart,
    context: &'a TimerContext,
    /// Whether a shard was left out in this step.
    is_one_aside: bool,
    /// Whether something was cascaded before it had to be.
    pub(crate) has_cascaded: bool,
    /// On a seeded clock, what expired in a tick and was not handed over yet.
    shuffle: Option<Shuffle<'a>>,
}

struct Shuffle<'a> {
    clock: &'a ManualClock,
    tick: Tick,
    expired: Vec<Box<dyn FnOnce()>>,
}

impl<'a> Turn<'a> {
    /// Begins a turn, unless there is nothing to do.
    pub(crate) fn begin(context: &'a TimerContext) -> Option<Self> {
        let start = context.delay_queue.begin_turn(context.time.present())?;
        TURNS.with(|turns| turns.set(turns.get() + 1));
        let seeded = context.time.clock.as_manual().filter(|clock| clock.is_seeded());
        let shuffle = seeded.map(|clock| Shuffle { clock, tick: start.tick, expired: Vec::new() });
        Some(Turn { start, context, is_one_aside: false, has_cascaded: false, shuffle })
    }

    /// Returns whether this thread may not begin another turn.
    pub(crate) fn is_nested_too_deep() -> bool {
        TURNS.with(Cell::get) >= MAX_NESTED
    }

    /// Calls `step` as a turn that begins now, unless there is nothing to do.
    pub(crate) fn at_present<R>(&mut self, step: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let present = self.context.delay_queue.begin_turn(self.context.time.present())?;
        let start = mem::replace(&mut self.start, present);
        let answer = step(self);
        self.start = start;
        Some(answer)
    }

    /// Leaves a shard out of this step that another thread holds.
    pub(crate) fn put_aside(&mut self, shard: ShardId) {
        self.context.delay_queue.put_aside(shard);
        self.is_one_aside = true;
    }

    /// Lets shards take part again that were left out.
    pub(crate) fn bring_back(&mut self) {
        if mem::take(&mut self.is_one_aside) {
            self.context.delay_queue.bring_back();
        }
    }

    /// Goes on after a flush has released its shard, before what expired is handed over.
    pub(crate) fn released(&mut self, wake: Wake) {
        // Before the hand-over: other turns and sleepers see what was left out.
        self.bring_back();
        drop(wake);
    }

    /// On a seeded clock, keeps what has expired for the end of its tick, and returns true.
    pub(crate) fn shuffle<T>(
        &mut self,
        expired: &mut Vec<T>,
        hand_over: impl FnMut(T) -> Box<dyn FnOnce()>,
    ) -> bool {
        let Some(shuffle) = &mut self.shuffle else { return false };
        shuffle.expired.extend(expired.drain(..).map(hand_over));
        true
    }

    /// Hands over what a seeded clock has kept, if that is complete when the next flush is one of
    /// this tick. Returns whether there was anything.
    pub(crate) fn complete_tick(&mut self, next: Tick) -> bool {
        let Some(shuffle) = &mut self.shuffle else { return false };
        if shuffle.tick == next {
            return false;
        }
        shuffle.tick = next;
        let mut expired = mem::take(&mut shuffle.expired);
        let was_any = !expired.is_empty();
        // Each time any of those that are left, all with the same chance.
        while !expired.is_empty() {
            let nth = shuffle.clock.below(expired.len());
            expired.swap_remove(nth)();
        }
        was_any
    }
}

impl Drop for Turn<'_> {
    /// Also where what was handed over panics.
    fn drop(&mut self) {
        self.bring_back();
        TURNS.with(|turns| turns.set(turns.get() - 1));
    }
}
