//! Keyed timers: at most one timer for each key.

pub(crate) mod shards;

use crate::keyed::shards::{Owner, Shared, Slot};
use crate::store::key_map::{KeyMap, spread};
use crate::timer::Timer;
use crate::timer::entry::{Task, TimerEntry, When};
use crate::timer::error::AddError;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timers by key, at most one for each: sessions, keys with a time to live, members of a group.
///
/// To schedule a key again replaces its task. Replacing, cancelling, touching and expiring one key
/// are one atomic step against each other, from whichever threads: a task that was replaced or
/// cancelled never expires, and a key whose task has expired is gone.
///
/// The timers stand on a [`Timer`] that others may share, and expire by its executor, which must
/// not drop the tasks that it refuses. They keep the timer alive. Cloning shares them. When the
/// last clone is dropped, all are cancelled. A panic of `expired` is a panic of the timer's task,
/// and counted as such; one of the `Drop` of what the last clone leaves is contained, reported, and
/// counted by the timer too.
///
/// A key whose time is up, but whose task the executor has not run yet, is as any other: it can
/// still be cancelled, replaced, or moved to a later deadline. After a `shutdown` of the timer no
/// key expires any more; [`cancel_all`](Self::cancel_all) returns what is left. (The tasks that the
/// executor had by then, or that the shutdown returned, expire the keys whose time is up, if they
/// are run.)
///
/// A key that was extended costs the timer a task at its former deadline, which sets its alarm
/// again: `advance_clock` and `stats` count that as expired.
///
/// All methods take constant time and the lock of one shard for as long, unless they say otherwise.
/// On average: a shard's table of keys is built anew, under the shard's lock, when its keys have
/// doubled or have become few, and that takes time proportional to the keys in the shard. There are
/// 32 shards or more for each hardware thread, at most 4096.
///
/// Keys are compared and dropped under a shard's lock, so these must not use the keyed timer. Where
/// a key is only looked up, it may be given in any form that it can be borrowed as, a `String` as a
/// `&str`.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer, TimerEntry};
/// use tickwheel::keyed::KeyedTimer;
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
    /// What `owner` refers to as well: here, so that a call follows one pointer.
    shared: Arc<Shared<K, T>>,
    owner: Arc<Owner<K, T>>,
    hasher: S,
}

impl<K, T> KeyedTimer<K, T>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    /// No keys yet. `expired` is called with each key and task that expires, by `timer`'s executor;
    /// for closures that is `|_, task: Task| task.run()`. It must not own a clone of the keyed
    /// timer: then neither would ever be dropped. What owns the keyed timer can be given to it as a
    /// `Weak`, by [`Arc::new_cyclic`].
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
        let shared = Shared::new(timer.clone(), expired);
        let owner = Arc::new(Owner(Arc::clone(&shared)));
        KeyedTimer { shared, owner, hasher }
    }

    /// Schedules a key's task, and returns the task that it replaces.
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down. Then the key's
    /// former task is as it was.
    pub fn schedule(&self, key: K, entry: TimerEntry<T>) -> Result<Option<T>, AddError<T>> {
        let (hash, deadline) = (self.hash(&key), self.shared.deadline(entry.when()));
        let mut map = self.shared.shard(hash);
        let former = map.find(hash, &key);
        if let Some(slot) = former.map(|index| map.at_mut(index)) {
            let when = When::at_or_never(deadline);
            if slot.alarm.as_ref().is_some_and(|alarm| alarm.reschedule_to(when)) {
                slot.deadline = deadline;
                return Ok(Some(mem::replace(&mut slot.task, entry.into_task())));
            }
            // The alarm has gone off, but did not come here yet: it comes too late.
        }
        self.add(&mut map, hash, key, entry, deadline)?;
        let former = former.and_then(|index| map.remove(index));
        drop(map);
        Ok(former.map(|(_, slot)| slot.task))
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
        let (hash, deadline) = (self.hash(&key), self.shared.deadline(entry.when()));
        let mut map = self.shared.shard(hash);
        if map.find(hash, &key).is_some() {
            return Ok(Some(entry));
        }
        self.add(&mut map, hash, key, entry, deadline).map(|()| None)
    }

    fn add(
        &self,
        map: &mut KeyMap<K, Slot<T>>,
        hash: u64,
        key: K,
        entry: TimerEntry<T>,
        deadline: Option<Instant>,
    ) -> Result<(), AddError<T>> {
        let when = entry.when();
        let name = map.insert(hash, key, Slot { task: entry.into_task(), deadline, alarm: None });
        match self.shared.alarm(hash, name, deadline) {
            Ok(alarm) => map.at_mut(name.index).alarm = Some(alarm),
            Err(error) => {
                if let Some((_, slot)) = map.remove(name.index) {
                    return Err(refused(error, TimerEntry::new(when, slot.task)));
                }
            }
        }
        Ok(())
    }

    /// Takes a key's task back, if it has not expired.
    pub fn cancel<Q>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut map = self.shared.shard(hash);
        let index = map.find(hash, key)?;
        let (_key, slot) = map.remove(index)?;
        drop(map);
        Some(slot.cancel())
    }

    /// Extends a key's deadline to `delay` from now; it never moves to an earlier one. Returns
    /// whether the key has a task.
    ///
    /// What a service does on every sign of life: it looks the key up and writes its deadline down,
    /// without the timer. That looks at the deadline when the former one comes.
    pub fn touch<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let deadline = self.shared.deadline(When::After(delay));
        self.change(key, |slot| slot.extend_to(deadline))
    }

    /// Extends a key's deadline to `deadline`, likewise; spares the look at the clock.
    pub fn touch_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.change(key, |slot| slot.extend_to(Some(deadline)))
    }

    /// Moves a key's deadline to `delay` from now, earlier or later. Returns whether the key has a
    /// task.
    pub fn reschedule<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let deadline = self.shared.deadline(When::After(delay));
        self.change(key, |slot| slot.move_to(deadline))
    }

    /// Moves a key's deadline to `deadline`, earlier or later. Returns whether the key has a task.
    pub fn reschedule_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.change(key, |slot| slot.move_to(Some(deadline)))
    }

    /// When a key's task expires; `None` also if that is so far away that no `Instant` can tell.
    pub fn deadline<Q>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let map = self.shared.shard(hash);
        map.at(map.find(hash, key)?).deadline
    }

    /// Whether a key has a task.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shared.shard(hash).find(hash, key).is_some()
    }

    /// How many keys there are. Looks at each shard once, at no key.
    pub fn len(&self) -> usize {
        self.shared.all().iter().map(|map| map.lock().len()).sum()
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
        self.shared.all().iter().for_each(|map| map.lock().assert_invariants());
    }

    /// Whether there is such a key to change.
    fn change<Q>(&self, key: &Q, change: impl FnOnce(&mut Slot<T>)) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut map = self.shared.shard(hash);
        let index = map.find(hash, key);
        index.map(|index| change(map.at_mut(index))).is_some()
    }

    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        spread(&self.hasher, key)
    }
}

fn refused<T>(error: AddError<Task>, entry: TimerEntry<T>) -> AddError<T> {
    match error {
        AddError::Full(_) => AddError::Full(entry),
        AddError::Shutdown(_) => AddError::Shutdown(entry),
    }
}

impl<K, T, S: Clone> Clone for KeyedTimer<K, T, S>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        let (shared, owner) = (Arc::clone(&self.shared), Arc::clone(&self.owner));
        KeyedTimer { shared, owner, hasher: self.hasher.clone() }
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
