//! Leases that are renewed while they are held: a watchdog for locks in a store.

pub(crate) mod book;
pub(crate) mod terms;
pub(crate) mod watchdog;

pub use crate::lease::terms::LeaseTerms;
pub use crate::lease::watchdog::{LeaseStore, Renewal};

use crate::lease::watchdog::Watchdog;
use crate::store::key::Key;
use crate::store::key_map::spread;
use crate::timer::Timer;
use crate::timer::entry::Task;
use crate::timer::error::AddError;
use std::fmt;
use std::hash::{Hash, RandomState};
use std::sync::Arc;
use std::time::Instant;

/// Leases on keys, which are renewed as long as they are held.
///
/// Whoever has taken a lock in a store for a limited time says [`hold`](Self::hold). From then on
/// the lease is renewed, a third of it after it was taken or renewed, many leases in one call to
/// the store. A renewal that fails is tried again while the lease lasts, without disturbing the
/// others. If it runs out all the same, or the store says that it is gone,
/// [`LeaseStore::lost`] is called, once.
///
/// Cloning shares it. It keeps the timer. When the last clone is dropped, nothing is renewed any
/// more, and nothing is lost. All leases take one timer, which goes above `max_pending` if need be.
/// A round of renewals that the timer's executor refuses is planned again, a quarter of
/// `renew_every` later; without its rounds nothing is renewed, nor reported lost.
///
/// After a [`shutdown`](Timer::shutdown) of the timer nobody would renew them, so all leases are
/// reported lost, at once, by whoever finds out first: who runs or drops the task that `shutdown`
/// returned (to drop the list is enough), calls `hold`, or answers a renewal; or by the round that
/// is under way. From then on none is held. Who keeps that task keeps them held until they run out.
///
/// Keys are compared under a lock, so their `Eq` must not use the leases. They are hashed, cloned
/// and dropped outside of it. Each call takes a bounded number of steps under the lock, however
/// many leases there are: a round of renewals looks at 64 at a time. Two things grow. What is due
/// stands in a B-tree, in which a step takes logarithmic time. And the table of the keys is rebuilt
/// under the lock when it has doubled: 17 bytes for each place in it, no key is touched; at a
/// million leases that is tens of milliseconds, once.
///
/// After Redisson's lock watchdog.
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer};
/// use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
///
/// struct Store(Sender<String>);
///
/// impl LeaseStore<&'static str> for Store {
///     fn renew(&self, batch: Vec<Renewal<&'static str>>) {
///         for renewal in batch {
///             self.0.send(format!("renew {}", renewal.key())).unwrap();
///             renewal.renewed(); // As the server says.
///         }
///     }
///     fn lost(&self, key: &'static str) {
///         self.0.send(format!("lost {key}")).unwrap();
///     }
/// }
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (sender, log) = channel();
/// let leases = Leases::new(&timer, LeaseTerms::new(Duration::from_secs(30)), Store(sender));
/// let lease = leases.hold("orders")?;
/// for _ in 0..25 {
///     clock.advance(Duration::from_secs(1));
///     timer.advance_clock(Duration::ZERO);
/// }
/// assert_eq!(log.try_iter().collect::<Vec<_>>(), ["renew orders", "renew orders"]);
/// assert!(lease.release());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Leases<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    shared: Arc<Shared<K>>,
}

/// Dropped with the last clone.
struct Shared<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    watchdog: Arc<Watchdog<K>>,
    hasher: RandomState,
    /// Kept, so that renewal does not end with somebody else's last clone; and until all leases
    /// have ended.
    timer: Timer,
}

/// A lease that is held. Dropping it stops its renewal, as [`release`](Self::release) does.
#[must_use = "dropped at once, it is not renewed"]
pub struct Lease<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    watchdog: Arc<Watchdog<K>>,
    key: K,
    name: Key,
}

impl<K> Leases<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    /// No leases yet. They are renewed by calls to `store` by the executor of
    /// [`Timer::closures`].
    pub fn new<U: Send + 'static>(
        timer: &Timer<U>,
        terms: LeaseTerms,
        store: impl LeaseStore<K>,
    ) -> Self {
        let timer = timer.closures();
        let watchdog = Arc::new(Watchdog::new(&timer, terms, Box::new(store)));
        Leases { shared: Arc::new(Shared { watchdog, hasher: RandomState::new(), timer }) }
    }

    /// Begins to renew a lease that was taken at this moment: [`hold_since`](Self::hold_since) now.
    ///
    /// # Errors
    /// [`AddError::Shutdown`] if the timer was shut down.
    pub fn hold(&self, key: K) -> Result<Lease<K>, AddError<Task>> {
        self.hold_since(key, self.shared.watchdog.now())
    }

    /// Begins to renew a lease that was taken at `since` or later: when the store was asked for it,
    /// by the timer's clock; not in the future. So a slow answer makes no lease last longer here
    /// than in the store.
    ///
    /// If the key is held already, that is a new lease: the former one is not renewed any more, and
    /// not lost.
    ///
    /// # Errors
    /// [`AddError::Shutdown`] if the timer was shut down. The former lease has ended then as well.
    pub fn hold_since(&self, key: K, since: Instant) -> Result<Lease<K>, AddError<Task>> {
        let watchdog = Arc::clone(&self.shared.watchdog);
        let since = since.min(watchdog.now());
        let hash = spread(&self.shared.hasher, &key);
        let name = watchdog.hold(hash, [key.clone(), key.clone()], since)?;
        Ok(Lease { watchdog, key, name })
    }

    /// How many leases are held; what has run out counts until it is reported lost.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.watchdog.len()
    }

    /// Whether no lease is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Lease<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Whether it is held: it has not run out, is not lost, and was not taken again. Looks at the
    /// clock: a process that has slept is told so before it hears of the loss.
    pub fn is_held(&self) -> bool {
        self.watchdog.is_held(self.name)
    }

    /// Stops the renewal; whether the lease was still held. Call it before the lock is given back
    /// to the store, and give back only what was held.
    ///
    /// After it no answer counts, and `lost` is not called if it was still held; if it was not,
    /// that call may be on its way. So may a renewal to the store, which must renew only what this
    /// holder has: nothing once it was given back.
    pub fn release(self) -> bool {
        self.watchdog.release(self.name)
    }
}

impl<K> Drop for Lease<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn drop(&mut self) {
        self.watchdog.release(self.name);
    }
}

impl<K> Drop for Shared<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn drop(&mut self) {
        self.watchdog.close(|left| {
            for lease in left {
                self.timer.catch_panic(|| drop(lease));
            }
        });
    }
}

impl<K> Clone for Leases<K>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    fn clone(&self) -> Self {
        Leases { shared: Arc::clone(&self.shared) }
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
debug_by_name!(Leases, Lease);
