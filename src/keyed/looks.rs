//! Calls that look at a key's task before they do something, or instead.

use crate::keyed::KeyedTimer;
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
    /// Returns a copy of a key's task.
    pub fn get<Q>(&self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        T: Clone,
    {
        self.found(key, |shard, index| shard.core.at(index).task.clone())
    }

    /// Calls `see` with a key's task and its deadline, if the key has one. Returns its answer.
    ///
    /// That is under the lock of the key's shard: `see` must be quick, and not use the keyed timer.
    pub fn with<Q, R>(&self, key: &Q, see: impl FnOnce(&mut T, Option<Instant>) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.found(key, |shard, index| {
            let deadline = shard.deadline(self.context(), index);
            see(&mut shard.core.at_mut(index).task, deadline)
        })
    }

    /// Takes a key's task back with its deadline, in an entry that another timer would accept.
    pub fn take<Q>(&self, key: &Q) -> Option<TimerEntry<T>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (when, taken) = self.found(key, |shard, index| {
            let when = When::at_or_never(shard.deadline(self.context(), index));
            (when, shard.cancel(self.context(), index))
        })?;
        taken.map(|(_key, task)| TimerEntry::new(when, task))
    }

    /// Takes a key's task back, if `wanted` says so of the task and its deadline: the session of
    /// this connection, say, but not the new one of a client that has come back meanwhile.
    ///
    /// `wanted` is called under the lock of the key's shard: it must be quick, and not use the
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
        let (_key, task) = self.found(key, |shard, index| {
            let deadline = shard.deadline(self.context(), index);
            let is_wanted = wanted(&shard.core.at(index).task, deadline);
            is_wanted.then(|| shard.cancel(self.context(), index)).flatten()
        })??;
        Some(task)
    }

    /// Extends a key's deadline as [`touch`](Self::touch) does, if `wanted` says so of the task and
    /// its deadline. Returns whether it did.
    ///
    /// `wanted` is called under the lock of the key's shard: it must be quick, and not use the
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
        let touched = self.found(key, |shard, index| {
            let former = shard.deadline(self.context(), index);
            let is_wanted = wanted(&shard.core.at(index).task, former);
            if is_wanted {
                shard.core.extend(index, deadline);
            }
            is_wanted
        });
        touched.unwrap_or(false)
    }
}
