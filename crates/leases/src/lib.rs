#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// In reading order: the book, which knows no timer, and what drives it.
mod book;
mod watchdog;

/// With `--cfg tickwheel_model`, shuttle chooses at each lock who goes on.
mod sync {
    #[cfg(tickwheel_model)]
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    #[cfg(not(tickwheel_model))]
    pub(crate) use std::sync::{Mutex, MutexGuard};
}

pub use crate::book::{LeaseTerms, Stats};
pub use crate::watchdog::{LeaseStore, Renewal};

use crate::watchdog::Watchdog;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;
use tickwheel::{AddError, Task, Timer};

/// Leases on keys, renewed for as long as they are held.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer};
/// use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};
///
/// struct Store;
///
/// impl LeaseStore<&'static str> for Store {
///     fn renew(&self, batch: Vec<Renewal<&'static str>>) {
///         batch.into_iter().for_each(Renewal::renewed);
///     }
///     fn lost(&self, key: &'static str) {
///         println!("{key} is lost");
///     }
/// }
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let leases = Leases::new(&timer, LeaseTerms::new(Duration::from_secs(30)), Store);
/// let lease = leases.hold("orders")?;
/// for _ in 0..45 {
///     clock.advance(Duration::from_secs(1));
///     timer.advance_clock(Duration::ZERO);
/// }
/// assert!(lease.is_held());
/// assert_eq!(leases.stats().renewed, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones share the same leases, and keep the timer alive. When the last clone is dropped, renewal
/// stops: no lease is held any more, and none is reported lost. The [crate's page](crate) has the
/// costs, promises and limits.
pub struct Leases<K: Hash + Eq + Clone + Send + 'static>(Arc<Shared<K>>);

/// Dropped with the last clone.
struct Shared<K: Hash + Eq + Clone + Send + 'static>(Arc<Watchdog<K>>);

/// A lease that is held. Dropping it stops its renewal, as [`release`](Self::release) does. It does
/// not keep the timer alive.
#[must_use = "dropped at once, it is not renewed"]
pub struct Lease<K: Hash + Eq + Clone + Send + 'static> {
    watchdog: Arc<Watchdog<K>>,
    key: K,
    number: u64,
}

impl<K: Hash + Eq + Clone + Send + 'static> Leases<K> {
    /// Creates an empty set of leases. The executor of [`Timer::closures`] calls `store`: on a
    /// timer with a task type of its own, the thread that advances the timer.
    pub fn new<U: Send + 'static>(
        timer: &Timer<U>,
        terms: LeaseTerms,
        store: impl LeaseStore<K>,
    ) -> Self {
        let watchdog = Watchdog::new(timer.closures(), terms, Arc::new(store));
        Leases(Arc::new(Shared(Arc::new(watchdog))))
    }

    /// Starts to renew a lease that was taken at this moment, like [`hold_since`](Self::hold_since)
    /// with the present.
    ///
    /// # Errors
    /// [`AddError`], as for [`hold_since`](Self::hold_since).
    pub fn hold(&self, key: K) -> Result<Lease<K>, AddError<Task>> {
        self.0.0.hold(key, None)
    }

    /// Starts to renew a lease that was taken at `since` or later: pass the time of the timer's
    /// clock at which you asked the store for it. A time in the future counts as the present. Even
    /// after a slow answer the lease then lasts no longer here than in the store.
    ///
    /// If the key is held already, this starts a new lease: the former one is neither renewed any
    /// more nor reported lost.
    ///
    /// Hold no lock that [`lost`](LeaseStore::lost) takes: if this fails, it calls `lost` for all
    /// leases on the calling thread. Takes logarithmic time in the number of leases, under a lock.
    ///
    /// # Errors
    /// [`AddError::Shutdown`] if the timer was shut down, and [`AddError::Full`] if it has no room
    /// for a round of renewals. In both cases all leases that were held are lost, and reported so.
    /// The lease of this call is not among them: release its lock in the store.
    pub fn hold_since(&self, key: K, since: Instant) -> Result<Lease<K>, AddError<Task>> {
        self.0.0.hold(key, Some(since))
    }

    /// Returns the number of held leases. A lease that has run out counts until it is lost. Takes
    /// constant time, under one lock.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stats().held
    }

    /// Returns whether no lease is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the leases have done so far. Takes constant time, under one lock.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.0.stats()
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Lease<K> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns whether the lease is held: it has not run out, is not lost, and was not taken again.
    /// Reads the clock, so a process that has slept learns it here before `lost` is called. Takes
    /// constant time, under one lock.
    pub fn is_held(&self) -> bool {
        self.watchdog.is_held(&self.key, self.number)
    }

    /// Stops the renewal, and returns whether the lease was still held. Call it before you release
    /// the lock in the store, and release only what was held.
    ///
    /// Answers no longer count after this. If the lease was still held, `lost` is not called; if it
    /// was not, that call may be in progress. A renewal may be on its way to the store as well, so
    /// the store must renew only what this holder has: nothing after a release.
    pub fn release(self) -> bool {
        self.watchdog.release(&self.key, self.number)
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Lease<K> {
    fn drop(&mut self) {
        self.watchdog.release(&self.key, self.number);
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Shared<K> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Clone for Leases<K> {
    fn clone(&self) -> Self {
        Leases(Arc::clone(&self.0))
    }
}

macro_rules! debug_by_name {
    ($($name:ident),*) => {$(
        impl<K: Hash + Eq + Clone + Send + 'static> fmt::Debug for $name<K> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
debug_by_name!(Leases, Lease, Renewal);
