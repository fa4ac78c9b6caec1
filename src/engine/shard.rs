//! The shard: a lock, and behind it a body, in which an owner keeps entries.
//!
//! A timer, keyed timers and a purgatory are owners of shards, whose bodies differ in their
//! [content](Content). Here is what they have in common: who may add, where entries are filed, how
//! they are flushed, and that listeners are woken then.
//!
//! # Locks
//! Under a shard's lock the delay queue's lock may be taken, but never another shard's. No user
//! code runs under it, unless the documentation of the content says so.
//!
//! # The lock
//! It is a mutex at which others let a turn go first that has waited for long.
//!
//! A thread that uses one shard again and again releases the lock for moments only. A turn that
//! tries the lock now and then would meet such a moment by chance, and one that queues for it would
//! be overtaken, because std's mutex gives the lock to whoever asks first. So the turn leaves a
//! mark, and who is about to take the lock waits while the mark is there.
//!
//! # Notes of what a thread holds
//! Which keyed timers a thread holds a shard of, in debug builds.
//!
//! What a user does with an entry, or in a closure that looks at a task, happens under the lock of
//! a shard. From there, a call to the same keyed timer or a turn of its timer would wait for its
//! own thread: without a word in release builds, and with a panic in debug builds.

use crate::engine::context::TimerContext;
use crate::store::slab::Key;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, nap, thread_local};
use crate::wheel::bucket::Reference;
use crate::wheel::bucket_queue::{ELAPSED, Expiration};
use crate::wheel::core::{Core, Trimmed};
use crate::wheel::wheels::Wheels;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// What an owner keeps in a shard beside the core.
pub(crate) trait Content: Sized {
    /// The value of an entry.
    type Item;

    fn new() -> Self;

    /// Returns whether nothing is left of the owner beside the core.
    fn is_empty(&self) -> bool {
        true
    }

    /// Returns whether an entry is filed, rather than held by its owner after a flush.
    fn is_filed(item: &Self::Item) -> bool;
}

/// A lock and a body; see the [module](self).
pub(crate) struct Shard<C: Content> {
    body: Mutex<Body<C>>,
    /// Whether a turn wants the lock. Relaxed everywhere: it is a hint, and the mutex orders.
    wanted: AtomicBool,
}

/// What is behind the lock of a shard.
pub(crate) struct Body<C: Content> {
    pub(crate) core: Core<C::Item>,
    /// That of the owner; `None` while the shard has none.
    context: Option<Arc<TimerContext>>,
    /// Set by a shutdown: from then on nothing can be added, and nothing moves.
    pub(crate) closed: bool,
    /// Whether listeners have to be woken when the lock is released, because of what was filed.
    owes: bool,
    /// What stands for this shard in the delay queue, and whether its elapsed buckets do as well.
    published: Option<Expiration>,
    has_elapsed: bool,
    pub(crate) content: C,
}

/// The reason why an entry was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

/// The present, or zero if it was not read, and a deadline.
pub(crate) type Times = (u64, u64);

/// How often a lock is tried before it counts as taken: for about as long as a call holds it. In
/// models, trying again does not help.
const TRIES: usize = if cfg!(tickwheel_model) { 1 } else { 32 };

/// How long a thread waits for a lock before it looks again: long enough for its holder, or for the
/// turn that wants it, to get a core.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// The naps after which a caller goes ahead of a turn that does not come: about five milliseconds
/// with the time that it takes to wake up, in which the turn gets a core even if all are busy.
const GIVES_WAY: usize = if cfg!(tickwheel_model) { 1 } else { 50 };

thread_local! {
    /// The nesting depth of turns on this thread.
    pub(crate) static TURNS: Cell<u32> = const { Cell::new(0) };
}

impl<C: Content> Shard<C> {
    /// Creates a shard without an owner.
    pub(crate) fn new() -> Self {
        let (core, content) = (Core::idle(), C::new());
        let body = Body {
            core,
            context: None,
            closed: true,
            owes: false,
            published: None,
            has_elapsed: false,
            content,
        };
        Shard { body: Mutex::new(body), wanted: AtomicBool::new(false) }
    }

    /// Begins to serve an owner; the shard must be free.
    pub(crate) fn serve(&self, context: Arc<TimerContext>, wheels: Wheels) {
        let mut body = self.lock();
        drop(body.core.restart(Core::new(context.time.ticks, wheels)));
        (body.context, body.content, body.closed) = (Some(context), C::new(), false);
        (body.published, body.has_elapsed) = (None, false);
    }

    /// Closes the shard, whose owner has gone, and frees what it holds for that owner, unless
    /// something is left of it.
    pub(crate) fn retire(&self) {
        let mut body = self.lock();
        body.closed = true;
        if !body.is_free() {
            return;
        }
        let context = body.context.take();
        let content = std::mem::replace(&mut body.content, C::new());
        let core = body.core.restart(Core::idle());
        drop(body);
        drop((context, content, core)); // Not under the lock: callers of old handles need not wait.
    }

    /// Locks the shard, for a caller that files nothing, so that nobody has to be woken, or that
    /// [releases](Self::release) it.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Body<C>> {
        if self.wanted.load(Ordering::Relaxed) {
            self.give_way();
        }
        self.body.lock()
    }

    /// Waits while a turn wants the lock, unless this thread is the one that takes the turn. Who
    /// has waited for long removes the mark, so a turn that was given up delays nobody again.
    #[cold]
    fn give_way(&self) {
        if TURNS.with(Cell::get) > 0 {
            return;
        }
        for _ in 0..GIVES_WAY {
            nap(NAP);
            if !self.wanted.load(Ordering::Relaxed) {
                return;
            }
        }
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// Takes the lock, unless another thread keeps it for longer than a call takes. In that case
    /// its holder waits for a core, and so would a thread that waited for the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Body<C>>> {
        (0..TRIES).find_map(|_| {
            let body = self.body.try_lock();
            if body.is_none() {
                std::hint::spin_loop();
            }
            body
        })
    }

    /// Takes the lock for a turn, unless another thread keeps it. A turn that `insists` has others
    /// let it go first at its next try.
    pub(crate) fn lock_for_turn(&self, insists: bool) -> Option<MutexGuard<'_, Body<C>>> {
        let body = self.try_lock();
        if insists {
            self.wanted.store(body.is_none(), Ordering::Relaxed);
        }
        body
    }

    /// Calls `act` with the body, under the lock. Wakes listeners afterwards.
    ///
    /// A guard that does this in its drop would cost 25 instructions more: it is not inlined.
    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Body<C>) -> R) -> R {
        let mut body = self.lock();
        let answer = act(&mut body);
        Self::leave(body);
        answer
    }

    /// Releases the lock, and wakes listeners then if that is due.
    #[inline]
    pub(crate) fn leave(body: MutexGuard<'_, Body<C>>) {
        if body.owes {
            Self::wake(body);
        }
    }

    #[cold]
    fn wake(body: MutexGuard<'_, Body<C>>) {
        drop(Self::release(body));
    }

    /// Releases the lock, and returns the duty to wake.
    pub(crate) fn release(mut body: MutexGuard<'_, Body<C>>) -> Wakeup {
        let owes = std::mem::take(&mut body.owes);
        Wakeup(if owes { body.context.clone() } else { None })
    }
}

/// The duty to wake listeners, once no lock is held.
#[derive(Default)]
#[must_use = "dropped at once, it wakes at once"]
pub(crate) struct Wakeup(Option<Arc<TimerContext>>);

impl Drop for Wakeup {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.wake_listeners();
        }
    }
}

impl<C: Content> Body<C> {
    /// Returns the context of the owner, if the shard has one.
    pub(crate) fn context(&self) -> Option<&Arc<TimerContext>> {
        self.context.as_ref()
    }

    /// Returns the context of the owner that issued a key, unless the shard serves another one by
    /// now.
    pub(crate) fn issuer(&self, key: Key) -> Option<Arc<TimerContext>> {
        self.context.clone().filter(|_| self.core.entries.has_issued(key))
    }

    /// Returns the context, unless the shard is closed.
    #[inline]
    pub(crate) fn open_context(&self) -> Option<&Arc<TimerContext>> {
        if self.closed { None } else { self.context.as_ref() }
    }

    /// Returns whether the shard is closed, and nothing is left in it.
    pub(crate) fn is_free(&self) -> bool {
        self.closed && self.core.len() == 0 && self.content.is_empty()
    }

    /// Takes a permit for another entry, unless the shard is closed or all permits are taken.
    #[inline]
    pub(crate) fn admit(&self) -> Result<(), Refusal> {
        let Some(context) = self.open_context() else { return Err(Refusal::Closed) };
        if context.take_permit() { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Takes a permit in the same way, but even if all are taken: for what cannot be refused.
    pub(crate) fn admit_beyond_limit(&self) -> Result<(), Refusal> {
        let context = self.open_context().ok_or(Refusal::Closed)?;
        context.overdraw();
        Ok(())
    }

    /// Adds an item that was admitted, and files it under the tick of its deadline.
    ///
    /// Always inlined, like the filing: with two kinds of callers it was called, at 10 % of W1.
    #[inline(always)]
    pub(crate) fn add(&mut self, item: C::Item, tick: u64, times: Times) -> Key {
        let (_, deadline) = times;
        let (key, reference) = self.core.insert(deadline, tick, item);
        self.file_new(reference, tick, times);
        key
    }

    /// Gives permits back, under the same lock under which their entries have gone: a thread that
    /// finds one gone also finds its permit free.
    #[inline]
    pub(crate) fn release_permits(&self, permits: usize) {
        if let Some(context) = &self.context {
            context.release_permits(permits);
        }
    }

    /// Files a new entry. If the entry belongs in an overflow bucket that is armed already, this
    /// need not read the clock.
    #[inline(always)]
    pub(crate) fn file_new(&mut self, reference: Reference, tick: u64, (now, deadline): Times) {
        if deadline <= now || !self.core.wheels.join_far(reference, tick) {
            self.file(reference, tick, (now, deadline));
        }
    }

    /// Files an entry that opens a far bucket or is due soon, and notes whether listeners have to
    /// be woken.
    ///
    /// If its deadline has passed, the entry need not wait for the next tick. If the entry opens a
    /// far bucket while nothing is due, the wheels' time leaps to the present first: it lags behind
    /// after an idle period, and the entry may not be far away at all.
    pub(crate) fn file(&mut self, reference: Reference, tick: u64, (now, deadline): Times) {
        let Body { core, context: Some(context), .. } = self else { return };
        let TimerContext { time, .. } = &**context;
        let now = time.or_now(now);
        let present = time.ticks.floor(now);
        let wheels = &mut core.wheels;
        if deadline <= now {
            wheels.file_elapsed(reference, tick);
        } else {
            if wheels.is_far(tick) && !wheels.queue.is_due(present) {
                wheels.leap(present);
            }
            wheels.file(reference, tick);
        }
        self.publish();
    }

    /// Lets the delay queue know of this shard's first bucket, if it is earlier than what the queue
    /// knows.
    fn publish(&mut self) {
        let Body { core, context: Some(context), owes, published, has_elapsed, .. } = self else {
            return;
        };
        let queue = &core.wheels.queue;
        if queue.has_elapsed() && !*has_elapsed {
            *has_elapsed = true;
            let expiration = queue.first().expect("it has elapsed ones");
            *owes |= context.delay_queue.offer(expiration);
        }
        let Some(next) = queue.next() else { return };
        if published.is_none_or(|known| next.tick < known.tick || next.start < known.start) {
            *published = Some(next);
            *owes |= context.delay_queue.offer(next);
        }
    }

    /// Returns the bucket to flush, for what the delay queue has named of this shard; unless it was
    /// named again since, or another shard's comes before.
    pub(crate) fn poll(
        &mut self,
        named: Expiration,
        (turn_start, now): (u64, u64),
        others: u64,
    ) -> Option<Expiration> {
        let queue = &mut self.core.wheels.queue;
        if named.bucket.level == ELAPSED {
            self.has_elapsed = false;
            queue.begin_turn();
        } else if self.published != Some(named) {
            return None;
        }
        self.published = None;
        let due = queue.peek_due(turn_start, now)?;
        if due.start > others && others <= now {
            return None;
        }
        queue.take(due);
        Some(due)
    }

    /// Moves an entry to another deadline, and files it there.
    pub(crate) fn refile(&mut self, index: u32, times: Times) {
        let (_, deadline) = times;
        let tick = self.core.ticks.ceil(deadline);
        let reference = self.core.move_up(index, deadline, tick);
        self.file(reference, tick, times);
    }

    /// Notes that the caller may go on holding the lock for any length of time.
    pub(crate) fn go_on_holding(&self) {
        if let Some(context) = self.context.as_ref().filter(|_| self.owes) {
            context.delay_queue.owe();
        }
    }

    /// Ends the flush of a bucket, or the look for one.
    pub(crate) fn flushed(&mut self) {
        self.publish();
    }

    /// Takes the first bucket out if it holds only cancelled entries. Does bounded work, and
    /// returns what it found.
    pub(crate) fn trim(&mut self, named: Expiration) -> Trimmed {
        let Some(context) = self.context.clone() else { return Trimmed::Live };
        let is_elapsed = named.bucket.level == ELAPSED;
        if !is_elapsed && self.published != Some(named) {
            context.delay_queue.take(named);
            return Trimmed::Empty;
        }
        let trimmed = self.core.trim_first();
        let queue = &self.core.wheels.queue;
        if is_elapsed {
            if !queue.has_elapsed() && context.delay_queue.take(named) {
                self.has_elapsed = false;
            }
        } else if trimmed == Trimmed::Empty && queue.next() != Some(named) {
            context.delay_queue.take(named);
            self.published = None;
            self.publish();
        }
        trimmed
    }

    /// Takes a batch of pending entries out, with their deadlines. Returns whether there may be
    /// more.
    pub(crate) fn drain(&mut self, cursor: &mut usize, out: &mut Vec<(u64, C::Item)>) -> bool {
        let more = self.core.drain(cursor, |deadline, item| out.push((deadline, item)));
        self.release_permits(out.len());
        more
    }
}

const NOTES: bool = cfg!(all(debug_assertions, not(tickwheel_model)));

/// A note that this thread has a shard of a keyed timer under its lock, until it is dropped.
pub(crate) struct Holding(Held);

/// The addresses of a keyed timer and of its timer's context.
type Held = (usize, usize);

std::thread_local! {
    static HOLDING: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

impl Holding {
    /// Notes that this thread is about to lock a shard of the keyed timer at `keyed`.
    #[inline]
    pub(crate) fn begin(keyed: &impl Sized, timer: &TimerContext) -> Self {
        let held = (ptr::from_ref(keyed).addr(), ptr::from_ref(timer).addr());
        if NOTES {
            if is_any(|(keyed, _)| keyed == held.0) {
                panic!("this thread uses a keyed timer while it holds one of that timer's entries");
            }
            let _ = HOLDING.try_with(|holding| holding.borrow_mut().push(held));
        }
        Holding(held)
    }
}

impl Drop for Holding {
    #[inline]
    fn drop(&mut self) {
        if NOTES {
            let _ = HOLDING.try_with(|holding| holding.borrow_mut().retain(|held| *held != self.0));
        }
    }
}

/// Panics if this thread has a shard of a keyed timer on this timer under its lock.
#[inline]
pub(crate) fn assert_none_held_on(timer: &TimerContext) {
    if NOTES && is_any(|(_, of)| of == ptr::from_ref(timer).addr()) {
        panic!("this thread advances a timer while it holds an entry of a keyed timer on it");
    }
}

fn is_any(is_meant: impl Fn(Held) -> bool) -> bool {
    // A thread at its end may have no storage any more: then nothing is checked.
    HOLDING.try_with(|holding| holding.borrow().iter().any(|held| is_meant(*held))) == Ok(true)
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use std::thread;

    impl Content for () {
        type Item = ();

        fn new() -> Self {}

        fn is_filed((): &()) -> bool {
            true
        }
    }

    /// Only this crate's turns leave a mark, and one that is not removed is one that no turn left.
    #[test]
    fn a_mark_that_no_turn_removes_delays_one_call_only() {
        let lock = Shard::<()>::new();
        let is_wanted = || lock.wanted.load(Ordering::Relaxed);
        let held = lock.lock();
        let turn = || lock.lock_for_turn(true).is_none();
        let is_busy = thread::scope(|scope| scope.spawn(turn).join());
        assert!(is_busy.is_ok_and(|is_busy| is_busy) && is_wanted());
        drop(held);
        drop(lock.lock());
        assert!(!is_wanted());
        TURNS.with(|turns| turns.set(1));
        lock.wanted.store(true, Ordering::Relaxed);
        drop(lock.lock());
        assert!(is_wanted(), "a turn does not wait for itself");
        drop(lock.lock_for_turn(true));
        assert!(!is_wanted());
    }
}
