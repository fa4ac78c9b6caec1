//! Timers for services that hold thousands to tens of millions of timeouts, most of which are
//! cancelled or extended before they expire.
//!
//! A [`Timer`] is a hierarchical timing wheel driven by a delay queue, the design of Apache Kafka's
//! timer. Any thread may add, cancel and extend timers. The *reaper* (a background thread), your
//! event loop or a future on your async runtime expires timers.
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
//! Any number of parts can share one [`Timer`]. `KeyedQueue` and `LocalTimer` need no `Timer`.
//! **[The guide](guide) has an example for each job**, and pages on migration, runtimes and
//! purgatories.
//!
//! | choose | by |
//! |---|---|
//! | the driver: a thread, your loop, a future | [`start`], [`advance_clock`], [`drive`] |
//! | where expired tasks run | [`executor`]: in place, a [`Worker`], a closure |
//! | the task type: closures or your own | [`executor`]; your own type needs no allocation |
//! | the clock: the system's, or virtual time in tests | [`clock`], with a [`ManualClock`] |
//!
//! # How a timer ends
//! | end of a timer | its task goes to |
//! |---|---|
//! | expiry | the [`executor`]; by default the task runs on the thread that drives the timer |
//! | [`Timeout::cancel`] | the caller |
//! | [`Timer::shutdown`] | the caller, with the deadline |
//! | drop of the [last clone](Timer#the-last-clone) | nobody: the task is dropped, with a warning |
//! | drop of a [`KeyedTimer`]'s last clone | nobody: keys are dropped, without a warning |
//! | drop of a [`Purgatory`]'s last clone | nobody: operations are dropped, without a warning |
//!
//! A failed `add` returns its task in the error. A task that the executor refuses goes to
//! [`on_refused`], or is dropped with a warning.
//!
//! # Trade-offs
//! - A [`KeyedTimer`] frees an expired key before the closure runs. If the executor is busy, the
//!   closure may run after a newer value was added. A closure that acts on anything outside its
//!   value must [compare a generation](guide#one-timer-for-each-key).
//! - A [`Purgatory`] checks the operations of a key first in, first out. Each call checks earlier
//!   operations again.
//! - A `check_and_complete` inside an operation's check takes effect only if that check returns
//!   true. In nested checks, all must return true.
//! - Keys lie in shards. A thread that locks a shard without a pause delays only that shard's keys.
//! - A panic in your `Drop` reaches the caller, as in std's collections. The reaper survives
//!   the panic. One exception: a [`Timer`] or [`Purgatory`] that ends contains and reports the
//!   panics of the pending tasks and operations that it drops.
//! - Deadlines are rounded up to a tick, by default one millisecond: timers are half a tick late on
//!   average. A finer tick costs a wake-up for each due bucket. On [busy cores](guide#busy-cores)
//!   the reaper waits for its turn.
//! - Timers expire in the order of their ticks. [`Timer::advance_clock`] lists the exceptions.
//!   Within a tick the order is unspecified. On a [`ManualClock`] each run has the same order.
//! - An empty timer or keyed timer takes about four kilobytes for each hardware thread, an empty
//!   purgatory thirteen. A dropped one keeps under a kilobyte per shard, which the next one of the
//!   same types and size uses again.
//! - Calendars and persistence are out of scope.
//!
//! # Guarantees
//! - **Never early.** The executor gets a task at or after its exact deadline, whatever the tick.
//! - **In time.** The reaper hands a task over less than one tick after the deadline, plus the time
//!   to wake up and to run earlier tasks.
//! - **Never lost, never twice.** Each timer ends in exactly one of [the ways
//!   above](crate#how-a-timer-ends).
//! - **One winner.** When cancels and the expiry race, exactly one wins. [`Timeout::cancel`] tells
//!   each caller the outcome.
//! - **Handles never alias.** A handle may be kept forever, and never refers to another timer.
//! - **No task runs under a lock.** The same holds for executors, wakers and operations, and for
//!   the `Drop` of each. A task may add or cancel timers, shut down, or drop the last clone.
//!   Only these run under a lock:
//!   - a key's `Eq` and `Borrow`;
//!   - in a purgatory, a key's `Clone` and `Drop`;
//!   - code that inspects a task in place, as in [`KeyedTimer::with`], and a task's `Clone` in
//!     [`KeyedTimer::get`](keyed::KeyedTimer::get);
//!   - a [clock of your own](Clock::reading).
//! - **A panic stays in its task.** The panic is reported, and counted in [`Stats::panicked`]
//!   (operations: the purgatory's [`panicked`]). The timer can be used in and after a
//!   `catch_unwind`.
//! - **No stalls.** No call holds a lock for a time proportional to the number of timers. Each of
//!   these exceptions locks one shard at a time:
//!   - a shard's table of keys, chunks or armed buckets doubles or shrinks under its lock; that of
//!     keys is also rebuilt now and then, while keys come and go;
//!   - [`Timer::snapshot`] visits the armed buckets of a shard under its lock;
//!   - [`Timer::shutdown`] and the drop of a last clone free the emptied tables of a shard under
//!     its lock.
//! - **The reaper is not starved.** A contended lock does not cost the reaper its time slice. While
//!   the holder of a shard's lock waits for a core, the reaper serves other shards.
//! - **Idle costs nothing.** Nothing wakes up periodically, however many timers are pending. On a
//!   [clock of your own](Clock::reading), waiting threads read it once a second.
//! - **Cancelled timers free their memory.** `cancel` returns the task at once. Later calls that
//!   cancel, move or expire timers sweep out the timer's remains: 12 bytes, or 240 if the timer was
//!   alone in its bucket. Each shard keeps the remains of at most 500 timers, and of two for each
//!   timer of the most that were pending there at once. This holds for wheels of up to 512 slots.
//!   Timers lie in chunks of 256. An empty chunk leaves some 40 bytes. A live timer keeps its
//!   chunk: 6 KiB with a task of 8 bytes, 10 KiB with a closure.
//! - **Any delay is valid**, from zero to [`Duration::MAX`](std::time::Duration::MAX), without
//!   panic or overflow.
//! - **No `unsafe`** in this crate.
//!
//! # Features
//! - `std` (default): adds all parts except [`LocalTimer`]. Without `std`, the crate is `no_std`,
//!   has no dependencies, and needs only an allocator.
//! - `tracing` (default): reports panics, refused and dropped tasks, and the start and stop of the
//!   reaper, as events.
//! - `hyper`: implements `hyper::rt::Timer` for [`Timer`].
//! - `stream`: implements `futures_core::Stream` for [`Interval`](future::Interval) and
//!   [`KeyedQueue`](queue::KeyedQueue).
//!
//! The repository's `docs/` describe the [platforms](guide#platforms), the implementation
//! (`ARCHITECTURE.md`), and the tests of each guarantee (`GUARANTEES.md`).
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
#![cfg_attr(
    not(feature = "std"),
    allow(dead_code, unreachable_pub, unused_imports)
)]
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
/// [a server that daemonizes]: crate::guide::runtimes#a-server-that-daemonizes
/// [tokio's paused clock]: crate::guide::runtimes#tokios-paused-clock
#[cfg(any(doc, doctest))]
#[doc = include_str!("../docs/GUIDE.md")]
pub mod guide {
    /// Calls of other timers (Netty, Kafka, tokio, mio, pingora, moka), and their equivalents in
    /// this crate.
    ///
    /// [idle connections]: crate::guide#idle-connections
    /// [only after the fork]: crate::guide::runtimes#a-server-that-daemonizes
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

    /// Recipes for tokio, smol, compio, rayon, hyper, quinn, tower, daemonize and rustix.
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
