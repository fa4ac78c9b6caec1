//! The registry: all that the operations of one purgatory share, the watchers in their shards and
//! the timer.
//!
//! # Locks
//! Each shard has one. Nothing is called under it but a key's `Eq`, `Clone` and `Drop`: operations
//! go in and come out by reference count, and the last reference is always dropped outside.

use crate::Timer;
use crate::key_map::shard_of;
use crate::purgatory::callbacks::{Turn, postpone};
use crate::purgatory::entries::Place;
use crate::purgatory::watchers::Watchers;
use crate::report::contain;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, thread_number};
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// How an operation that was watched ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// By the check after it was watched.
    AtOnce,
    Triggered,
    Forced,
    Expired,
    Cancelled,
    /// Its code panicked in a check, or it was not accepted after all.
    Neither,
}

#[derive(Debug)]
pub(crate) struct Shard<K, V> {
    pub(crate) watchers: Watchers<K, V>,
    /// Set by shutdown: from then on nothing comes in.
    closed: bool,
    /// Operations of whose entries the first one is here.
    pub(crate) delayed: usize,
    /// How those that were here ended, by [`Count`].
    pub(crate) counts: [u64; 6],
}

type PaddedShard<K, V> = CachePadded<Mutex<Shard<K, V>>>;

#[derive(Debug)]
pub(crate) struct Registry<K, V> {
    pub(crate) timer: Timer,
    /// Their number is a power of two. Padded, so that two locks never share a cache line.
    pub(crate) shards: Box<[PaddedShard<K, V>]>,
    pub(crate) panicked: AtomicU64,
}

/// What an operation holds to reach the registry. There are several, and a thread takes its own: so
/// threads do not meet at a reference count.
#[derive(Debug)]
pub(crate) struct Home<K, V> {
    pub(crate) registry: Arc<Registry<K, V>>,
    /// Operations that the first check completed.
    pub(crate) at_once: AtomicU64,
}

impl<K, V> Registry<K, V> {
    pub(crate) fn count_panic(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }
}

impl<K: Eq + Clone, V: Clone> Registry<K, V> {
    /// With `shards` shards, a power of two of at most 2^16.
    pub(crate) fn new(timer: Timer, shards: usize) -> Self {
        let shard = |id| {
            let watchers = Watchers::new(id as u16);
            let shard = Shard { watchers, closed: false, delayed: 0, counts: [0; 6] };
            CachePadded::new(Mutex::new(shard))
        };
        let shards = (0..shards).map(shard).collect();
        Registry { timer, shards, panicked: AtomicU64::new(0) }
    }

    /// The shard of a key whose hash this is.
    #[inline]
    pub(crate) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        self.shards[shard_of(hash, self.shards.len())].lock()
    }

    /// Adds an operation to a key's watchers; not after shutdown. `before` is its entry for another
    /// key.
    pub(crate) fn watch(&self, hash: u64, key: &K, operation: V, before: Place) -> Option<Place> {
        let mut shard = self.shard(hash);
        if shard.closed {
            drop(shard);
            drop(operation);
            return None;
        }
        let place = shard.watchers.push(hash, key, operation, before);
        // After the key's code, which may panic.
        shard.delayed += usize::from(!before.exists());
        Some(place)
    }

    /// Takes an operation out of all its keys, of which `place` is the last, and counts how it
    /// ends.
    pub(crate) fn unwatch(&self, mut place: Place, count: Count) {
        while place.exists() {
            let mut shard = self.shards[usize::from(place.shard)].lock();
            let Some((operation, before)) = shard.watchers.remove(place) else { return };
            if !before.exists() {
                shard.delayed -= 1;
                shard.counts[count as usize] += 1;
            }
            drop(shard);
            drop(operation);
            place = before;
        }
    }

    /// Lets nothing come in any more.
    pub(crate) fn close(&self) {
        self.shards.iter().for_each(|shard| shard.lock().closed = true);
    }
}

impl<K, V> Home<K, V> {
    /// One for each of the threads that are at work at once, in number a power of two.
    pub(crate) fn several(registry: &Arc<Registry<K, V>>, threads: usize) -> Box<[Arc<Self>]> {
        let home = |_| Home { registry: Arc::clone(registry), at_once: AtomicU64::new(0) };
        (0..threads).map(|id| Arc::new(home(id))).collect()
    }

    /// The calling thread's.
    pub(crate) fn of_thread(homes: &[Arc<Self>]) -> &Arc<Self> {
        &homes[thread_number() as usize & (homes.len() - 1)]
    }

    /// Calls the code with which an operation ends, and drops the operation; now, or after the
    /// callback that this thread is in.
    pub(crate) fn conclude<O: 'static>(
        self: &Arc<Self>,
        mut operation: O,
        code: impl FnOnce(&mut O) + 'static,
    ) where
        K: 'static,
        V: 'static,
    {
        let end = move |registry: &Registry<K, V>| {
            let ended = contain(|| code(&mut operation));
            let dropped = contain(|| drop(operation));
            if ended.and(dropped).is_none() {
                registry.count_panic();
            }
        };
        if let Some(_turn) = Turn::begin() {
            end(&self.registry);
        } else {
            let home = Arc::clone(self);
            postpone(move || end(&home.registry));
        }
    }
}
