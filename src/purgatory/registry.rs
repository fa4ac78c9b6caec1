//! The registry: what the operations of one purgatory share, its shards.
//!
//! # Locks
//! Each shard has one, and nobody takes a second one under it, nor the timer's. Operations and
//! tasks are dropped outside.

use crate::purgatory::callbacks::{Turn, postpone};
use crate::purgatory::delayed::Content;
use crate::purgatory::shard::Shard;
use crate::store::key::Key;
use crate::store::key_map::shard_of;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::timer::WeakTimer;
use crate::timer::alarm::Alarm;
use crate::timer::report::catch_panic;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

type PaddedShard<K, O> = CachePadded<Mutex<Shard<K, O>>>;

#[derive(Debug)]
pub(crate) struct Registry<K, O> {
    /// Not the timer itself: a handle that is kept must not keep it alive.
    pub(crate) timer: WeakTimer,
    /// Their number is a power of two. Padded, so that two locks never share a cache line.
    pub(crate) shards: Box<[PaddedShard<K, O>]>,
    pub(crate) panicked: AtomicU64,
}

/// One shard as its operations see it.
pub(crate) struct Home<K, O> {
    pub(crate) registry: Arc<Registry<K, O>>,
    number: u16,
    /// Its tasks expire operations by key.
    pub(crate) alarm: Alarm,
    /// Operations that the first check completed, on some threads. Padded, and with it the count
    /// of references: so threads that are at work in different shards do not meet.
    pub(crate) at_once: CachePadded<AtomicU64>,
}

impl<K: Eq + Clone, O> Registry<K, O> {
    /// With `shards` shards, a power of two of at most 2^16.
    pub(crate) fn new(timer: WeakTimer, shards: usize) -> Self {
        let shard = |number| CachePadded::new(Mutex::new(Shard::new(number as u16)));
        Registry { timer, shards: (0..shards).map(shard).collect(), panicked: AtomicU64::new(0) }
    }
}

impl<K, O> Registry<K, O> {
    /// The shard of a key whose hash this is.
    #[inline]
    pub(crate) fn shard_of(&self, hash: u64) -> MutexGuard<'_, Shard<K, O>> {
        self.shards[shard_of(hash, self.shards.len())].lock()
    }

    pub(crate) fn count_panic(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }
}

impl<K: Send + 'static, O: Send + 'static> Home<K, O> {
    /// One for each shard. `expire` is the alarm's code.
    pub(crate) fn all(
        registry: &Arc<Registry<K, O>>,
        expire: fn(&Arc<Self>, Key),
    ) -> Box<[Arc<Self>]> {
        let home = |number| {
            Arc::new_cyclic(|home| Home {
                registry: Arc::clone(registry),
                number: number as u16,
                alarm: Alarm::new(home, expire),
                at_once: CachePadded::new(AtomicU64::new(0)),
            })
        };
        (0..registry.shards.len()).map(home).collect()
    }
}

impl<K, O> Home<K, O> {
    #[inline]
    pub(crate) fn shard(&self) -> MutexGuard<'_, Shard<K, O>> {
        self.registry.shards[usize::from(self.number)].lock()
    }
}

impl<K: Eq + Clone, O> Home<K, O> {
    /// Takes what an operation has, that has ended, out of its other keys and of the timer. Returns
    /// the operation, unless its holder has it.
    pub(crate) fn leave(&self, content: Content<O>) -> Option<O> {
        let Content { operation, timeout, places } = content;
        for place in places.iter().skip(1) {
            self.registry.shards[usize::from(place.shard)].lock().unwatch(place);
        }
        if let Some(timeout) = timeout {
            drop(timeout.cancel());
        }
        operation
    }

    /// Calls the code with which an operation ends, and drops the operation; now, or after the
    /// callback that this thread is in.
    pub(crate) fn conclude(self: &Arc<Self>, mut operation: O, code: impl FnOnce(&mut O) + 'static)
    where
        K: 'static,
        O: 'static,
    {
        let end = move |registry: &Registry<K, O>| {
            if catch_panic(|| code(&mut operation)).is_none() {
                registry.count_panic();
            }
            if catch_panic(|| drop(operation)).is_none() {
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
