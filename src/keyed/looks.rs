//! The calls that look at a key's task, alone or before changing it, and the call that looks at all
//! tasks.

use crate::keyed::KeyedTimer;
use crate::keyed::entry::{Held, OccupiedEntry};
use crate::timer::entry::{TimerEntry, When};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

impl<K, T, S> KeyedTimer<K, T, S>
where
    K: Hash + Eq + Send + 'static,
    T: Send + 'static,
    S: BuildHasher,
{
    /// Returns a key's entry, if the key has a task. Unlike [`entry`](Self::entry), this takes any
    /// borrowed form of the key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer = Timer::builder().build()?;
    /// # let keyed = KeyedTimer::new(&timer, |_: String, _: u32| ());
    /// # keyed.schedule("ada".to_owned(), TimerEntry::after(Duration::from_secs(60), 1_u32))?;
    /// if let Some(mut requests) = keyed.find_entry("ada") {
    ///     *requests.get_mut() += 1;
    ///     requests.reschedule(Duration::from_secs(10));
    /// }
    /// assert_eq!(keyed.get("ada"), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn find_entry<Q>(&self, key: &Q) -> Option<OccupiedEntry<'_, K, T>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut held = Held::new(self.shards(), hash);
        let index = held.body().find(hash, key)?;
        Some(OccupiedEntry::new(held, index))
    }

    /// Returns a clone of a key's task, or `None` if the key has none. The task is cloned under the
    /// lock of the key's shard.
    pub fn get<Q>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        T: Clone,
    {
        self.found(key, |body, index| body.core.at(index).task.clone())
    }

    /// Calls `see` with a key's task and its deadline, and returns what `see` returned; `None` if
    /// the key has no task. The deadline is `None` if the task never expires.
    ///
    /// `see` is called under the lock of the key's shard: it must be quick, and must not use the
    /// keyed timer.
    pub fn with<Q, R>(&self, key: &Q, see: impl FnOnce(&mut T, Option<Instant>) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.found(key, |body, index| {
            let deadline = body.deadline(index);
            see(&mut body.core.at_mut(index).task, deadline)
        })
    }

    /// Takes a key's task back together with its deadline, as an entry that can be added to another
    /// timer.
    pub fn take<Q>(&self, key: &Q) -> Option<TimerEntry<T>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (when, taken) = self.found(key, |body, index| {
            let when = When::at_or_never(body.deadline(index));
            (when, body.cancel(index))
        })?;
        taken.map(|taken| TimerEntry::new(when, self.shards().task_of(taken)))
    }

    /// Takes a key's task back if `wanted` returns true for the task and its deadline: the session
    /// of this connection, say, but not the new session of a client that has come back meanwhile.
    ///
    /// `wanted` is called under the lock of the key's shard: it must be quick, and must not use the
    /// keyed timer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer = Timer::builder().build()?;
    /// let sessions = KeyedTimer::new(&timer, |client: &str, connection: u64| {
    ///     println!("{client} is idle: close connection {connection}");
    /// });
    /// let idle = Duration::from_secs(60);
    /// sessions.schedule("ada", TimerEntry::after(idle, 1_u64))?;
    /// // She comes back over another connection, before the first one is found to be closed.
    /// sessions.schedule("ada", TimerEntry::after(idle, 2_u64))?;
    /// assert_eq!(sessions.cancel_if(&"ada", |connection, _| *connection == 1), None);
    /// assert!(sessions.contains(&"ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_if<Q>(
        &self,
        key: &Q,
        wanted: impl FnOnce(&T, Option<Instant>) -> bool,
    ) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let taken = self.found(key, |body, index| {
            let deadline = body.deadline(index);
            let is_wanted = wanted(&body.core.at(index).task, deadline);
            is_wanted.then(|| body.cancel(index)).flatten()
        });
        taken.flatten().map(|taken| self.shards().task_of(taken))
    }

    /// Extends a key's deadline as [`touch`](Self::touch) does, if `wanted` returns true for the
    /// task and its deadline. Returns whether it was wanted.
    ///
    /// `wanted` is called under the lock of the key's shard: it must be quick, and must not use the
    /// keyed timer.
    pub fn touch_if<Q>(
        &self,
        key: &Q,
        delay: Duration,
        wanted: impl FnOnce(&T, Option<Instant>) -> bool,
    ) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (_, deadline) = self.context().resolve(When::After(delay));
        let touched = self.found(key, |body, index| {
            let former = body.deadline(index);
            let is_wanted = wanted(&body.core.at(index).task, former);
            if is_wanted {
                body.core.extend(index, deadline);
            }
            is_wanted
        });
        touched.unwrap_or(false)
    }

    /// Calls `visit` with each key, its task and its deadline.
    ///
    /// The order is unspecified, and the visit is not a snapshot: the keys are visited in batches,
    /// and other threads may use them in between. A key that has a task throughout is visited
    /// exactly once. A key that is added or removed meanwhile may or may not be visited, and one
    /// that is removed and added again may be visited twice.
    ///
    /// `visit` is called under the lock of the key's shard, which is held for at most 1024 keys at
    /// a time: it must be quick, and must not use the keyed timer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer = Timer::builder().build()?;
    /// # let sessions = KeyedTimer::new(&timer, |_: &str, _: u32| ());
    /// # sessions.schedule("ada", TimerEntry::after(Duration::from_secs(60), 1_u32))?;
    /// let mut clients = Vec::new();
    /// sessions.for_each(|client, _session, _deadline| clients.push(*client));
    /// assert_eq!(clients, ["ada"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_each(&self, mut visit: impl FnMut(&K, &T, Option<Instant>)) {
        let mut place = Some(0);
        while let Some(from) = place {
            place = self.visit_from(from, &mut visit);
        }
    }

    /// Visits the keys in steps, for a cursor that a client keeps: calls `visit` with some keys,
    /// their tasks and their deadlines, and returns the place of those after them. The first step
    /// begins at place 0; `None` is the end. Any number is a place, at worst one after the end.
    ///
    /// All steps together visit the keys as [`for_each`](Self::for_each) does: a key that has a
    /// task throughout is visited exactly once. A step visits at most 1024 keys, and at least one
    /// if there is one from its place on. It takes time proportional to the shards and to the
    /// places of keys that were removed.
    ///
    /// `visit` is called under the lock of the keys' shard: it must be quick, and must not use the
    /// keyed timer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tickwheel::keyed::KeyedTimer;
    /// # use tickwheel::{Timer, TimerEntry};
    /// # let timer = Timer::builder().build()?;
    /// # let sessions = KeyedTimer::new(&timer, |_: &str, _: u32| ());
    /// # sessions.schedule("ada", TimerEntry::after(Duration::from_secs(60), 1_u32))?;
    /// let (mut clients, mut place) = (Vec::new(), Some(0));
    /// while let Some(from) = place {
    ///     place = sessions.visit_from(from, |client, _session, _deadline| clients.push(*client));
    /// }
    /// assert_eq!(clients, ["ada"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn visit_from(
        &self,
        place: u64,
        mut visit: impl FnMut(&K, &T, Option<Instant>),
    ) -> Option<u64> {
        self.shards().visit_from(place, &mut visit)
    }
}
