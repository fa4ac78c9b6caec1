//! The types that may be used on both sides of a `catch_unwind`, though the compiler cannot tell.
//!
//! A structure that was in use at the moment of a panic may be left half changed. The types that
//! are listed here never are. Their structures lie behind locks, and tasks, operations, executors
//! and stores are called, dropped and given back with no lock held. The only user code that runs
//! under a lock is a key's own `Eq`, `Clone` and `Drop`, and, of a keyed timer, the closures that
//! look at a task in its place, the task's `Clone` in `get`, and whatever is done while an entry is
//! held. A panic there may cost the key its timer, but leaves nothing behind that would make a
//! later call fail.
//!
//! A lease and a renewal also own their key, and a keyed timer and a purgatory own their hasher:
//! they are only as safe as that value is.

use crate::keyed::KeyedTimer;
use crate::lease::watchdog::Renewal;
use crate::lease::{Lease, Leases};
use crate::periodic::{Run, Series};
use crate::purgatory::Purgatory;
use crate::purgatory::future::Wait;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::pending::Pending;
use crate::timer::base::Base;
use crate::timer::builder::TimerBuilder;
use crate::timer::clock::ManualClock;
use crate::timer::entry::Task;
use crate::timer::executor::Worker;
use crate::timer::timeout::Timeout;
use crate::timer::{Timer, WeakTimer};
use std::hash::Hash;
use std::panic::{RefUnwindSafe, UnwindSafe};

macro_rules! unwind_safe {
    ($([$($generics:tt)*] $type:ty),* $(,)?) => {$(
        impl<$($generics)*> UnwindSafe for $type {}
        impl<$($generics)*> RefUnwindSafe for $type {}
    )*};
}

unwind_safe! {
    [] ManualClock,
    // Part of the futures.
    [] Base,
    [T: Send + 'static] Timer<T>,
    [T: Send + 'static] WeakTimer<T>,
    // A builder is consumed as it builds: no code sees it after a panic in that.
    [T: Send + 'static] TimerBuilder<T>,
    [T: 'static] Timeout<T>,
    // A task is consumed as it runs. Of a shared closure, other code sees no more than of any
    // closure that a timer runs.
    [] Task,
    [T] Worker<T>,
    [] Series,
    [] Run<'_>,
    [K: Hash + Eq + Clone + Send + 'static] Leases<K>,
    [K, O] Pending<K, O>,
    [K: Eq + Clone + Send + 'static] Wait<K>,
}

macro_rules! as_safe_as_its_own {
    ($trait:ident) => {
        impl<K, T, S> $trait for KeyedTimer<K, T, S>
        where
            K: Hash + Eq + Send + 'static,
            T: Send + 'static,
            S: $trait,
        {
        }
        impl<K, O, S> $trait for Purgatory<K, O, S>
        where
            K: Hash + Eq + Clone + Send + 'static,
            O: DelayedOperation,
            S: $trait,
        {
        }
        impl<K> $trait for Lease<K> where K: Hash + Eq + Clone + Send + $trait + 'static {}
        impl<K> $trait for Renewal<K> where K: Hash + Eq + Clone + Send + $trait + 'static {}
    };
}
as_safe_as_its_own!(UnwindSafe);
as_safe_as_its_own!(RefUnwindSafe);
