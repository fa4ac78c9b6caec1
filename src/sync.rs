//! The lock facade: the few primitives through which the crate's threads share memory.
//!
//! The crate's locks, condition variables and threads come from this module, so that a model
//! checker can drive the shipped code. With `--cfg tickwheel_model` they are shuttle's, otherwise
//! std's. In a model, [`Condvar::wait`] waits without end: a wait that no thread ends is a lost
//! wake-up, and is reported as such.
//!
//! # Which mutex
//! [`HotMutex`] is std's. It guards what the reaper locks, and callers can lock without a pause:
//! the shards, the delay queue, the list of sources, the state of a series and of a wait. [`Mutex`]
//! is parking_lot's, and guards everything else. A contended mutex of parking_lot yields up to
//! seven times before it parks. On Linux a yield costs the thread its slice: the reaper, which
//! meets locks that adders hold half of the time, was 25 ms late where a thread that only sleeps
//! was 0.06 ms late. Uncontended the two cost the same.

#[cfg(tickwheel_model)]
use shuttle::sync as base;
#[cfg(not(tickwheel_model))]
use std::sync as base;

use std::cell::Cell;
use std::io;
use std::mem;
use std::ops::DerefMut;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

#[cfg(tickwheel_model)]
pub(crate) use shuttle::{sync::atomic, thread, thread_local};
#[cfg(not(tickwheel_model))]
pub(crate) use std::{sync::atomic, thread, thread_local};

/// A mutex that never yields. Not poisoned by panics: no user code under it leaves anything half
/// changed, and the timer should remain usable.
#[derive(Debug, Default)]
pub(crate) struct HotMutex<T>(base::Mutex<T>);

pub(crate) type HotMutexGuard<'a, T> = base::MutexGuard<'a, T>;

impl<T> HotMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        HotMutex(base::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> HotMutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<HotMutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cfg(tickwheel_model)]
    fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mutex for what is seldom contended.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(QuietMutex<T>);

#[cfg(tickwheel_model)]
type QuietMutex<T> = HotMutex<T>;
#[cfg(not(tickwheel_model))]
type QuietMutex<T> = parking_lot::Mutex<T>;

// As std's: a panic leaves nothing half changed.
impl<T> UnwindSafe for Mutex<T> {}
impl<T> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(QuietMutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> impl DerefMut<Target = T> {
        self.0.lock()
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(base::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(
        &self,
        guard: HotMutexGuard<'a, T>,
        until: Option<Instant>,
    ) -> HotMutexGuard<'a, T> {
        let Some(until) = until.filter(|_| !cfg!(tickwheel_model)) else {
            return self.0.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        let timeout = until.saturating_duration_since(Instant::now());
        self.0
            .wait_timeout(guard, timeout)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Wakes all waiting threads. Costs a system call even if there are none.
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A thread of the crate's. A fork copies only the thread that forks, so in the child this is the
/// handle of a thread that does not exist.
pub(crate) struct OwnThread {
    handle: thread::JoinHandle<()>,
    process: u32,
}

impl OwnThread {
    /// Starts a thread, which contains every panic.
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(OwnThread {
            handle,
            process: process(),
        })
    }

    /// Waits until the thread has ended. In a forked process, returns at once.
    pub(crate) fn join(self) {
        if self.process != process() {
            // There, a join ends the process or never returns. A drop would detach the thread,
            // which may touch a stack that the child has reused.
            mem::forget(self.handle);
            return;
        }
        let _ = self.handle.join();
    }
}

/// Returns the number of this process. Only Unix has forks: elsewhere all processes are 0, also
/// where `std` knows no numbers and would panic.
pub(crate) fn process() -> u32 {
    if cfg!(unix) { std::process::id() } else { 0 }
}

/// Returns how many threads can run at once. In models this is one, on every machine.
pub(crate) fn parallelism() -> usize {
    if cfg!(tickwheel_model) {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Sleeps for `time`. In models, lets another thread go on first.
pub(crate) fn nap(time: Duration) {
    if cfg!(tickwheel_model) {
        return thread::yield_now();
    }
    thread::sleep(time);
}

/// Returns `choice`; in models a random choice, so that the schedules cover both.
pub(crate) fn either_in_models(choice: bool) -> bool {
    #[cfg(tickwheel_model)]
    let choice =
        choice ^ (shuttle::rand::RngCore::next_u32(&mut shuttle::rand::thread_rng()) % 2 == 0);
    choice
}

thread_local! {
    // Without a destructor, so that it costs no check, and can be read until the thread has ended.
    static HOME: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of the shard to which the calling thread adds, modulo the number of shards, a
/// power of two.
///
/// Each thread has two shards, as far as there are enough. A thread that finds its shard locked,
/// for example by a thread that cancels timers there, changes to its other shard. The two threads
/// then contend neither for a lock nor for cache lines. With a single shard for each thread,
/// cancels from other threads take 175 ns instead of 115.
#[inline]
pub(crate) fn home() -> usize {
    let home = HOME.with(Cell::get);
    if home == 0 { take_home() } else { home }
}

#[cold]
fn take_home() -> usize {
    // In models, twice the thread's place in the order of spawning.
    #[cfg(tickwheel_model)]
    let number = 2 + 2 * usize::from(shuttle::current::me());
    #[cfg(not(tickwheel_model))]
    let number = {
        /// Relaxed: the numbers order nothing.
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(2);
        NEXT.fetch_add(2, atomic::Ordering::Relaxed).max(2)
    };
    HOME.with(|home| home.set(number));
    number
}

/// Makes the calling thread add to its other shard from now on.
#[cold]
pub(crate) fn change_home() {
    let other = home() ^ 1;
    HOME.with(|home| home.set(other));
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_nap_is_as_long_as_it_was_meant_to_be() {
        let begun = Instant::now();
        nap(Duration::from_millis(2));
        assert!(begun.elapsed() >= Duration::from_millis(2));
    }
}
