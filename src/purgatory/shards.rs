//! The shards of a purgatory, each behind its lock.
//!
//! A handle refers to them without counting the reference, so they are never freed. When their
//! purgatory is dropped, they wait in the [pool](crate::timer::pool) for the next one. Handles of
//! the old purgatory stay harmless, because its keys are never issued again.
//!
//! # Locks
//! Each shard has one, of the same rank as the lock of a timer's shard: the delay queue's lock may
//! be taken under it, but never another shard's. A key's `Eq`, `Clone` and `Drop` may run under it.
//! The code of operations does not: operations are called and dropped outside.

use crate::purgatory::callbacks::{CallbackTurn, postpone};
use crate::purgatory::place::Places;
use crate::purgatory::shard::{Service, Shard};
use crate::store::key_map::{shard_of, shards_for};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, parallelism};
use crate::timer::delay_queue::Wakes;
use crate::timer::owner::{MAX_SHARDS, Queued};
use crate::timer::report::{contain, report_panic};
use crate::wheel::wheels::Wheels;
use crossbeam_utils::CachePadded;
use std::any::Any;

/// Slots of each wheel: few, because there are many shards, and most operations end long before
/// their deadline.
const WHEEL_SIZE: usize = 64;

/// The shards of a purgatory; their number is a power of two. See the [module](self).
pub(crate) struct Shards<K, O>(Box<[CachePadded<Cell<K, O>>]>);

/// A shard behind its lock, and the counters that need no lock. Padded, so that two shards never
/// share a cache line.
struct Cell<K, O> {
    shard: Mutex<Shard<K, O>>,
    /// Operations that the first check completed.
    at_once: AtomicU64,
    panicked: AtomicU64,
}

impl<K, O> Shards<K, O> {
    /// Returns the shard with this number, behind its lock.
    #[inline]
    pub(crate) fn at(&self, number: usize) -> &Mutex<Shard<K, O>> {
        &self.0[number].shard
    }

    #[inline]
    pub(crate) fn lock(&self, number: u16) -> MutexGuard<'_, Shard<K, O>> {
        self.0[usize::from(number)].shard.lock()
    }

    /// Returns the number of the shard of keys with this hash.
    #[inline]
    pub(crate) fn number_of(&self, hash: u64) -> u16 {
        shard_of(hash, self.0.len()) as u16
    }

    /// Returns the number of a shard for counts that belong to no particular shard. It depends on
    /// the thread, so that threads do not contend.
    pub(crate) fn of_thread(&self, thread: u32) -> u16 {
        (thread as usize & (self.0.len() - 1)) as u16
    }

    /// Closes all shards: nothing can be added any more.
    pub(crate) fn close(&self) {
        self.0.iter().for_each(|cell| cell.shard.lock().closed = true);
    }

    /// Adds up a figure of all shards.
    pub(crate) fn sum(&self, of: impl Fn(&Shard<K, O>) -> usize) -> usize {
        self.0.iter().map(|cell| of(&cell.shard.lock())).sum()
    }

    /// Returns the numbers of all shards.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> {
        (0..self.0.len()).map(|number| number as u16)
    }

    /// Counts an operation that the first check completed. Relaxed: no count publishes anything.
    pub(crate) fn count_at_once(&self, number: u16) {
        self.0[usize::from(number)].at_once.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls the code of an operation; contains its panic, and reports it with the timer's name.
    /// The caller counts it.
    #[inline]
    pub(crate) fn catch_panic<R>(&self, number: u16, code: impl FnOnce() -> R) -> Option<R> {
        contain(code).map_err(|panic| self.report_panic(number, panic)).ok()
    }

    #[cold]
    fn report_panic(&self, number: u16, panic: Box<dyn Any + Send>) {
        // Not under the lock: a subscriber is the user's code.
        let service = self.lock(number).service.clone();
        report_panic(service.as_ref().map(|service| &*service.context.name), panic);
    }

    /// Counts a panic of an operation's code.
    pub(crate) fn count_panic(&self, number: u16) {
        self.0[usize::from(number)].panicked.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many operations the first check completed, and how often their code panicked.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let counts = |cell: &CachePadded<Cell<K, O>>| {
            (cell.at_once.load(Ordering::Relaxed), cell.panicked.load(Ordering::Relaxed))
        };
        let add = |(a, b): (u64, u64), (c, d)| (a + c, b + d);
        self.0.iter().map(counts).fold((0, 0), add)
    }

    /// Calls the `code` with which an operation of a shard ends, and drops the operation. This
    /// happens now, or after the callback that this thread is running.
    pub(crate) fn conclude(
        &'static self,
        number: u16,
        mut operation: O,
        code: impl FnOnce(&mut O) + 'static,
    ) where
        O: 'static,
    {
        let end = move || {
            if self.catch_panic(number, || code(&mut operation)).is_none() {
                self.count_panic(number);
            }
            if self.catch_panic(number, || drop(operation)).is_none() {
                self.count_panic(number);
            }
        };
        match CallbackTurn::begin() {
            Some(_turn) => end(),
            None => postpone(end),
        }
    }
}

impl<K: Eq + Clone, O> Shards<K, O> {
    pub(crate) fn new() -> Self {
        let count = shards_for(parallelism()).min(MAX_SHARDS);
        let cell = |number| {
            CachePadded::new(Cell {
                shard: Mutex::new(Shard::new(number as u16)),
                at_once: AtomicU64::new(0),
                panicked: AtomicU64::new(0),
            })
        };
        Shards((0..count).map(cell).collect())
    }

    /// Returns whether nothing is left of the purgatory that the shards served.
    pub(crate) fn is_free(&self) -> bool {
        self.0.iter().all(|cell| cell.shard.lock().is_free())
    }

    /// Begins to serve a purgatory, whose first shard has the number `first` on the driver.
    pub(crate) fn serve(&self, service: &Service, first: u32) {
        let time = &service.context.time;
        let current = time.ticks.floor(time.now());
        for (number, cell) in (first..).zip(&self.0) {
            let wheels = Wheels::new(number, WHEEL_SIZE, current);
            cell.shard.lock().serve(service.clone(), wheels);
            cell.at_once.store(0, Ordering::Relaxed);
            cell.panicked.store(0, Ordering::Relaxed);
        }
    }

    /// Gives back what the shards hold for a purgatory that is gone. Returns whether they may serve
    /// another one once they are free: not if too many of their keys are used up.
    pub(crate) fn retire(&self) -> bool {
        for cell in &self.0 {
            let closures = cell.shard.lock().retire();
            drop(closures);
        }
        !self.0.iter().any(|cell| cell.shard.lock().core.is_worn())
    }

    /// Checks every shard.
    pub(crate) fn assert_invariants(&self, queued: Option<&Queued>) {
        self.0.iter().for_each(|cell| cell.shard.lock().assert_invariants(queued));
    }

    /// Removes an ended operation from all its keys but the first.
    #[inline]
    pub(crate) fn leave(&self, places: &Places) {
        places.others().for_each(|place| self.lock(place.shard).watchers.remove(place));
    }

    /// Wakes the sleepers of a shard's timer, if `wakes` says so.
    #[inline]
    pub(crate) fn wake(&self, shard: MutexGuard<'_, Shard<K, O>>, wakes: Wakes) {
        if wakes != Wakes::Nobody {
            let service = shard.service.clone();
            drop(shard);
            service.iter().for_each(|service| service.context.wake(wakes));
        }
    }
}
