//! Timers for services that hold thousands to tens of millions of timeouts, most of which are
//! cancelled or extended before they expire.
//!
//! A [`Timer`] is a hierarchical timing wheel driven by a delay queue, the design of Apache Kafka's
//! timer. Any thread may add, cancel and extend timers. A background thread, your event loop or a
//! future on your async runtime expires them.
//!
//! ```
//! use std::{sync::mpsc, time::Duration};
//! use tickwheel::Timer;
//!
//! let timer = Timer::builder().start()?; // One for the whole service, with its own thread.
//!
//! // Runs once, ten milliseconds from now.
//! let (sender, receiver) = mpsc::channel();
//! timer.after(Duration::from_millis(10), move || {
//!     let _ = sender.send("timed out");
//! })?;
//!
//! // Most timeouts never expire: keep the handle, and cancel it when the answer arrives.
//! let timeout = timer.after(Duration::from_secs(30), || println!("no answer"))?;
//! assert!(timeout.cancel().is_cancelled());
//!
//! assert_eq!(receiver.recv()?, "timed out");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which part to use
//! | you have | use |
//! |---|---|
//! | a request that may never be answered | [`Timer`] |
//! | sessions, cache entries, members: one deadline for each key | [`KeyedTimer`] |
//! | the same, in one task that polls | [`KeyedQueue`](queue::KeyedQueue) |
//! | work to do at intervals | [`Periodic`] |
//! | locks or registrations that lapse unless renewed | the crate `tickwheel-leases` |
//! | async code that waits | [`Timer::sleep`], [`Timer::timeout`], [`Timer::interval`] |
//! | requests that wait for an event, for a limited time | [`Purgatory`] |
//! | hyper's time limits (feature `hyper`) | [`Timer`] |
//! | one thread with its own loop and its own count of time | [`LocalTimer`] |
//!
//! All but `KeyedQueue` and `LocalTimer` run on a [`Timer`], which any number of them can share.
//! **[The guide](guide) has an example for each job**, and pages for users of other timers,
//! runtimes and purgatories.
//!
//! | choose | by |
//! |---|---|
//! | who drives it: a thread, your loop, a future | [`start`], [`advance_clock`], [`drive`] |
//! | where expired tasks run | [`executor`]: in place, a [`Worker`], a closure |
//! | what a task is: a closure or your own type | [`executor`]; your own type needs no allocation |
//! | the clock: the system's, or virtual time in tests | [`clock`], with a [`ManualClock`] |
//!
//! # How a timer ends
//! | by | its task goes to |
//! |---|---|
//! | expiring | the [`executor`]; by default it runs on the thread that drives the timer |
//! | [`Timeout::cancel`] | the caller |
//! | [`Timer::shutdown`] | the caller, with its deadline |
//! | dropping the [last clone](Timer#the-last-clone) | nobody: it is dropped, with a warning |
//!
//! A task that cannot be added is in the error. A task that the executor refuses goes to
//! [`on_refused`], or is dropped with a warning.
//!
//! # Trade-offs
//! - An expired key of a [`KeyedTimer`] is free before its closure runs, so a busy executor may run
//!   the closure after a newer value was added. A closure that acts on anything outside its value
//!   must [compare a generation](guide#one-timer-for-each-key).
//! - The operations of a key are checked first in, first out. Each call checks a waiter that takes
//!   no item before the waiters behind it.
//! - A thread that keeps a part of the keys locked without a pause delays these keys, and no
//!   others.
//! - A `Drop` that panics is its caller's, as in std's collections. The reaper's loop survives it.
//! - A trigger that an operation's check makes is dropped unless that check returns true, and each
//!   check inside which it runs.
//! - Deadlines are rounded up to a tick, by default one millisecond: timers are half a tick late on
//!   average. A finer tick costs a wake-up for each due bucket. On [busy cores](guide#busy-cores)
//!   the reaper waits for its turn.
//! - Timers expire in the order of their ticks, with [exceptions](Timer::advance_clock). Within a
//!   tick the order is unspecified, except on a [`ManualClock`].
//! - An empty timer or keyed timer takes about four kilobytes for each hardware thread, an empty
//!   purgatory seven. A dropped one leaves less than a kilobyte per shard, for the next one of the
//!   same types and size. Prefer one timer for the whole service.
//! - Calendars and persistence are out of scope.
//!
//! # Guarantees
//! - **Never early.** A task is handed over at or after its exact deadline, whatever the tick.
//! - **In time.** A reaper, the timer's own thread, hands a task over less than one tick later,
//!   plus the time to wake up and to run the tasks ahead of it.
//! - **Never lost, never twice.** Each timer ends in exactly one of the four ways above.
//! - **One winner.** When cancels and the expiry race, exactly one wins. [`Timeout::cancel`] tells
//!   each caller the outcome.
//! - **Handles never alias.** A handle may be kept forever, and never refers to another timer.
//! - **No task runs under a lock**, nor does an executor, waker or operation, or the `Drop` of any
//!   of them. A task may add, cancel, shut down, or drop the last timer. Four things run under a
//!   lock, and their documentation says so: a key's `Eq` and `Borrow`, in a purgatory its `Clone`
//!   and `Drop`, code that looks at a task in place, as in [`KeyedTimer::with`], and a [clock of
//!   your own](Clock::reading).
//! - **A panic stays in its task.** It is counted ([`Stats::panicked`]; an operation's in the
//!   purgatory's [`panicked`]) and reported. The timer can be used in and after a `catch_unwind`.
//! - **No stalls.** No call holds a lock for a time proportional to the number of timers, except
//!   where a table of one shard doubles: that of its keys, its chunks, or its armed buckets.
//! - **The reaper is not starved.** Its locks never yield the processor. It serves other shards
//!   while a shard's holder waits for a core.
//! - **Idle costs nothing.** Nothing wakes up periodically, however many timers are pending, except
//!   on a [clock of your own](Clock::reading).
//! - **Cancelled timers free their memory.** `cancel` returns the task at once. Later calls sweep
//!   out its remains: 12 bytes, or 240 if it was alone in its bucket. Timers lie in chunks of 256;
//!   an empty chunk is given back, but for some 40 bytes. One live timer keeps its chunk: 6 KiB
//!   with a task of 8 bytes, 10 KiB with a closure.
//! - **Any delay is valid**, from zero to [`Duration::MAX`](std::time::Duration::MAX), without
//!   panic or overflow.
//! - **No `unsafe`** in this crate.
//!
//! # Features
//! - `std` (default): everything but [`LocalTimer`], which needs only an allocator. Without `std`
//!   the crate is `no_std` and has no dependencies.
//! - `tracing` (default): reports panics, refused and dropped tasks, and the start and stop of the
//!   reaper, as events.
//! - `hyper`: implements `hyper::rt::Timer` for [`Timer`].
//! - `stream`: implements `futures_core::Stream` for [`Interval`](future::Interval) and
//!   [`KeyedQueue`](queue::KeyedQueue).
//!
//! The repository's `docs/` describe the [platforms](guide#platforms), the implementation
//! (`ARCHITECTURE.md`), and the tests that hold each guarantee (`GUARANTEES.md`).
//!
//! [`Purgatory`]: purgatory::Purgatory
//! [`panicked`]: purgatory::Stats::panicked
//! [`KeyedTimer`]: keyed::KeyedTimer
//! [`KeyedTimer::with`]: keyed::KeyedTimer::with
//! [`Periodic`]: periodic::Periodic
//! [`start`]: TimerBuilder::start
//! [`advance_clock`]: Timer::advance_clock
//! [`drive`]: Timer::drive
//! [`executor`]: TimerBuilder::executor
//! [`on_refused`]: TimerBuilder::on_refused
//! [`clock`]: TimerBuilder::clock

#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "std"), no_std)]
// `LocalTimer` alone uses a part of the wheel.
#![cfg_attr(not(feature = "std"), allow(dead_code, unreachable_pub, unused_imports))]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

extern crate alloc;

// In reading order: the modules built on the timer, the timer, its parts.
#[cfg(feature = "std")]
pub mod future;
#[cfg(feature = "std")]
pub mod keyed;
#[cfg(feature = "std")]
pub mod periodic;
#[cfg(feature = "std")]
pub mod purgatory;
#[cfg(feature = "std")]
pub mod queue;
#[cfg(feature = "std")]
mod timer;
#[cfg(feature = "std")]
mod engine;
mod wheel;
#[cfg(feature = "std")]
mod table;
#[cfg(feature = "std")]
mod sync;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// How to choose, drive, test and shut down a timer: documentation only.
///
/// [the purgatory]: crate::guide::purgatory
/// [runtimes, pools and servers]: crate::guide::runtimes
/// [coming from another timer]: crate::guide::migrating
/// [a clock that does]: crate::guide::runtimes#deadlines-that-count-suspended-time
/// [tokio's paused clock]: crate::guide::runtimes#tokios-paused-clock
#[cfg(any(doc, doctest))]
#[doc = include_str!("../docs/GUIDE.md")]
pub mod guide {
    /// Calls of other timers (Netty, Kafka, tokio-util, godis), and their equivalents in this
    /// crate.
    ///
    /// [executor]: crate::guide#executors
    /// [compare generations]: crate::guide#one-timer-for-each-key
    /// [`max_pending`]: crate::guide#limits-shutdown-drop
    /// [tokio's paused clock]: crate::guide::runtimes#tokios-paused-clock
    /// [tokio's clock and sleep]: crate::guide::runtimes#a-keyed-queue-on-tokio
    /// [what differs from Kafka's]: crate::guide::purgatory#what-differs-from-kafkas
    #[doc = include_str!("../docs/MIGRATING.md")]
    pub mod migrating {}

    /// Requests that wait until a condition holds or their time is up.
    #[doc = include_str!("../docs/PURGATORY.md")]
    pub mod purgatory {}

    /// Recipes for tokio, smol, compio, rayon, hyper and rustix.
    // The recipes are compiled in `tests/lab/runtimes`, which has those dependencies.
    #[cfg(not(doctest))]
    #[doc = include_str!("../docs/RUNTIMES.md")]
    pub mod runtimes {}
}

pub use wheel::{LocalTimer, Popped, TimerKey};
#[cfg(feature = "std")]
pub use {
    engine::clock::{Clock, SystemClock, When},
    engine::manual_clock::ManualClock,
    engine::stats::{LevelSnapshot, Snapshot, Stats},
    future::drive::Listener,
    timer::builder::TimerBuilder,
    timer::entry::{IntoTask, SharedClosure, Task, TimerEntry},
    timer::error::{AddError, BuildError, Rejected},
    timer::executor::{Batch, Executor, Inline, IntoExecuteResult, Worker},
    timer::timeout::{Cancel, CancelOnDrop, Timeout},
    timer::{Timer, WeakTimer},
    wheel::counters::Lateness,
};
