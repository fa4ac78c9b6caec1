//! Leases that are renewed while they are held: a watchdog for locks in a store.

pub(crate) mod book;
pub(crate) mod watchdog;

pub use crate::lease::book::{LeaseTerms, Stats};
pub use crate::lease::watchdog::{LeaseStore, Renewal};

use crate::engine::report::Contained;
use crate::lease::watchdog::Watchdog;
use crate::store::slab::Key;
use crate::store::table::spread;
use crate::timer::Timer;
use crate::timer::entry::Task;
use crate::timer::error::AddError;
use std::fmt;
use std::hash::{Hash, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

/// Leases on keys, renewed for as long as they are held.
///
/// After you have taken a lock in a store for a limited time, call [`hold`](Self::hold). From then
/// on the lease is renewed each time a third of it has passed, many leases in one call to the
/// store. A failed renewal is tried again while the lease lasts, without disturbing the others. If
/// the lease runs out all the same, or the store says that it is gone, [`LeaseStore::lost`] is
/// called once.
///
/// Clones share the same leases, and keep the timer alive. When the last clone is dropped, renewal
/// stops: no lease is held any more, and none is reported lost. All leases need one timer, which
/// may exceed `max_pending`. If the timer's executor refuses a round of renewals, the round is
/// planned again, a quarter of `renew_every` later; until then nothing is renewed or reported lost.
///
/// After a [`shutdown`](Timer::shutdown) of the timer nothing would renew the leases, so all of
/// them are reported lost at once. That happens when the task that `shutdown` returned is run or
/// dropped (dropping the list is enough), when `hold` is called or a renewal is answered, or in the
/// round in progress, whichever is first. From then on none is held. As long as that task is kept,
/// leases stay held until they run out. Where the timer has its own type of task, `shutdown` drops
/// that task itself.
///
/// Keys are compared under a lock, so their `Eq` must not use the leases. They are hashed, cloned
/// and dropped outside the lock. Each call takes a bounded number of steps under the lock, however
/// many leases there are: a round of renewals visits 64 at a time. Two costs do grow. Due times are
/// kept in a B-tree, in which a step takes logarithmic time. The table of keys is rebuilt under the
/// lock when it has doubled: 17 bytes for each slot, without touching a key; at a million leases
/// that takes tens of milliseconds, once.
///
/// The idea is that of Redisson's lock watchdog.
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
pub struct Leases<K: Hash + Eq + Clone + Send + 'static> {
    shared: Arc<Shared<K>>,
}

/// Dropped with the last clone.
struct Shared<K: Hash + Eq + Clone + Send + 'static> {
    watchdog: Arc<Watchdog<K>>,
    hasher: RandomState,
    /// Kept so that renewal does not end when other code drops its last clone, and until all leases
    /// have ended.
    _timer: Timer,
}

/// A lease that is held. Dropping it stops its renewal, as [`release`](Self::release) does.
#[must_use = "dropped at once, it is not renewed"]
pub struct Lease<K: Hash + Eq + Clone + Send + 'static> {
    watchdog: Arc<Watchdog<K>>,
    key: Contained<K>,
    name: Key,
    /// It is only as safe in a `catch_unwind` as the key, which it hands out.
    own: PhantomData<K>,
}

impl<K: Hash + Eq + Clone + Send + 'static> Leases<K> {
    /// Creates an empty set of leases. The executor of [`Timer::closures`] calls `store` to renew
    /// them.
    pub fn new<U: Send + 'static>(
        timer: &Timer<U>,
        terms: LeaseTerms,
        store: impl LeaseStore<K>,
    ) -> Self {
        let timer = timer.closures();
        let watchdog = Arc::new(Watchdog::new(&timer, terms, Box::new(store)));
        let shared = Shared { watchdog, hasher: RandomState::new(), _timer: timer };
        Leases { shared: Arc::new(shared) }
    }

    /// Starts to renew a lease that was taken at this moment, like [`hold_since`](Self::hold_since)
    /// with the present.
    ///
    /// # Errors
    /// [`AddError::Shutdown`], as for [`hold_since`](Self::hold_since).
    pub fn hold(&self, key: K) -> Result<Lease<K>, AddError<Task>> {
        self.hold_since(key, self.shared.watchdog.now())
    }

    /// Starts to renew a lease that was taken at `since` or later: pass the time of the timer's
    /// clock at which you asked the store for it, which must not be in the future. So even after a
    /// slow answer the lease lasts no longer here than in the store.
    ///
    /// If the key is held already, this starts a new lease: the former one is neither renewed any
    /// more nor reported lost.
    ///
    /// Hold no lock that [`lost`](LeaseStore::lost) takes: if the timer was shut down, this may
    /// report all leases lost.
    ///
    /// # Errors
    /// [`AddError::Shutdown`] if the timer was shut down. The former lease has ended then as well.
    /// If other threads find that out at the same moment, the lease may be returned instead, and is
    /// reported lost with all others.
    pub fn hold_since(&self, key: K, since: Instant) -> Result<Lease<K>, AddError<Task>> {
        let watchdog = Arc::clone(&self.shared.watchdog);
        let since = since.min(watchdog.now());
        let hash = spread(&self.shared.hasher, &key);
        let key = Contained::new(&watchdog.context.name, key);
        let name = watchdog.hold(hash, [K::clone(&key), K::clone(&key)], since)?;
        Ok(Lease { watchdog, key, name, own: PhantomData })
    }

    /// Returns the number of held leases. A lease that has run out counts until it is reported
    /// lost.
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
        self.shared.watchdog.stats()
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Lease<K> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns whether the lease is held: it has not run out, is not lost, and was not taken again.
    /// Reads the clock, so a process that has slept learns it here before `lost` is called.
    pub fn is_held(&self) -> bool {
        self.watchdog.is_held(self.name)
    }

    /// Stops the renewal, and returns whether the lease was still held. Call it before you release
    /// the lock in the store, and release only what was held.
    ///
    /// Answers no longer count after this. If the lease was still held, `lost` is not called; if it
    /// was not, that call may be in progress. A renewal may be on its way to the store as well, so
    /// the store must renew only what this holder has: nothing after a release.
    pub fn release(self) -> bool {
        self.watchdog.release(self.name)
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Lease<K> {
    fn drop(&mut self) {
        self.watchdog.release(self.name);
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Shared<K> {
    fn drop(&mut self) {
        self.watchdog.end();
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Clone for Leases<K> {
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
debug_by_name!(Leases, Lease, Renewal);
