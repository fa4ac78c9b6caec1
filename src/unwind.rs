//! What may be used on both sides of a `catch_unwind`, though the compiler cannot tell.
//!
//! What was in use at the moment of a panic may be left half changed. What is listed here never is.
//! Its structures lie behind locks, and tasks, operations, executors and stores are called, dropped
//! and given back with no lock held. All that does run under one is a key's own `Hash`, `Eq`,
//! `Clone` and `Drop`: a panic there may cost the key its timer, but leaves nothing over which a
//! later call would fall.
//!
//! A lease and a renewal own their key as well, a keyed timer and a purgatory their hasher: they
//! are as safe as that is.

use crate::keyed::KeyedTimer;
use crate::lease::watchdog::Renewal;
use crate::lease::{Lease, Leases};
use crate::periodic::{Run, Series};
use crate::purgatory::Purgatory;
use crate::purgatory::future::Wait;
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::pending::Pending;
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
    [T: Send + 'static] Timer<T>,
    [T: Send + 'static] WeakTimer<T>,
    // It is consumed as it builds: nobody sees it after a panic in that.
    [T: Send + 'static] TimerBuilder<T>,
    [T: 'static] Timeout<T>,
    // Likewise as it runs. Of a shared closure others see no more than of any that a timer runs.
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
