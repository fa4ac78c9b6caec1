//! Keyed queues: values by key, each with a deadline, that one task owns and polls.

use crate::engine::alarm::Alarm;
use crate::engine::clock::{Clock, When};
use crate::table::{KeyTable, spread};
use crate::wheel::{LocalTimer, Popped, TimerKey};
use hashbrown::HashTable;
use std::borrow::Borrow;
use std::cmp::Reverse;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Nanoseconds of a tick, which is a millisecond.
const TICK_NS: u32 = 1_000_000;

/// The tick in which a queue is made: in the middle, because deadlines before it have ticks too.
const ORIGIN: u64 = 1 << 63;

/// Slots of each wheel: few, because a program may have a queue for each connection.
const WHEEL_SIZE: usize = 64;

/// Holds values by key, each with a deadline, for one task that owns the queue and polls it for
/// expired values. Needs no thread and no lock.
///
/// ```
/// use std::{future::poll_fn, time::Duration};
/// use tickwheel::{SystemClock, Timer, queue::KeyedQueue};
///
/// # pollster::block_on(async {
/// let timer = Timer::builder().start()?; // Or your runtime's sleep, if it is `Send`.
/// let mut calls = KeyedQueue::new(SystemClock, move |at| timer.sleep(at));
/// calls.insert(7, Duration::from_millis(5), "call 7");
/// calls.insert(8, Duration::from_secs(30), "call 8");
/// assert_eq!(calls.remove(&8), Some("call 8")); // It was answered.
/// let expired = poll_fn(|context| calls.poll_expired(context)).await;
/// assert_eq!(expired.map(|expired| expired.value), Some("call 7"));
/// # Ok::<(), tickwheel::BuildError>(())
/// # }).unwrap();
/// ```
///
/// You give the queue a clock, and a function that makes a sleep until a time of this clock. The
/// queue's type names neither, so a struct can have a queue as a field. A queue is `Send` or `Sync`
/// if its keys and values are.
///
/// # What it promises
/// - Nothing expires before its deadline. Deadlines are rounded up to a tick of a millisecond, and
///   values expire in the order of their ticks. A key whose deadline had passed when it was
///   inserted or moved comes between its tick and the tick in which that happened.
/// - A key stays until [`poll_expired`](Self::poll_expired) returns it or you remove it.
/// - Any deadline is valid. A missing key is no error.
/// - A later deadline costs a single write, and at most one wake-up at the former deadline.
/// - After `Pending`, the task is woken when the queue gets an earlier deadline or becomes empty.
///   After `Ready(None)`, it is woken when something is inserted.
/// - No method panics unless the caller's code does: the sleep, the clock, or a key's `Hash` or
///   `Eq`.
///
/// # Its sleeps
/// The clock and the sleeps must show the same time. A sleep may end early by the clock: it rounds
/// down to milliseconds, or the clock is slower. The queue then makes another one, which lasts
/// longer by what is left, at least by a millisecond. The key may then be late: by as much as its
/// sleep was early, or by two units of sleeps that are rounded, and a millisecond.
///
/// **After 17 sleeps that end while the clock stands still, the queue gives up.** That happens at
/// once if the timer of the sleeps is full or shut down. [`poll_expired`](Self::poll_expired) then
/// returns `Pending`, and nothing wakes the task at the first deadline. Any later poll returns what
/// is due, or makes a sleep again. So does the poll after a panic of the sleep, or of the function
/// that makes it.
///
/// # Costs
/// Inserting, removing and moving take constant time on average. The index is rebuilt when the keys
/// have doubled or have become few, or, now and then, while keys come and go. Expiring a value
/// takes constant time, plus one move for each wheel level that the value lay above the finest. A
/// queue takes 576 bytes, and with its first key 3 to 15 KB: the farther the deadline, the more. A
/// thousand or more keys of 8 bytes, with values of 8, take 70 to 100 bytes each.
pub struct KeyedQueue<K, V, S = RandomState> {
    clock: Clock,
    /// When the tick [`ORIGIN`] began.
    origin: Instant,
    timer: LocalTimer<Queued<K, V>>,
    /// Where the keys are in the timer.
    index: KeyTable<TimerKey>,
    hasher: S,
    /// Never locked: the mutex makes the queue `Sync`, whatever the sleep is.
    sleep: Mutex<Pin<Box<dyn Sleep + Send>>>,
    /// The first deadline's tick when the queue was polled last; `None` is never.
    sleeps_until: Option<u64>,
    /// Of the task that has polled last, unless it got a value.
    waker: Option<Waker>,
}

/// An entry of the timer, which keeps the tick of its deadline.
struct Queued<K, V> {
    key: K,
    value: V,
    /// The rest of its deadline.
    ahead_ns: Reverse<u32>,
    hash: u32,
}

/// A deadline in two parts, in the order of time: an `Instant` beside the timer's tick would cost
/// 16 bytes a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Deadline {
    /// Rounded up. Lasts for 292 million years to both sides of the origin.
    tick: u64,
    /// By how many nanoseconds the deadline is before its tick.
    ahead_ns: Reverse<u32>,
}

impl Deadline {
    /// A tick that [`LocalTimer`] takes, and the queue does not reach.
    const NEVER: Self = Deadline::at_tick(u64::MAX - 1);

    const fn at_tick(tick: u64) -> Self {
        Deadline {
            tick,
            ahead_ns: Reverse(0),
        }
    }

    #[inline]
    fn of(deadline: Option<Instant>, origin: Instant) -> Self {
        let Some(deadline) = deadline else {
            return Deadline::NEVER;
        };
        let Some(after) = deadline.checked_duration_since(origin) else {
            let before = origin.saturating_duration_since(deadline);
            return Deadline {
                tick: ORIGIN.saturating_sub(millis(before)),
                ahead_ns: Reverse(before.subsec_nanos() % TICK_NS),
            };
        };
        let ahead_ns = (TICK_NS - after.subsec_nanos() % TICK_NS) % TICK_NS;
        let tick = millis(after).saturating_add(ORIGIN + u64::from(ahead_ns > 0));
        let deadline = Deadline {
            tick,
            ahead_ns: Reverse(ahead_ns),
        };
        deadline.min(Deadline::NEVER)
    }

    /// Returns the time; `None` is never.
    fn time(self, origin: Instant) -> Option<Instant> {
        if self >= Deadline::NEVER {
            return None;
        }
        let start = if self.tick < ORIGIN {
            origin.checked_sub(Duration::from_millis(ORIGIN - self.tick))
        } else {
            origin.checked_add(Duration::from_millis(self.tick - ORIGIN))
        };
        start?.checked_sub(Duration::from_nanos(self.ahead_ns.0.into()))
    }
}

#[inline]
fn millis(duration: Duration) -> u64 {
    let whole = duration.as_secs().saturating_mul(1_000);
    whole.saturating_add(duration.subsec_millis().into())
}

/// A value that has expired and has left its [`KeyedQueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// The deadline, exactly as it was given.
    pub deadline: Instant,
}

/// An alarm whose type the queue does not name.
trait Sleep {
    fn poll(
        self: Pin<&mut Self>,
        deadline: Option<Instant>,
        clock: &Clock,
        context: &mut Context<'_>,
    ) -> Poll<()>;
}

impl<M: FnMut(Instant) -> F, F: Future> Sleep for Alarm<M, F> {
    fn poll(
        self: Pin<&mut Self>,
        deadline: Option<Instant>,
        clock: &Clock,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        self.poll(deadline, clock, context)
    }
}

impl<K: Hash + Eq, V> KeyedQueue<K, V> {
    /// Creates an empty queue. `sleep_until` makes a future that completes at a time of `clock`;
    /// the output of that future is ignored. The future must be `Send`: on compio, whose sleeps are
    /// not, use those of a [`Timer`](crate::Timer). Allocates once for both.
    ///
    /// The page [`guide::runtimes`](crate::guide::runtimes#a-keyed-queue-on-tokio) has the clock
    /// and the sleep of tokio, paused or not.
    #[must_use]
    pub fn new<F>(
        clock: impl Into<Clock>,
        sleep_until: impl FnMut(Instant) -> F + Send + 'static,
    ) -> Self
    where
        F: Future + Send + 'static,
    {
        Self::with_hasher(clock, sleep_until, RandomState::new())
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> KeyedQueue<K, V, S> {
    /// Creates an empty queue as [`new`](KeyedQueue::new) does, but hashes keys with `hasher`.
    #[must_use]
    pub fn with_hasher<F>(
        clock: impl Into<Clock>,
        sleep_until: impl FnMut(Instant) -> F + Send + 'static,
        hasher: S,
    ) -> Self
    where
        F: Future + Send + 'static,
    {
        let clock = clock.into();
        KeyedQueue {
            origin: clock.now(),
            clock,
            timer: LocalTimer::starting_at(ORIGIN, WHEEL_SIZE),
            index: KeyTable(HashTable::new()),
            hasher,
            sleep: Mutex::new(Box::pin(Alarm::new(sleep_until))),
            sleeps_until: None,
            waker: None,
        }
    }

    /// Adds a key with a value that expires at `when`. If the key is there, replaces its value and
    /// deadline, and returns the former value. The key in the queue stays, as in a `HashMap`.
    pub fn insert(&mut self, key: K, when: impl Into<When>, value: V) -> Option<V> {
        match self.entry(key) {
            Entry::Occupied(mut entry) => {
                entry.reschedule(when);
                Some(entry.replace(value))
            }
            Entry::Vacant(entry) => {
                entry.insert(when, value);
                None
            }
        }
    }

    /// Removes a key. Returns its value, if the key was there.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key)?;
        self.take(at).map(|queued| queued.value)
    }

    /// Moves a key's deadline, earlier or later. Returns whether the key was there.
    pub fn reschedule<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, when: impl Into<When>) -> bool
    where
        K: Borrow<Q>,
    {
        self.move_if(key, when.into(), |_, _| true)
    }

    /// Brings a key's deadline forward; it never moves to a later one. Returns whether the key was
    /// there.
    pub fn hasten<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, when: impl Into<When>) -> bool
    where
        K: Borrow<Q>,
    {
        self.move_if(key, when.into(), |former, new| new < former)
    }

    /// Extends a key's deadline; it never moves to an earlier one. Returns whether the key was
    /// there.
    pub fn touch<Q: Hash + Eq + ?Sized>(&mut self, key: &Q, when: impl Into<When>) -> bool
    where
        K: Borrow<Q>,
    {
        self.move_if(key, when.into(), |former, new| new > former)
    }

    /// Returns whether a key is there.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_some()
    }

    /// Returns a key's value, if the key is there.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.timer.get(self.find(key)?).map(|queued| &queued.value)
    }

    /// Returns a mutable reference to a key's value, if the key is there.
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key)?;
        self.timer.get_mut(at).map(|queued| &mut queued.value)
    }

    /// Returns a key's deadline; `None` if the key is not there, or never expires.
    pub fn deadline<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key)?;
        self.deadline_at(at)?.time(self.origin)
    }

    /// Returns the entry of a key, to look at it and change it with one look-up.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V, S> {
        let hash = self.hash(&key);
        match self.find_hashed(hash, &key) {
            Some(at) => Entry::Occupied(OccupiedEntry { queue: self, at }),
            None => Entry::Vacant(VacantEntry {
                queue: self,
                key,
                hash,
            }),
        }
    }

    #[inline]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u32 {
        spread(&self.hasher, key) as u32
    }

    fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<TimerKey>
    where
        K: Borrow<Q>,
    {
        self.find_hashed(self.hash(key), key)
    }

    #[inline]
    fn find_hashed<Q: Eq + ?Sized>(&self, hash: u32, key: &Q) -> Option<TimerKey>
    where
        K: Borrow<Q>,
    {
        let is_meant = |at: &TimerKey| {
            self.timer
                .get(*at)
                .is_some_and(|queued| queued.key.borrow() == key)
        };
        self.index.find(hash, is_meant).copied()
    }

    #[inline]
    fn move_if<Q: Hash + Eq + ?Sized>(
        &mut self,
        key: &Q,
        when: When,
        is_wanted: impl FnOnce(Deadline, Deadline) -> bool,
    ) -> bool
    where
        K: Borrow<Q>,
    {
        let Some(at) = self.find(key) else {
            return false;
        };
        self.move_to(at, when, is_wanted);
        true
    }
}

impl<K, V, S> KeyedQueue<K, V, S> {
    /// Returns a key of the first tick that has one, its value and its deadline, which is `None` if
    /// no key ever expires. Another key of that tick, whose deadline may be earlier by less than a
    /// millisecond, may expire before it. Keys of later ticks may too, if the deadline of this key
    /// had passed when the key was inserted or moved.
    ///
    /// Allocates. Sorts the occupied slots, and looks at each key in those that begin by the
    /// deadline that it returns.
    #[must_use]
    pub fn peek(&self) -> Option<(&K, &V, Option<Instant>)> {
        let (_, tick, queued) = self.timer.peek()?;
        Some(self.see(tick, queued))
    }

    /// Returns all keys with their values and deadlines, in no particular order. A deadline of
    /// `None` is never.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V, Option<Instant>)> {
        let all = self.timer.iter();
        all.map(|(_, tick, queued)| self.see(tick, queued))
    }

    /// Returns how many keys there are, including those that are due.
    #[must_use]
    pub fn len(&self) -> usize {
        self.timer.len()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many keys the index holds before it grows.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.index.0.capacity()
    }

    /// Shrinks the index to its keys. The memory of values is given back in chunks as they empty;
    /// [`clear`](Self::clear) gives everything back.
    pub fn shrink_to_fit(&mut self) {
        self.index.shrink_to_fit();
    }

    /// Keeps the keys for which `wanted` returns true for the key, its value and its deadline, and
    /// drops the others. A deadline of `None` is never. Takes time and memory proportional to the
    /// keys.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::{ManualClock, queue::KeyedQueue};
    /// # let mut calls = KeyedQueue::new(ManualClock::new(), |_| std::future::pending::<()>());
    /// calls.insert(7, Duration::from_secs(30), "ada");
    /// calls.insert(8, Duration::from_secs(30), "bob");
    /// calls.retain(|_, client, _| *client != "ada"); // She has left.
    /// assert!(!calls.contains(&7) && calls.contains(&8));
    /// ```
    pub fn retain(&mut self, mut wanted: impl FnMut(&K, &mut V, Option<Instant>) -> bool) {
        // Collected first, because the timer changes on the way.
        let all: Vec<_> = self.timer.iter().map(|(at, _, _)| at).collect();
        for at in all {
            let deadline = self.deadline_at(at).and_then(|it| it.time(self.origin));
            let Some(queued) = self.timer.get_mut(at) else {
                continue;
            };
            if !wanted(&queued.key, &mut queued.value, deadline) {
                // Before the value is dropped, which may panic, nothing is left of it.
                drop(self.take(at));
            }
        }
    }

    /// Drops all keys and values.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Removes all keys and returns them with their values and deadlines, in the order of their
    /// ticks. Dropping the iterator removes them as well.
    pub fn drain(
        &mut self,
    ) -> impl ExactSizeIterator<Item = (K, V, Option<Instant>)> + use<K, V, S> {
        self.index = KeyTable(HashTable::new());
        let all = self.timer.drain();
        self.wake();
        let origin = self.origin;
        all.map(move |(tick, queued)| {
            let deadline = queued.deadline(tick).time(origin);
            (queued.key, queued.value, deadline)
        })
    }

    /// Removes and returns the next expired key, in the order that the [type](Self) promises.
    ///
    /// - `Ready(Some(_))`: a key has expired. Poll again for the next one.
    /// - `Ready(None)`: the queue is empty.
    /// - `Pending`: [the sleep](crate::queue::KeyedQueue#its-sleeps) wakes the task at the first
    ///   deadline. The task is also woken [when the queue changes](Self).
    ///
    /// Takes constant time on average, and never blocks. Never yields while a key is due: on tokio,
    /// poll within `tokio::task::coop::cooperative`, which lets other tasks run.
    pub fn poll_expired(&mut self, context: &mut Context<'_>) -> Poll<Option<Expired<K, V>>> {
        loop {
            if let Some(expired) = self.pop() {
                return Poll::Ready(Some(expired));
            }
            match &mut self.waker {
                // Clones nothing if both wake the same task.
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            let has_come = self.poll_sleep(context).is_ready();
            if self.is_empty() {
                return Poll::Ready(None);
            }
            if !has_come {
                return Poll::Pending;
            }
            // The clock has reached the deadline since `pop` read it.
        }
    }

    /// Returns whether the first deadline has come. Otherwise the task sleeps until then.
    fn poll_sleep(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.sleeps_until = self.timer.next_expiration();
        let start_of = |tick| Deadline::at_tick(tick).time(self.origin);
        let deadline = self.sleeps_until.and_then(start_of);
        let sleep = self.sleep.get_mut().unwrap_or_else(PoisonError::into_inner);
        sleep.as_mut().poll(deadline, &self.clock, context)
    }

    fn pop(&mut self) -> Option<Expired<K, V>> {
        let age = self.clock.now().saturating_duration_since(self.origin);
        let now = millis(age).saturating_add(ORIGIN);
        let Popped {
            key,
            deadline,
            task,
        } = self.timer.pop(now.min(Deadline::NEVER.tick - 1))?;
        self.index.remove(task.hash, |other| *other == key);
        Some(Expired {
            deadline: task.deadline(deadline).time(self.origin)?,
            key: task.key,
            value: task.value,
        })
    }

    fn deadline_at(&self, at: TimerKey) -> Option<Deadline> {
        let tick = self.timer.deadline(at)?;
        Some(self.timer.get(at)?.deadline(tick))
    }

    fn see<'a>(&self, tick: u64, queued: &'a Queued<K, V>) -> (&'a K, &'a V, Option<Instant>) {
        let deadline = queued.deadline(tick).time(self.origin);
        (&queued.key, &queued.value, deadline)
    }

    fn add(&mut self, hash: u32, key: K, when: When, value: V) {
        let deadline = Deadline::of(self.clock.deadline_of(when), self.origin);
        let queued = Queued {
            key,
            value,
            ahead_ns: deadline.ahead_ns,
            hash,
        };
        let at = self.timer.add(deadline.tick, queued);
        self.index.insert(hash, at);
        self.wake_if_earlier();
    }

    #[inline]
    fn move_to(
        &mut self,
        at: TimerKey,
        when: When,
        is_wanted: impl FnOnce(Deadline, Deadline) -> bool,
    ) {
        let deadline = Deadline::of(self.clock.deadline_of(when), self.origin);
        let Some(former) = self.deadline_at(at) else {
            return;
        };
        if !is_wanted(former, deadline) {
            return;
        }
        if let Some(queued) = self.timer.get_mut(at) {
            queued.ahead_ns = deadline.ahead_ns;
        }
        self.timer.reschedule(at, deadline.tick);
        self.wake_if_earlier();
    }

    fn take(&mut self, at: TimerKey) -> Option<Queued<K, V>> {
        let queued = self.timer.cancel(at)?;
        self.index.remove(queued.hash, |other| *other == at);
        if self.is_empty() {
            self.wake();
        }
        Some(queued)
    }

    /// Wakes the task if it sleeps beyond the first deadline.
    #[inline]
    fn wake_if_earlier(&mut self) {
        if self.waker.is_some() {
            let first = self.timer.next_expiration();
            if self
                .sleeps_until
                .is_none_or(|until| first.is_some_and(|first| first < until))
            {
                self.wake();
            }
        }
    }

    /// Wakes the task that has polled last, unless it has got a value since.
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Nothing is pinned but the sleep, which has its own box.
impl<K, V, S> Unpin for KeyedQueue<K, V, S> {}

impl<K, V> Queued<K, V> {
    fn deadline(&self, tick: u64) -> Deadline {
        Deadline {
            tick,
            ahead_ns: self.ahead_ns,
        }
    }
}

/// A key of a [`KeyedQueue`], to look at and to change.
pub enum Entry<'a, K, V, S = RandomState> {
    /// The key is there.
    Occupied(OccupiedEntry<'a, K, V, S>),
    /// The key is not there.
    Vacant(VacantEntry<'a, K, V, S>),
}

/// A key that is there.
pub struct OccupiedEntry<'a, K, V, S = RandomState> {
    queue: &'a mut KeyedQueue<K, V, S>,
    at: TimerKey,
}

/// A key that is not there.
pub struct VacantEntry<'a, K, V, S = RandomState> {
    queue: &'a mut KeyedQueue<K, V, S>,
    key: K,
    hash: u32,
}

impl<K, V, S> OccupiedEntry<'_, K, V, S> {
    fn queued(&self) -> &Queued<K, V> {
        self.queue
            .timer
            .get(self.at)
            .expect("the entry borrows the queue")
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.queued().key
    }

    /// Returns the value.
    #[must_use]
    pub fn get(&self) -> &V {
        &self.queued().value
    }

    /// Returns the value to be changed.
    pub fn get_mut(&mut self) -> &mut V {
        let queued = self.queue.timer.get_mut(self.at);
        &mut queued.expect("the entry borrows the queue").value
    }

    /// Returns the deadline; `None` if the key never expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.queue.deadline_at(self.at);
        deadline.and_then(|it| it.time(self.queue.origin))
    }

    /// Replaces the value, and returns the former one. The deadline stays.
    pub fn replace(&mut self, value: V) -> V {
        mem::replace(self.get_mut(), value)
    }

    /// Extends the deadline; it never moves to an earlier one.
    pub fn touch(&mut self, when: impl Into<When>) {
        let is_wanted = |former, new| new > former;
        self.queue.move_to(self.at, when.into(), is_wanted);
    }

    /// Brings the deadline forward; it never moves to a later one.
    pub fn hasten(&mut self, when: impl Into<When>) {
        let is_wanted = |former, new| new < former;
        self.queue.move_to(self.at, when.into(), is_wanted);
    }

    /// Moves the deadline, earlier or later.
    pub fn reschedule(&mut self, when: impl Into<When>) {
        self.queue.move_to(self.at, when.into(), |_, _| true);
    }

    /// Removes the key, and returns its value.
    pub fn remove(self) -> V {
        let taken = self.queue.take(self.at);
        taken.expect("the entry borrows the queue").value
    }
}

impl<K, V, S> VacantEntry<'_, K, V, S> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Adds the key with a value that expires at `when`.
    pub fn insert(self, when: impl Into<When>, value: V) {
        self.queue.add(self.hash, self.key, when.into(), value);
    }
}

/// Yields the values that expire. Ends when the queue is empty, and goes on if a key is inserted
/// after that.
#[cfg(feature = "stream")]
impl<K, V, S> futures_core::Stream for KeyedQueue<K, V, S> {
    type Item = Expired<K, V>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_expired(context)
    }
}

impl<K, V, S> fmt::Debug for KeyedQueue<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut queue = f.debug_struct("KeyedQueue");
        queue
            .field("clock", &self.clock)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<K, V, S> fmt::Debug for Entry<'_, K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Occupied(entry) => f.debug_tuple("Occupied").field(entry).finish(),
            Entry::Vacant(entry) => f.debug_tuple("Vacant").field(entry).finish(),
        }
    }
}

impl<K, V, S> fmt::Debug for OccupiedEntry<'_, K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupiedEntry")
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}

impl<K, V, S> fmt::Debug for VacantEntry<'_, K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VacantEntry").finish_non_exhaustive()
    }
}
