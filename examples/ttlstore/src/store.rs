//! The keys: values and deadlines in a map, an alarm for each deadline in a keyed timer.

use crate::deadline::Deadline;
use crate::events::Events;
use crate::slot::Slot;
use foldhash::quality::RandomState;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use std::hash::BuildHasher;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Timer, WeakTimer};

/// Shared by the map and the timer.
pub(crate) type Key = Arc<[u8]>;

/// A part of the keys, under one lock.
pub(crate) type Shard = HashMap<Key, Value, RandomState>;

/// Which keys expire, and when.
pub(crate) type Alarms = KeyedTimer<Key, (), RandomState>;

/// What a key has.
#[derive(Debug)]
pub struct Value {
    /// What GET tells.
    pub bytes: Box<[u8]>,
    /// When it expires, if ever.
    pub deadline: Option<Deadline>,
}

/// Keys with values, which vanish on time.
///
/// Whoever uses a key locks its shard, and its alarm changes under that lock: so no two threads
/// leave a key with another one's deadline. The timer calls `Keys::expire` without a lock of its
/// own, so the two can't block each other. An alarm that was on its way when its key was set anew
/// finds a deadline that has not come, and leaves the key alone.
#[derive(Debug)]
pub struct Store {
    keys: Arc<Keys>,
    alarms: Alarms,
}

/// What the alarms refer to: they must not own the keyed timer.
#[derive(Debug)]
struct Keys {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    timer: WeakTimer,
    events: Arc<Events>,
    expired: AtomicU64,
}

impl Store {
    /// No keys yet. Deadlines are `timer`'s; what expires is told to `events`.
    pub fn new(timer: &Timer, events: Arc<Events>) -> Self {
        const SHARDS: usize = 64; // More than threads, so that these seldom meet.
        let hasher = RandomState::default();
        let shard = || Mutex::new(HashMap::with_hasher(hasher.clone()));
        let keys = Arc::new(Keys {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: hasher.clone(),
            timer: timer.downgrade(),
            events,
            expired: AtomicU64::new(0),
        });
        let alarmed = Arc::clone(&keys);
        let alarm = move |key: Key, ()| {
            if let Some(timer) = alarmed.timer.upgrade() {
                let mut shard = alarmed.shard(&key);
                alarmed.expire(&mut shard, &key, timer.now());
            }
        };
        Store { keys, alarms: KeyedTimer::with_hasher(timer, hasher, alarm) }
    }

    /// The key, locked. If its time was up it is gone.
    pub fn lock<'a>(&'a self, key: &'a [u8], now: Instant) -> Slot<'a> {
        let mut shard = self.keys.shard(key);
        if self.keys.expire(&mut shard, key, now) {
            self.alarms.cancel(key);
        }
        Slot::new(shard, &self.alarms, key)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys have a deadline.
    pub fn deadlines(&self) -> usize {
        self.alarms.len()
    }

    /// How many keys have expired.
    pub fn expired(&self) -> u64 {
        self.keys.expired.load(Ordering::Relaxed)
    }

    /// Removes all keys, one shard after the other.
    pub fn flush(&self) {
        for shard in &self.keys.shards {
            let mut shard = shard.lock();
            let with_alarm = shard.iter().filter(|(_, value)| value.deadline.is_some());
            for (key, _) in with_alarm {
                self.alarms.cancel(key);
            }
            let former = mem::replace(&mut *shard, HashMap::with_hasher(self.keys.hasher.clone()));
            drop(shard);
            drop(former);
        }
    }

    /// Calls `visit` with each key, one shard after the other, in no order.
    pub fn for_each(&self, now: Instant, mut visit: impl FnMut(&[u8])) {
        for shard in &self.keys.shards {
            for (key, value) in &*shard.lock() {
                if !value.is_due(now) {
                    visit(key);
                }
            }
        }
    }
}

impl Keys {
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // The map uses the other bits.
        let hash = (self.hasher.hash_one(key) >> 40) as usize;
        self.shards[hash % self.shards.len()].lock()
    }

    /// Removes the key if its time is up, and tells so.
    fn expire(&self, shard: &mut Shard, key: &[u8], now: Instant) -> bool {
        if !shard.get(key).is_some_and(|value| value.is_due(now)) {
            return false;
        }
        shard.remove(key);
        self.expired.fetch_add(1, Ordering::Relaxed);
        // Under the lock: who sees the key gone, or set anew, has the event before what follows.
        self.events.publish_expired(key);
        true
    }
}

impl Value {
    fn is_due(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline.is_due(now))
    }
}
