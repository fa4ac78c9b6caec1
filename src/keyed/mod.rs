//! Keyed timers: at most one timer for each key.

pub(crate) mod entry;
pub(crate) mod looks;
pub(crate) mod shards;
pub(crate) mod shard;

use crate::keyed::entry::Held;
pub use crate::keyed::entry::{Entry, OccupiedEntry, VacantEntry};
use crate::keyed::shard::Shard;
use crate::keyed::shards::{Registration, Shards};
use crate::store::key_map::spread;
use crate::timer::Timer;
use crate::timer::context::TimerContext;
use crate::timer::entry::{Task, TimerEntry, When};
use crate::timer::error::AddError;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
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
/// executor had by then expire the keys whose time is up, if they are run.)
///
/// The keys lie in wheels of their own, which the timer's reaper drives. So a key counts once:
/// in the timer's `len`, `stats` and `snapshot`, and for `max_pending` until it is gone. How late
/// it was is counted when its task runs. The timer's `shutdown` does not return keys.
///
/// All methods take constant time and the lock of one shard for as long, unless they say otherwise.
/// On average: a shard's index of keys is built anew, under the shard's lock, when its keys have
/// doubled or have become few, and that takes time proportional to the keys in the shard. There are
/// 8 shards or more for each hardware thread, at most 4096.
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
    shards: Arc<Shards<K, T>>,
    registration: Arc<Registration<K, T>>,
    hasher: S,
}

impl<K, T> KeyedTimer<K, T>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    /// No keys yet. `expired` is called with each key and task that expires, by the executor of
    /// [`Timer::closures`]; for closures that is `|_, task: Task| task.run()`. It must not own a
    /// clone of the keyed timer: then neither would ever be dropped. What owns the keyed timer can
    /// be given to it as a `Weak`, by [`Arc::new_cyclic`].
    pub fn new<U: Send + 'static>(
        timer: &Timer<U>,
        expired: impl Fn(K, T) + Send + Sync + 'static,
    ) -> Self {
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
    pub fn with_hasher<U: Send + 'static>(
        timer: &Timer<U>,
        hasher: S,
        expired: impl Fn(K, T) + Send + Sync + 'static,
    ) -> Self {
        let timer = timer.closures();
        let shards = Shards::new(&timer, expired);
        let registration = Arc::new(Registration { timer, shards: Arc::clone(&shards) });
        KeyedTimer { shards, registration, hasher }
    }

    /// Returns what there is under a key, to be looked at and changed in one step: nobody else can
    /// schedule, cancel or expire the key until the entry is dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::{Entry, KeyedTimer};
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer = Timer::builder().build()?;
    /// # let keyed = KeyedTimer::new(&timer, |_: &str, _: u32| ());
    /// // How many requests of a client there were within a minute of each other.
    /// for client in ["ada", "bob", "ada"] {
    ///     let minute = Duration::from_secs(60);
    ///     match keyed.entry(client) {
    ///         Entry::Occupied(mut requests) => {
    ///             *requests.get_mut() += 1;
    ///             requests.touch(minute);
    ///         }
    ///         Entry::Vacant(first) => first.schedule(TimerEntry::after(minute, 1_u32))?,
    ///     }
    /// }
    /// assert_eq!((keyed.get(&"ada"), keyed.get(&"bob")), (Some(2), Some(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entry(&self, key: K) -> Entry<'_, K, T> {
        let hash = self.hash(&key);
        let mut held = Held::new(&self.shards, self.shards.shard(hash).lock());
        match held.shard().find(hash, &key) {
            Some(index) => Entry::Occupied(OccupiedEntry::new(held, index)),
            None => Entry::Vacant(VacantEntry::new(held, hash, key)),
        }
    }

    /// Schedules a key's task, and returns the task that it replaces.
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down. Then the key's
    /// former task is as it was.
    pub fn schedule(&self, key: K, entry: TimerEntry<T>) -> Result<Option<T>, AddError<T>> {
        let context = &*self.shards.context;
        let (times, hash) = (context.resolve(entry.when()), self.hash(&key));
        let mut shard = self.shards.shard(hash).lock();
        let (former, wakes) = match shard.find(hash, &key) {
            Some(_) if shard.closed => return Err(AddError::Shutdown(entry)),
            Some(index) => {
                let wakes = shard.move_to(context, index, times);
                (Some(shard.replace(index, entry.into_task())), wakes)
            }
            None => (None, shard.add(context, hash, (key, entry), times)?),
        };
        drop(shard);
        context.delay_queue.wake(wakes);
        Ok(former)
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
        match self.entry(key) {
            Entry::Vacant(vacant) => vacant.schedule(entry).map(|()| None),
            Entry::Occupied(_) => Ok(Some(entry)),
        }
    }

    /// Takes a key's task back, if it has not expired: whichever it is, also one that somebody else
    /// has scheduled since. [`cancel_if`](Self::cancel_if) looks at it first.
    pub fn cancel<Q>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let taken = self.shards.shard(hash).lock().take(self.context(), hash, key);
        taken.map(|(_key, task)| task)
    }

    /// Extends a key's deadline to `delay` from now; it never moves to an earlier one. Returns
    /// whether the key has a task.
    ///
    /// What a service does on every sign of life: it looks the key up and writes its deadline down.
    /// The wheels look at that when the former one comes.
    pub fn touch<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (_, deadline) = self.context().resolve(When::After(delay));
        self.found(key, |shard, index| shard.core.extend(index, deadline)).is_some()
    }

    /// Extends a key's deadline to `deadline`, likewise; spares the look at the clock.
    pub fn touch_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let deadline = self.context().time.deadline_at(deadline);
        self.found(key, |shard, index| shard.core.extend(index, deadline)).is_some()
    }

    /// Moves a key's deadline to `delay` from now, earlier or later. Returns whether the key has a
    /// task.
    pub fn reschedule<Q>(&self, key: &Q, delay: Duration) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, When::After(delay))
    }

    /// Moves a key's deadline to `deadline`, earlier or later. Returns whether the key has a task.
    pub fn reschedule_at<Q>(&self, key: &Q, deadline: Instant) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, When::At(deadline))
    }

    /// When a key's task expires; `None` also if that is never: more than 584 years away.
    pub fn deadline<Q>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.found(key, |shard, index| shard.deadline(self.context(), index))?
    }

    /// Whether a key has a task.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.found(key, |_, _| ()).is_some()
    }

    /// How many keys there are. Looks at each shard once, at no key.
    pub fn len(&self) -> usize {
        self.shards.keys()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all keys and tasks back, in no order. Takes time proportional to them, but holds no
    /// lock for long.
    pub fn cancel_all(&self) -> Vec<(K, T)> {
        self.shards.cancel_all()
    }

    /// Checks every structure inside and panics if one is broken: for tests.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.shards.assert_keys();
    }

    /// Calls `change` with a key's shard, under its lock, and the key's place there.
    #[inline]
    pub(crate) fn found<Q, R>(
        &self,
        key: &Q,
        change: impl FnOnce(&mut Shard<K, T>, u32) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut shard = self.shards.shard(hash).lock();
        let index = shard.find(hash, key)?;
        Some(change(&mut shard, index))
    }

    fn move_to<Q>(&self, key: &Q, when: When) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let times = self.context().resolve(when);
        let wakes = self.found(key, |shard, index| shard.move_to(self.context(), index, times));
        wakes.map(|wakes| self.context().delay_queue.wake(wakes)).is_some()
    }

    #[inline]
    pub(crate) fn context(&self) -> &TimerContext {
        &self.shards.context
    }

    /// Never inlined: so that hashing is, into the one place that calls it.
    #[inline(never)]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        spread(&self.hasher, key)
    }
}

impl<K, T, S: Clone> Clone for KeyedTimer<K, T, S>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
{
    fn clone(&self) -> Self {
        let (shards, registration) = (Arc::clone(&self.shards), Arc::clone(&self.registration));
        KeyedTimer { shards, registration, hasher: self.hasher.clone() }
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
