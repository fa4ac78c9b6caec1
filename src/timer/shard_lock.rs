//! The lock of a shard: a mutex at which others let a turn go first that has waited for long.
//!
//! A thread that uses one shard again and again releases the lock for moments only. A turn that
//! tries the lock now and then would meet such a moment by chance, and one that queues for it would
//! be overtaken, because std's mutex gives the lock to whoever asks first. So the turn leaves a
//! mark, and who is about to take the lock waits while the mark is there.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, nap, thread_local};
use std::cell::Cell;
use std::time::Duration;

/// How often a lock is tried before it counts as taken: for about as long as a call holds it. In
/// models, trying again does not help.
const TRIES: usize = if cfg!(tickwheel_model) { 1 } else { 32 };

/// How long a thread waits for a lock before it looks again: long enough for its holder, or for the
/// turn that wants it, to get a core.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// The naps after which a caller goes ahead of a turn that does not come: about five milliseconds
/// with the time that it takes to wake up, in which the turn gets a core even if all are busy.
const GIVES_WAY: usize = if cfg!(tickwheel_model) { 1 } else { 50 };

thread_local! {
    /// The nesting depth of turns on this thread.
    pub(crate) static TURNS: Cell<u32> = const { Cell::new(0) };
}

/// See the [module](self).
pub(crate) struct ShardLock<S> {
    mutex: Mutex<S>,
    /// Whether a turn wants the lock. Relaxed everywhere: it is a hint, and the mutex orders.
    wanted: AtomicBool,
}

impl<S> ShardLock<S> {
    pub(crate) fn new(shard: S) -> Self {
        ShardLock { mutex: Mutex::new(shard), wanted: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        if self.wanted.load(Ordering::Relaxed) {
            self.give_way();
        }
        self.mutex.lock()
    }

    /// Waits while a turn wants the lock, unless this thread is the one that takes the turn. Who
    /// has waited for long removes the mark, so a turn that was given up delays nobody again.
    #[cold]
    fn give_way(&self) {
        if TURNS.with(Cell::get) > 0 {
            return;
        }
        for _ in 0..GIVES_WAY {
            nap(NAP);
            if !self.wanted.load(Ordering::Relaxed) {
                return;
            }
        }
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// Takes the lock, unless another thread keeps it for longer than a call takes. In that case
    /// its holder waits for a core, and so would a thread that waited for the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, S>> {
        (0..TRIES).find_map(|_| {
            let shard = self.mutex.try_lock();
            if shard.is_none() {
                std::hint::spin_loop();
            }
            shard
        })
    }

    /// Takes the lock for a turn: waits for it, or tries it. A turn that `insists`, and finds it
    /// taken, has others let it go first at its next try.
    pub(crate) fn lock_for_turn(&self, waits: bool, insists: bool) -> Option<MutexGuard<'_, S>> {
        if waits {
            return Some(self.mutex.lock());
        }
        let shard = self.try_lock();
        if insists {
            self.wanted.store(shard.is_none(), Ordering::Relaxed);
        }
        shard
    }

    #[cfg(test)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use std::thread;

    /// Only this crate's turns leave a mark, and one that is not removed is one that no turn left.
    #[test]
    fn a_mark_that_no_turn_removes_delays_one_call_only() {
        let lock = ShardLock::new(());
        let held = lock.lock();
        thread::scope(|scope| {
            assert!(
                scope
                    .spawn(|| lock.lock_for_turn(false, true).is_none())
                    .join()
                    .is_ok_and(|taken| taken)
            );
        });
        assert!(lock.is_wanted());
        drop(held);
        drop(lock.lock());
        assert!(!lock.is_wanted());
        TURNS.with(|turns| turns.set(1));
        lock.wanted.store(true, Ordering::Relaxed);
        drop(lock.lock());
        assert!(lock.is_wanted(), "a turn does not wait for itself");
        drop(lock.lock_for_turn(false, true));
        assert!(!lock.is_wanted());
    }
}
