//! Keyed timers: at most one timer for each key.

use crate::key::Key;
use crate::key_map::{KeyMap, shard_of, spread};
use crate::sync::{Mutex, MutexGuard};
use crate::{AddError, Task, Timeout, Timer, TimerEntry, When};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// Timers by key, at most one for each: sessions, keys with a time to live, members of a group.
///
/// To schedule a key again replaces its task. Replacing, cancelling, touching and expiring one key
/// are one atomic step against each other, from whichever threads: a task that was replaced or
/// cancelled never expires, and a key whose task has expired is gone.
///
/// The timers stand on a [`Timer`] that others may share, and expire by its executor, which must
/// not drop the tasks that it refuses. Cloning shares them. When the last clone is dropped, all
/// are cancelled.
///
/// All methods take constant time and the lock of one shard for as long, unless they say otherwise.
/// Keys are compared, cloned and dropped under it, so these must not use the keyed timer.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{KeyedTimer, ManualClock, Timer, TimerEntry};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (expired, sessions) = mpsc::channel();
/// let keyed = KeyedTimer::new(&timer, move |client: &str, session: u64| {
///     expired.send((client, session)).unwrap();
/// });
///
/// let minute = Duration::from_secs(60);
/// keyed.schedule("ada", TimerEntry::after(minute, 1_u64))?;
/// keyed.schedule("bob", TimerEntry::after(minute, 2_u64))?;
/// clock.advance(minute / 2);
/// assert!(keyed.touch(&"ada", minute)); // A sign of life.
/// clock.advance(minute / 2);
/// timer.advance_clock(Duration::ZERO);
/// assert_eq!(sessions.try_recv()?, ("bob", 2));
/// assert_eq!(keyed.cancel(&"ada"), Some(1));
/// assert!(keyed.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeyedTimer<K, T = Task, S = RandomState>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    shared: Arc<Shared<K, T>>,
    hasher: S,
}

/// Dropped with the last clone: alarms refer to the shards only.
struct Shared<K: Eq, T> {
    timer: Timer,
    shards: Arc<Shards<K, T>>,
}

type PaddedMap<K, T> = CachePadded<Mutex<KeyMap<K, Slot<T>>>>;

struct Shards<K, T> {
    /// Their number is a power of two. Padded, so that two locks never share a cache line.
    shards: Box<[PaddedMap<K, T>]>,
    expired: Box<dyn Fn(K, T) + Send + Sync>,
}

/// What a key has.
struct Slot<T> {
    task: T,
    /// `None` only while it is made.
    alarm: Option<Timeout>,
    /// Which alarm is the key's: one that is on its way to the executor can't be called back.
    epoch: u32,
}

/// The timer's task.
struct Alarm<K, T> {
    shards: Arc<Shards<K, T>>,
    shard: usize,
    key: Key,
    epoch: u32,
}

impl<K, T> KeyedTimer<K, T>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    /// No keys yet. `expired` is called with each key and task that expires, by `timer`'s executor;
    /// for closures that is `|_, task: Task| task.run()`.
    pub fn new(timer: &Timer, expired: impl Fn(K, T) + Send + Sync + 'static) -> Self {
        Self::with_hasher(timer, RandomState::new(), expired)
    }
}

impl<K, T, S> KeyedTimer<K, T, S>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
    S: BuildHasher,
{
    /// The same with another way to hash keys.
    pub fn with_hasher(
        timer: &Timer,
        hasher: S,
        expired: impl Fn(K, T) + Send + Sync + 'static,
    ) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        // So many shards that two threads seldom want the same one.
        let shards = (32 * threads).next_power_of_two().min(1 << 12);
        let shards = (0..shards).map(|_| CachePadded::new(Mutex::new(KeyMap::new()))).collect();
        let shards = Arc::new(Shards { shards, expired: Box::new(expired) });
        KeyedTimer { shared: Arc::new(Shared { timer: timer.clone(), shards }), hasher }
    }

    /// Schedules a key's task, and returns the task that it replaces.
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down. Then the key's
    /// former task is as it was.
    pub fn schedule(&self, key: K, entry: TimerEntry<T>) -> Result<Option<T>, AddError<T>> {
        let (hash, when) = (self.hash(&key), entry.when());
        let mut map = self.shard(hash);
        let Some(index) = map.find(hash, &key) else {
            self.add(&mut map, hash, key, entry)?;
            return Ok(None);
        };
        let slot = map.at_mut(index);
        if !slot.alarm.as_ref().is_some_and(|alarm| reschedule(alarm, when)) {
            // The alarm has gone off, but its task was not taken yet: it comes too late.
            let (key, epoch) = (map.name(index), map.at(index).epoch.wrapping_add(1));
            let alarm = match self.shared.alarm(hash, key, epoch, when) {
                Ok(alarm) => alarm,
                Err(error) => return Err(refused(error, entry)),
            };
            let slot = map.at_mut(index);
            (slot.alarm, slot.epoch) = (Some(alarm), epoch);
        }
        Ok(Some(mem::replace(&mut map.at_mut(index).task, entry.into_task())))
    }

    /// Schedules a task if the key has none; otherwise the entry comes back.
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down.
    pub fn schedule_if_absent(
        &self,
        key: K,
        entry: TimerEntry<T>,
    ) -> Result<Option<TimerEntry<T>>, AddError<T>> {
        let hash = self.hash(&key);
        let mut map = self.shard(hash);
        if map.find(hash, &key).is_some() {
            return Ok(Some(entry));
        }
        self.add(&mut map, hash, key, entry).map(|()| None)
    }

    fn add(
        &self,
        map: &mut KeyMap<K, Slot<T>>,
        hash: u64,
        key: K,
        entry: TimerEntry<T>,
    ) -> Result<(), AddError<T>> {
        let when = entry.when();
        let slot = Slot { task: entry.into_task(), alarm: None, epoch: 0 };
        let place = map.insert(hash, key, slot);
        match self.shared.alarm(hash, place, 0, when) {
            Ok(alarm) => map.at_mut(place.index).alarm = Some(alarm),
            Err(error) => {
                if let Some((_, slot)) = map.remove(place.index) {
                    return Err(refused(error, TimerEntry { when, task: slot.task }));
                }
            }
        }
        Ok(())
    }

    /// Takes a key's task back, if it has not expired.
    pub fn cancel(&self, key: &K) -> Option<T> {
        let hash = self.hash(key);
        let mut map = self.shard(hash);
        let index = map.find(hash, key)?;
        let (key, slot) = map.remove(index)?;
        drop(map);
        drop(key);
        Some(slot.cancel())
    }

    /// Extends a key's deadline to `delay` from now; it never moves to an earlier one. Returns
    /// whether the key has a task.
    ///
    /// What a service does on every sign of life: it writes one word.
    pub fn touch(&self, key: &K, delay: Duration) -> bool {
        self.with_alarm(key, |alarm| alarm.touch(delay))
    }

    /// Extends a key's deadline to `deadline`, likewise; spares the look at the clock.
    pub fn touch_at(&self, key: &K, deadline: Instant) -> bool {
        self.with_alarm(key, |alarm| alarm.touch_at(deadline))
    }

    /// Moves a key's deadline to `delay` from now, earlier or later. Returns whether the key has a
    /// task.
    pub fn reschedule(&self, key: &K, delay: Duration) -> bool {
        self.with_alarm(key, |alarm| alarm.reschedule(delay))
    }

    /// Moves a key's deadline to `deadline`, earlier or later. Returns whether the key has a task.
    pub fn reschedule_at(&self, key: &K, deadline: Instant) -> bool {
        self.with_alarm(key, |alarm| alarm.reschedule_at(deadline))
    }

    /// When a key's task expires.
    pub fn deadline(&self, key: &K) -> Option<Instant> {
        let hash = self.hash(key);
        let map = self.shard(hash);
        map.at(map.find(hash, key)?).alarm.as_ref()?.deadline()
    }

    /// Whether a key has a task that has not expired.
    pub fn contains(&self, key: &K) -> bool {
        self.with_alarm(key, Timeout::is_pending)
    }

    /// How many keys there are. Looks at each shard once, at no key.
    pub fn len(&self) -> usize {
        self.shared.shards.shards.iter().map(|map| map.lock().len()).sum()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all keys and tasks back, in no order. Takes time proportional to them, but holds no
    /// lock for long.
    pub fn cancel_all(&self) -> Vec<(K, T)> {
        self.shared.cancel_all()
    }

    /// Checks every structure inside and panics if one is broken: for tests.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.shared.shards.shards.iter().for_each(|map| map.lock().assert_invariants());
    }

    fn with_alarm(&self, key: &K, change: impl FnOnce(&Timeout) -> bool) -> bool {
        let hash = self.hash(key);
        let map = self.shard(hash);
        let slot = map.find(hash, key).map(|index| map.at(index));
        slot.and_then(|slot| slot.alarm.as_ref()).is_some_and(change)
    }

    fn hash(&self, key: &K) -> u64 {
        spread(&self.hasher, key)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, KeyMap<K, Slot<T>>> {
        let shards = &self.shared.shards.shards;
        shards[shard_of(hash, shards.len())].lock()
    }
}

fn reschedule(alarm: &Timeout, when: When) -> bool {
    match when {
        When::After(delay) => alarm.reschedule(delay),
        When::At(deadline) => alarm.reschedule_at(deadline),
    }
}

fn refused<T>(error: AddError<Task>, entry: TimerEntry<T>) -> AddError<T> {
    match error {
        AddError::Full(_) => AddError::Full(entry),
        AddError::Shutdown(_) => AddError::Shutdown(entry),
    }
}

impl<K, T> Shared<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    fn alarm(
        &self,
        hash: u64,
        key: Key,
        epoch: u32,
        when: When,
    ) -> Result<Timeout, AddError<Task>> {
        let shards = Arc::clone(&self.shards);
        let shard = shard_of(hash, shards.shards.len());
        let alarm = Waker::from(Arc::new(Alarm { shards, shard, key, epoch }));
        self.timer.add(TimerEntry { when, task: Task::from(alarm) })
    }
}

impl<K: Eq, T> Shared<K, T> {
    fn cancel_all(&self) -> Vec<(K, T)> {
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for shard in &self.shards.shards {
            // A few at a time, so that the lock is never held for long.
            loop {
                shard.lock().take_some(64, &mut batch);
                if batch.is_empty() {
                    break;
                }
                all.extend(batch.drain(..).map(|(key, slot)| (key, slot.cancel())));
            }
        }
        all
    }
}

impl<T> Slot<T> {
    fn cancel(self) -> T {
        if let Some(alarm) = self.alarm {
            drop(alarm.cancel());
        }
        self.task
    }
}

impl<K, T> Wake for Alarm<K, T>
where
    K: Eq + Send + 'static,
    T: Send + 'static,
{
    fn wake(self: Arc<Self>) {
        let mut map = self.shards.shards[self.shard].lock();
        let index = map.find_named(self.key).filter(|index| map.at(*index).epoch == self.epoch);
        let expired = index.and_then(|index| map.remove(index));
        drop(map);
        if let Some((key, slot)) = expired {
            (self.shards.expired)(key, slot.task);
        }
    }
}

impl<K: Eq, T> Drop for Shared<K, T> {
    fn drop(&mut self) {
        drop(self.cancel_all());
    }
}

impl<K, T, S: Clone> Clone for KeyedTimer<K, T, S>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        KeyedTimer { shared: Arc::clone(&self.shared), hasher: self.hasher.clone() }
    }
}

impl<K, T, S> fmt::Debug for KeyedTimer<K, T, S>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTimer").finish_non_exhaustive()
    }
}
