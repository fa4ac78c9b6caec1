//! A shard of keyed timers under its lock.
//!
//! What a user does with an entry, or in a closure that looks at a task, happens under the lock. A
//! call to the same keyed timer from there would wait for its own thread: without a word in release
//! builds, and with a panic in debug builds, in which each thread knows what it holds.

use crate::keyed::shard::Shard;
use crate::sync::MutexGuard;
use crate::timer::shard_lock::ShardLock;
use std::ops::{Deref, DerefMut};

/// A shard under its lock; see the [module](self).
pub(crate) struct Locked<'a, K, T> {
    shard: MutexGuard<'a, Shard<K, T>>,
    #[cfg(all(debug_assertions, not(tickwheel_model)))]
    keyed: usize,
}

impl<'a, K, T> Locked<'a, K, T> {
    /// Locks a shard of the keyed timer at `keyed`, which tells it from others.
    #[inline]
    pub(crate) fn new(keyed: &'a impl Sized, shard: &'a ShardLock<Shard<K, T>>) -> Self {
        #[cfg(all(debug_assertions, not(tickwheel_model)))]
        let keyed = holding::begin(std::ptr::from_ref(keyed).addr());
        #[cfg(not(all(debug_assertions, not(tickwheel_model))))]
        let _ = keyed;
        Locked {
            shard: shard.lock(),
            #[cfg(all(debug_assertions, not(tickwheel_model)))]
            keyed,
        }
    }
}

impl<K, T> Deref for Locked<'_, K, T> {
    type Target = Shard<K, T>;

    #[inline]
    fn deref(&self) -> &Shard<K, T> {
        &self.shard
    }
}

impl<K, T> DerefMut for Locked<'_, K, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard<K, T> {
        &mut self.shard
    }
}

#[cfg(all(debug_assertions, not(tickwheel_model)))]
impl<K, T> Drop for Locked<'_, K, T> {
    fn drop(&mut self) {
        holding::end(self.keyed);
    }
}

/// The keyed timers of which this thread has a shard under its lock.
#[cfg(all(debug_assertions, not(tickwheel_model)))]
mod holding {
    use std::cell::RefCell;

    std::thread_local! {
        static HOLDING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes that this thread is about to lock a shard of the keyed timer.
    pub(super) fn begin(keyed: usize) -> usize {
        // A thread at its end may have no storage any more: then nothing is checked.
        let is_held = HOLDING.try_with(|held| held.borrow().contains(&keyed));
        if is_held == Ok(true) {
            panic!("this thread uses a keyed timer while it holds one of that timer's entries");
        }
        let _ = HOLDING.try_with(|held| held.borrow_mut().push(keyed));
        keyed
    }

    pub(super) fn end(keyed: usize) {
        let _ = HOLDING.try_with(|held| held.borrow_mut().retain(|held| *held != keyed));
    }
}
