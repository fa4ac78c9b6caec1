//! Keyed timers: at most one timer for each key.

use crate::engine::clock::When;
use crate::engine::shard::{AnyShard, Shard, ShardState};
use crate::keyed::entry::Held;
use crate::keyed::shard::{KeyState, Keyed, Keys, OnExpired};
use crate::table::spread;
use crate::timer::Timer;
use crate::timer::entry::{IntoTask, Sealed, Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::registered::Registered;
use crate::wheel::tick::{Due, Nanos};
use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::time::Instant;

pub(crate) mod entry;
pub(crate) mod shard;

pub use crate::keyed::entry::{Entry, OccupiedEntry, VacantEntry};

/// Shards for each hardware thread. A call takes one lock, so twice as many shards bring two
/// threads 5 % at most, and cost one thread 3 %.
const SHARDS: usize = 8;

/// Holds timers by key, at most one for each key: for sessions, keys with a time to live, or
/// members of a group.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Timer, keyed::KeyedTimer};
///
/// let timer = Timer::builder().start()?;
/// let sessions = KeyedTimer::new(&timer, |client: &str, _: u64| println!("{client} is gone"));
/// let minute = Duration::from_secs(60);
/// sessions.add("ada", minute, 1_u64)?;
/// assert!(sessions.touch("ada", minute)); // A sign of life.
/// assert_eq!(sessions.cancel("ada"), Some(1)); // She has left.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Adding a key again replaces its task. Replacing, cancelling, touching and expiring a key are
/// atomic, on whichever threads they happen. A task that was replaced or cancelled never expires. A
/// key whose task has expired is gone.
///
/// A keyed timer uses a [`Timer`], which others may share, and keeps it alive. Its tasks expire
/// through the executor of [`Timer::closures`]. Clones share the same keys. Dropping the last clone
/// cancels all keys silently: no event reports them. A panic of `expired` is contained and counted
/// like a panic of the timer's tasks. A panic in the `Drop` of a key or task reaches the caller, as
/// in std's collections.
///
/// # A key whose time is up
/// It stays until the timer's next turn takes it out. Until then:
///
/// | call | of a key whose time is up |
/// |---|---|
/// | `get`, `with`, `contains`, `deadline`, `find`, `for_each`, `visit_from` | does not see it |
/// | `touch`, `touch_if`, `hasten`, `reschedule` | returns false, and changes nothing |
/// | `cancel`, `cancel_if`, `cancel_all` | takes it: it does not expire |
/// | `retain` | asks the closure, and takes it unless it is wanted |
/// | `add` | replaces its task, and returns the former one |
/// | `entry` | is [`Vacant`](Entry::Vacant), whose `add` replaces the task as well |
/// | `len`, `is_empty` | counts it |
///
/// # When a key has expired
/// The key is free as soon as it goes to the executor with its task, even before `expired` is
/// called. [`add`](Self::add) and [`cancel`](Self::cancel) then return `None`, and
/// [`cancel_all`](Self::cancel_all) leaves the key out. With a busy executor, `expired` may be
/// called after a newer task was added. A closure that acts on anything outside its task compares a
/// generation: [the guide](crate::guide#one-timer-for-each-key) shows how.
///
/// `expired` is called for each key that went to the executor, also after a `shutdown` of the timer
/// or a drop of the last clone. It is not called for a task that the executor drops. A task that
/// the executor refuses contains its key; the builder's
/// [`on_refused`](crate::TimerBuilder::on_refused) may run it.
///
/// After a `shutdown` of the timer no key expires, and no deadline moves: `touch`, `touch_if`,
/// `hasten` and `reschedule` return false, and those of an entry change nothing. `shutdown` does
/// not return keys; [`cancel_all`](Self::cancel_all) does.
///
/// # Closures under a lock
/// A closure that inspects a task in place runs under the lock of the key's shard. It must be
/// quick, and must not use the keyed timer. Keys are compared under that lock too: their `Eq` and
/// `Borrow` must not use the keyed timer. Keys are hashed and dropped outside the lock.
///
/// # Costs
/// Unless its documentation says otherwise, each method takes constant time on average, and holds
/// the lock of one shard meanwhile. Keys lie in shards: at least 8 for each hardware thread, and at
/// most 4096. A shard's index is rebuilt under the shard's lock when its keys have doubled or have
/// become few, or, now and then, while keys come and go, in time proportional to them. A thread
/// that keeps some keys locked without a pause delays the expiry of these keys, and of no others. A
/// key that expires costs an allocation, for the task that calls `expired`. A key that is cancelled
/// or extended costs none.
///
/// Each key counts once in the timer's `len` and `stats`, and towards `max_pending`, until it is
/// taken out. It counts in the timer's `snapshot` unless it never expires. Its lateness is measured
/// when it is taken out. A look-up takes any borrowed form of a key, such as a `&str` for a
/// `String`.
pub struct KeyedTimer<K: 'static, T: 'static = Task, S = RandomState> {
    /// Dropped with the last clone, which removes all keys.
    registered: Arc<Registered<Keys<K, T>>>,
    hasher: S,
}

/// Converts the result of a keyed timer's closure: nothing, or a key to add with its entry. The
/// trait is sealed.
///
/// A closure that only panics has to name its result: `|key, task| -> () { panic!() }`.
#[diagnostic::on_unimplemented(
    message = "a keyed timer's closure returns nothing that it knows: `{Self}`",
    note = "it returns `()` or `Option<(K, TimerEntry<T>)>`; a semicolon may be missing",
    note = "a closure that only panics names its result: `|key, task| -> () {{ panic!() }}`"
)]
pub trait IntoKept<K, T>: Sealed<Option<(K, TimerEntry<T>)>> {
    /// Returns the key to add and its entry, if there is one.
    fn into_kept(self) -> Option<(K, TimerEntry<T>)>;
}

impl<K, T> Sealed<Option<(K, TimerEntry<T>)>> for () {}

impl<K, T> IntoKept<K, T> for () {
    fn into_kept(self) -> Option<(K, TimerEntry<T>)> {
        None
    }
}

impl<K, T> IntoKept<K, T> for Option<(K, TimerEntry<T>)> {
    fn into_kept(self) -> Self {
        self
    }
}

impl<K: Hash + Eq + Send + 'static, T: Send + 'static> KeyedTimer<K, T> {
    /// Creates a keyed timer without keys. The executor of [`Timer::closures`] calls `expired` with
    /// each key and task that expires. To run closures, pass `|_, task: Task| task.run()`.
    ///
    /// `expired` does not learn the deadline: a task that needs its deadline holds it, and an
    /// [`entry`](Self::entry) moves both. `expired` must not own a clone of the keyed timer, which
    /// would keep both alive forever. Give it a `Weak` made by [`Arc::new_cyclic`] if it needs the
    /// keyed timer's owner. It may own the timer, or another keyed timer.
    ///
    /// # Keeping a key
    /// `expired` may return a key to [`add`](Self::add) next, usually the same key with a later
    /// entry. The key is added even if the timer is full. It is dropped after a shutdown, after the
    /// drop of the last clone, and if another thread has added the key meanwhile. A
    /// [`cancel`](Self::cancel) during `expired` finds nothing,
    /// and does not keep the key from coming back. Adding the key waits, on the thread that ran
    /// `expired`, for an [`Entry`] of its shard that another thread holds.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::keyed::KeyedTimer;
    /// use tickwheel::{ManualClock, Timer, TimerEntry};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// // Each host is asked again while it does not answer, three times in all.
    /// let probes = KeyedTimer::new(&timer, |host: &str, attempt: u32| {
    ///     println!("{host}: attempt {attempt}");
    ///     (attempt < 3).then(|| (host, TimerEntry::after(Duration::from_secs(5), attempt + 1)))
    /// });
    /// probes.add("ada", Duration::ZERO, 1_u32)?;
    /// clock.run_for(Duration::from_secs(6));
    /// assert_eq!(probes.get("ada"), Some(3));
    /// assert_eq!(probes.cancel("ada"), Some(3)); // An answer.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new<U: 'static, R: IntoKept<K, T>>(
        timer: &Timer<U>,
        expired: impl Fn(K, T) -> R + Send + Sync + 'static,
    ) -> Self {
        Self::with_hasher(timer, RandomState::new(), expired)
    }
}

impl<K: Hash + Eq + 'static, T: 'static, S: BuildHasher> KeyedTimer<K, T, S> {
    /// Creates a keyed timer as [`new`](Self::new) does, but hashes its keys with `hasher` instead
    /// of std's [`RandomState`]. Use a faster hasher only for keys that clients cannot choose.
    pub fn with_hasher<U: 'static, R: IntoKept<K, T>>(
        timer: &Timer<U>,
        hasher: S,
        expired: impl Fn(K, T) -> R + Send + Sync + 'static,
    ) -> Self
    where
        K: Send,
        T: Send,
        S: Clone + Send + Sync + 'static,
    {
        let own = hasher.clone();
        let on_expired: OnExpired<K, T> = Box::new(move |keys, key, task| {
            if let Some((key, entry)) = expired(key, task).into_kept() {
                keys.keep(spread(&own, &key), key, entry);
            }
        });
        let make = |shards, closures| {
            Arc::new(Keys {
                shards,
                closures,
                on_expired,
            })
        };
        KeyedTimer {
            registered: Registered::new(timer.closures(), SHARDS, make),
            hasher,
        }
    }

    /// Returns the entry of a key, to look at it and change it in one step. No other thread can
    /// add, cancel or expire the key until the entry is dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::Timer;
    /// # use tickwheel::keyed::{Entry, KeyedTimer};
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
    ///         Entry::Vacant(first) => _ = first.add(minute, 1_u32)?,
    ///     }
    /// }
    /// assert_eq!((keyed.get(&"ada"), keyed.get(&"bob")), (Some(2), Some(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn entry(&self, key: K) -> Entry<'_, K, T> {
        let present = self.now();
        let hash = self.hash(&key);
        let mut held = Held::new(self.keys(), hash);
        let found = held.state().find(hash, &key);
        held.key = Some(key);
        match found {
            Some(index) if !held.state().is_due(index, present) => {
                Entry::Occupied(OccupiedEntry { held, index })
            }
            found => Entry::Vacant(VacantEntry { held, hash, found }),
        }
    }

    /// Adds a task for a key, which expires at `when`. Returns the task that it replaces, if there
    /// is one. To add a task only if there is none, use [`entry`](Self::entry).
    ///
    /// # Errors
    /// [`AddError`], with the entry inside, if the timer is full or was shut down. The key that was
    /// passed in is dropped. The key's former task stays as it was.
    pub fn add(
        &self,
        key: K,
        when: impl Into<When>,
        task: impl IntoTask<T>,
    ) -> Result<Option<T>, AddError<T>> {
        let entry = TimerEntry::new(when, task);
        let due = self.due(entry.when());
        let hash = self.hash(&key);
        let mut key = Some(key);
        // Declared last, so released first: a key's drop may take long.
        let mut state = self.keys().of(hash).lock();
        let found = key.as_ref().and_then(|key| state.find(hash, key));
        let added = state.put(hash, found, due, &mut key, entry);
        Shard::unlock(state);
        added
    }

    /// Removes a key and returns its task, if it has not expired. Another thread may have added
    /// that task since: see [`cancel_if`](Self::cancel_if).
    pub fn cancel<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        let taken = self.keys().of(hash).lock().take(hash, key);
        taken.map(|(_, task)| task)
    }

    /// Extends a key's deadline; it never moves to an earlier one. Returns whether the key has a
    /// task whose time is not up. Cheap enough for every sign of life: a reading of the clock, a
    /// look-up and a write.
    pub fn touch<Q: Hash + Eq + ?Sized>(&self, key: &Q, when: impl Into<When>) -> bool
    where
        K: Borrow<Q>,
    {
        self.moved(key, when.into(), ShardState::extend)
    }

    /// Brings a key's deadline forward; it never moves to a later one. Returns whether the key has
    /// a task whose time is not up.
    pub fn hasten<Q: Hash + Eq + ?Sized>(&self, key: &Q, when: impl Into<When>) -> bool
    where
        K: Borrow<Q>,
    {
        self.moved(key, when.into(), ShardState::hasten)
    }

    /// Moves a key's deadline, earlier or later. Returns whether the key has a task whose time is
    /// not up.
    pub fn reschedule<Q: Hash + Eq + ?Sized>(&self, key: &Q, when: impl Into<When>) -> bool
    where
        K: Borrow<Q>,
    {
        self.moved(key, when.into(), ShardState::move_to)
    }

    /// Returns when a key's task expires; `None` if the key has no task or its task never expires.
    pub fn deadline<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Instant>
    where
        K: Borrow<Q>,
    {
        self.find(key)?.deadline()
    }

    /// Returns whether a key has a task whose time is not up.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_some()
    }

    /// Returns how many keys there are. Locks each shard once, in time proportional to the shards.
    pub fn len(&self) -> usize {
        self.keys().shards.set.iter().map(|shard| shard.len()).sum()
    }

    /// Returns whether there is no key, at the same cost as [`len`](Self::len).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a key's entry, if the key has a task. Unlike [`entry`](Self::entry), takes any
    /// borrowed form of the key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # use tickwheel::Timer;
    /// # let timer = Timer::builder().build()?;
    /// # let keyed = KeyedTimer::new(&timer, |_: String, _: u32| ());
    /// # keyed.add("ada".to_owned(), Duration::from_secs(60), 1_u32)?;
    /// if let Some(mut requests) = keyed.find("ada") {
    ///     *requests.get_mut() += 1;
    ///     requests.reschedule(Duration::from_secs(10));
    /// }
    /// assert_eq!(keyed.get("ada"), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<OccupiedEntry<'_, K, T>>
    where
        K: Borrow<Q>,
    {
        let present = self.now();
        self.find_also_due(key)
            .filter(|entry| !entry.held.see().is_due(entry.index, present))
    }

    /// Returns a clone of a key's task, made under the lock of the key's shard; `None` if the key
    /// has none.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
        T: Clone,
    {
        self.find(key).map(|entry| entry.get().clone())
    }

    /// Calls `see` with a key's task and its deadline, and returns the result of `see`; `None` if
    /// the key has no task. The deadline is `None` if the task never expires. `see` runs [under a
    /// lock](KeyedTimer).
    pub fn with<Q: Hash + Eq + ?Sized, R>(
        &self,
        key: &Q,
        see: impl FnOnce(&mut T, Option<Instant>) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
    {
        let mut entry = self.find(key)?;
        let deadline = entry.deadline();
        Some(see(entry.get_mut(), deadline))
    }

    /// Removes a key and returns its task, if `wanted` returns true for the task and its deadline.
    /// [The guide](crate::guide#one-timer-for-each-key) ends a connection's own session in this
    /// way, but not a newer one. `wanted` runs [under a lock](KeyedTimer).
    pub fn cancel_if<Q: Hash + Eq + ?Sized>(
        &self,
        key: &Q,
        wanted: impl FnOnce(&T, Option<Instant>) -> bool,
    ) -> Option<T>
    where
        K: Borrow<Q>,
    {
        let entry = self.find_also_due(key)?;
        wanted(entry.get(), entry.deadline()).then(|| entry.cancel())
    }

    /// Extends a key's deadline as [`touch`](Self::touch) does, if `wanted` returns true for the
    /// task and its deadline. Returns the result of `wanted`, or false if the key has no task.
    /// `wanted` runs [under a lock](KeyedTimer).
    pub fn touch_if<Q: Hash + Eq + ?Sized>(
        &self,
        key: &Q,
        when: impl Into<When>,
        wanted: impl FnOnce(&T, Option<Instant>) -> bool,
    ) -> bool
    where
        K: Borrow<Q>,
    {
        let when = when.into(); // The caller's code runs without the lock.
        let Some(mut entry) = self.find(key) else {
            return false;
        };
        wanted(entry.get(), entry.deadline()) && entry.moved(when, ShardState::extend)
    }

    /// Calls `visit` with each key, its task and its deadline, in no particular order.
    ///
    /// The visit is not a snapshot: other threads may use the keys between two batches. A key that
    /// is present throughout, and whose time is not up, is visited exactly once. A key that is
    /// added or removed meanwhile may be missed. A key that is removed and added again may be
    /// visited twice. `visit` runs [under a lock](KeyedTimer), which is held for at most 256 keys
    /// at a time.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &T, Option<Instant>)) {
        let mut position = Some(0);
        while let Some(from) = position {
            position = self.visit_from(from, &mut visit);
        }
    }

    /// Visits the keys in steps, for a cursor that a client keeps. Calls `visit` with some keys,
    /// their tasks and deadlines, and returns the position of the next step.
    ///
    /// Begin at position 0; `None` is the end. Any number is a valid position. All steps together
    /// visit the keys as [`for_each`](Self::for_each) does. A step visits at most 256 keys, and at
    /// least one if there is one from its position on. It takes time proportional to the shards and
    /// to the room of removed keys. `visit` runs [under a lock](KeyedTimer).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # use tickwheel::Timer;
    /// # let timer = Timer::builder().build()?;
    /// # let sessions = KeyedTimer::new(&timer, |_: &str, _: u32| ());
    /// # sessions.add("ada", Duration::from_secs(60), 1_u32)?;
    /// let mut clients = Vec::new();
    /// let mut position = Some(0);
    /// while let Some(from) = position {
    ///     position = sessions.visit_from(from, |client, _, _| clients.push(*client));
    /// }
    /// assert_eq!(clients, ["ada"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn visit_from(
        &self,
        position: u64,
        mut visit: impl FnMut(&K, &T, Option<Instant>),
    ) -> Option<u64> {
        // A shard's ordinal, above 32 bits for a chunk's number.
        let mut ordinal = usize::try_from(position >> 32).ok()?;
        let mut chunk = (position & u64::from(u32::MAX)) as usize;
        let present = self.now();
        // One chunk at a time, so that the lock is never held for long.
        while let Some(shard) = self.keys().shards.set.get(ordinal) {
            let Some(state) = shard.lock_chunk(chunk) else {
                ordinal += 1;
                chunk = 0;
                continue;
            };
            let mut visited = false;
            for at in state
                .keys_of(chunk)
                .filter(|at| !state.is_due(at.index, present))
            {
                visited = true;
                let Keyed { key, task, .. } = state.at(at.index);
                visit(key, task, state.deadline(at.index));
            }
            chunk += 1;
            if visited {
                return Some((ordinal as u64) << 32 | chunk as u64);
            }
        }
        None
    }

    /// Keeps the keys for which `wanted` returns true for the key, its task and its deadline, and
    /// removes the others. Their tasks do not expire.
    ///
    /// Visits each key as [`for_each`](Self::for_each) does, and also a key whose time is up.
    /// `wanted` runs [under a lock](KeyedTimer), which is held for at most 256 keys at a time.
    /// Removed keys and tasks are dropped outside the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::Timer;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # let timer = Timer::builder().build()?;
    /// # let sessions = KeyedTimer::new(&timer, |_: &str, _: u32| ());
    /// # let minute = Duration::from_secs(60);
    /// sessions.add("ada", minute, 7)?; // The task is the client's room.
    /// sessions.add("bob", minute, 8)?;
    /// sessions.retain(|_, room, _| *room != 7); // Room 7 closes.
    /// assert!(!sessions.contains("ada") && sessions.contains("bob"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retain(&self, mut wanted: impl FnMut(&K, &mut T, Option<Instant>) -> bool) {
        let is_unwanted = |state: &mut KeyState<K, T>, index| {
            let deadline = state.deadline(index);
            let Keyed { key, task, .. } = state.at_mut(index);
            !wanted(key, task, deadline)
        };
        self.keys().cancel_if(is_unwanted, drop);
    }

    /// Removes all keys and returns them with their tasks, in no particular order. Takes time
    /// proportional to them, but holds no lock for long. A key that is added meanwhile may stay.
    pub fn cancel_all(&self) -> Vec<(K, T)> {
        self.keys().cancel_all()
    }

    /// Checks every internal structure and panics if one is broken: for tests.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.keys()
            .shards
            .set
            .iter()
            .for_each(|shard| shard.lock().assert_keys());
    }

    #[inline]
    fn keys(&self) -> &Arc<Keys<K, T>> {
        &self.registered.source
    }

    #[inline]
    fn due(&self, when: When) -> Due {
        self.keys().shards.context.time.due(when)
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.keys().shards.context.time.now()
    }

    /// Calls `change` with a key's place and the new deadline, unless its time is up or the timer
    /// was shut down. Returns whether it did.
    #[inline]
    fn moved<Q: Hash + Eq + ?Sized>(
        &self,
        key: &Q,
        when: When,
        change: impl FnOnce(&mut KeyState<K, T>, u32, Due),
    ) -> bool
    where
        K: Borrow<Q>,
    {
        let mut due = self.due(when);
        let hash = self.hash(key);
        let present = *due.present.get_or_insert_with(|| self.now());
        let mut state = self.keys().of(hash).lock();
        let found = state
            .find(hash, key)
            .filter(|index| !state.is_closed() && !state.is_due(*index, present));
        let Some(index) = found else { return false };
        change(&mut state, index, due);
        Shard::unlock(state);
        true
    }

    /// Returns a key's entry, even if its time is up.
    fn find_also_due<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<OccupiedEntry<'_, K, T>>
    where
        K: Borrow<Q>,
    {
        let hash = self.hash(key);
        let mut held = Held::new(self.keys(), hash);
        let index = held.state().find(hash, key)?;
        Some(OccupiedEntry { held, index })
    }

    /// Hashes a key. Never inlined, so that the hasher is inlined once.
    #[inline(never)]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        spread(&self.hasher, key)
    }
}

impl<K, T, S: Clone> Clone for KeyedTimer<K, T, S> {
    fn clone(&self) -> Self {
        KeyedTimer {
            registered: Arc::clone(&self.registered),
            hasher: self.hasher.clone(),
        }
    }
}

impl<K, T, S> fmt::Debug for KeyedTimer<K, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedTimer").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_comes_late_to_keys_finds_no_others_in_their_shards() {
        #[derive(Clone, PartialEq, Eq, Hash)]
        struct Own; // No other test has shards of this type.
        let timer = Timer::builder().build().expect("in range");
        let keyed = || KeyedTimer::new(&timer, |_: Own, _: u32| ());
        let set = |keyed: &KeyedTimer<Own, u32>| keyed.keys().shards.set.as_ptr();
        let gone = keyed();
        let listed = Arc::clone(gone.keys());
        let former = set(&gone);
        drop(gone);
        let next = keyed();
        assert!(
            set(&next) != former,
            "somebody may still close, count or flush it"
        );
        drop(listed);
        assert!(set(&keyed()) == former, "it was given back");
    }
}
