//! The keys: a keyed timer, and no other table.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::{Entry, KeyedTimer, OccupiedEntry};
use tokio::sync::mpsc::UnboundedSender;

pub(crate) type Key = Box<[u8]>;
pub(crate) type Value = Box<[u8]>;

/// What is said when there is no room for a key.
pub(crate) const NO_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// What a key without a deadline is told to wait.
pub(crate) const FOREVER: Duration = Duration::MAX;

/// Bytes that a key takes beside its own and its value's: its place in the keyed timer, and what
/// the allocator adds to two small pieces. Measured with a million keys, and rounded up.
const OVERHEAD: usize = 144;

/// Keys with values, which vanish on time.
///
/// A key is the key of a timer, its value is the timer's task. So the value and the deadline change
/// as one, and never while the key expires: whoever has a key's [`Entry`] holds the lock under
/// which the timer takes it out.
pub(crate) struct Store {
    pub(crate) timer: Timer,
    pub(crate) keys: KeyedTimer<Key, Value>,
    tally: Arc<Tally>,
}

/// A key that has expired, unless it was set anew; and the bytes that it counts for until it is
/// [told](Store::told).
pub(crate) struct Expired {
    pub(crate) key: Option<Key>,
    bytes: usize,
}

/// What the closure of the keyed timer shares with the store, which it must not own.
struct Tally {
    bytes: AtomicUsize,
    expired: UnboundedSender<Expired>,
}

impl Store {
    /// Creates a store without keys. Each that expires is sent to `expired`.
    pub(crate) fn new(timer: &Timer, expired: UnboundedSender<Expired>) -> Self {
        let tally = Arc::new(Tally {
            bytes: AtomicUsize::new(0),
            expired,
        });
        let shared = Arc::clone(&tally);
        let keys = KeyedTimer::new(timer, move |key: Key, value: Value| {
            let bytes = size(&key, &value);
            shared.expire(Some(key), bytes);
        });
        Store {
            timer: timer.clone(),
            keys,
            tally,
        }
    }

    /// Gives the key a value that lives for `ttl`, or as long as the former one if that is `None`.
    pub(crate) fn put(
        &self,
        entry: Entry<'_, Key, Value>,
        value: Value,
        ttl: Option<Duration>,
    ) -> Result<(), &'static str> {
        match entry {
            Entry::Occupied(mut entry) => {
                self.tally.bytes.fetch_add(value.len(), Ordering::Relaxed);
                let former = entry.replace(value);
                self.tally.bytes.fetch_sub(former.len(), Ordering::Relaxed);
                ttl.into_iter().for_each(|ttl| entry.reschedule(ttl));
            }
            Entry::Vacant(entry) => {
                // Counted before, because it may expire at once.
                let bytes = size(entry.key(), &value);
                let added = value.len();
                self.tally.bytes.fetch_add(bytes, Ordering::Relaxed);
                let former = entry.add(ttl.unwrap_or(FOREVER), value).map_err(|_| {
                    self.tally.bytes.fetch_sub(bytes, Ordering::Relaxed);
                    NO_MEMORY
                })?;
                if let Some(former) = former {
                    self.tally.expire(None, bytes - added + former.len()); // Its time was up.
                }
            }
        }
        Ok(())
    }

    /// Moves the key's deadline. A `ttl` of zero removes the key, which does not expire then.
    /// Returns whether it was there.
    pub(crate) fn reschedule(&self, key: &[u8], ttl: Duration) -> bool {
        let entry = self.keys.find(key);
        entry
            .map(|entry| self.reschedule_entry(entry, key, ttl))
            .is_some()
    }

    /// Does the same to a key that was found, and which cannot expire since.
    pub(crate) fn reschedule_entry(
        &self,
        mut entry: OccupiedEntry<'_, Key, Value>,
        key: &[u8],
        ttl: Duration,
    ) {
        if ttl.is_zero() {
            let value = entry.cancel();
            self.tally.subtract(size(key, &value));
        } else {
            entry.reschedule(ttl);
        }
    }

    /// Removes the key, which does not expire then. Returns whether it was there.
    pub(crate) fn remove(&self, key: &[u8]) -> bool {
        self.reschedule(key, Duration::ZERO)
    }

    /// Removes all keys.
    pub(crate) fn clear(&self) {
        for (key, value) in self.keys.cancel_all() {
            self.tally.subtract(size(&key, &value));
        }
    }

    /// Calls `visit` with up to 1024 keys from a place on, and returns the place after them.
    pub(crate) fn visit_from(&self, place: u64, mut visit: impl FnMut(&[u8])) -> Option<u64> {
        self.keys.visit_from(place, |key, _, _| visit(key))
    }

    /// Notes that those who listen were told of a key, so that it takes no memory any more.
    pub(crate) fn told(&self, expired: Expired) {
        self.tally.subtract(expired.bytes);
    }

    /// Returns how many bytes the keys take, and those that have expired and are not told of yet.
    pub(crate) fn bytes(&self) -> usize {
        self.tally.bytes.load(Ordering::Relaxed)
    }
}

impl Tally {
    fn expire(&self, key: Option<Key>, bytes: usize) {
        // Nobody receives any more when the server ends.
        let _ = self.expired.send(Expired { key, bytes });
    }

    fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

fn size(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + OVERHEAD
}
