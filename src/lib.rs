//! A timer for services that hold from thousands to tens of millions of timeouts, nearly all of
//! which are cancelled or extended before they expire: a hierarchical timing wheel driven by a
//! delay queue.
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
//! # Which part for what
//! | you have | use |
//! |---|---|
//! | a request that may never be answered | [`Timer`] |
//! | sessions, cache entries, members: one deadline for each key | [`KeyedTimer`] |
//! | work to do at intervals | [`Periodic`] |
//! | locks or registrations in a store that lapse unless renewed | [`Leases`] |
//! | async code that waits | [`Timer::sleep`], [`Timer::timeout`], [`Timer::interval`] |
//! | requests that wait for an event, but only for a limited time | [`Purgatory`] |
//! | hyper's servers and clients, with their time limits | [`Timer`] with the feature `hyper` |
//! | one thread with its own loop and its own notion of time | [`LocalTimer`] |
//!
//! All but `LocalTimer` are built on a [`Timer`], and any number of them share one. **[The
//! guide](guide) shows each of them**, how to drive and test them, and what belongs in your own
//! code. It includes pages on [the purgatory](guide::purgatory), on [runtimes, pools and
//! servers](guide::runtimes), and on [coming from another timer](guide::migrating).
//!
//! | choose | by |
//! |---|---|
//! | who drives it: a thread, your loop, a future | [`start`], [`advance_clock`], [`drive`] |
//! | where expired tasks run | [`executor`]: in place, a [`Worker`], a closure |
//! | what a task is: a closure or your own type | [`executor`]; your own type needs no allocation |
//! | the clock: the system's, or virtual time in tests | [`clock`], with a [`ManualClock`] |
//!
//! # Guarantees
//! - **Never early.** A task is handed over at or after its exact deadline, with any tick; with a
//!   reaper less than a tick later, plus the time that waking and running take.
//! - **Never lost, never twice.** Every timer that was added ends exactly once: cancelled, handed
//!   to the executor, or returned by [`Timer::shutdown`]. Without a `shutdown`, pending tasks are
//!   dropped with the [last clone](Timer#the-last-clone) of their timer, and a warning reports it.
//!   What cannot be added, and what an executor refuses, is returned to you.
//! - **One winner.** Of all cancels and the expiry one wins, and [`Timeout::cancel`] says which.
//!   Inside its own task a timer has already expired.
//! - **Handles never alias.** A handle may be kept forever; it never refers to another timer.
//! - **No task runs under a lock**, nor does an executor, a hook, a waker, an operation, a store of
//!   leases, or the `Drop` of any of them. So a task may add, cancel, shut down, or drop the last
//!   timer. What does run under a lock says so: a key's `Eq`, here and there its `Clone` and
//!   `Drop`, and what looks at a task in its place, such as [`KeyedTimer::with`].
//! - **A panic stays in its task.** It is counted (in [`Stats::panicked`], that of an operation in
//!   [`PurgatoryStats::panicked`]) and reported. The reaper continues, whatever the panic carries,
//!   and even if the report panics. A timer may be used in and after a `catch_unwind`.
//! - **No stalls.** No call takes time proportional to the number of timers while it holds a lock:
//!   buckets are flushed in batches of 128, and growing a shard copies at most its first 32 KiB of
//!   entries, and a record of 48 bytes for each further chunk. Keys are the exception: a
//!   [`KeyedTimer`] or a [`Purgatory`] rebuilds the table of one shard under its lock when the
//!   number of its keys has doubled.
//! - **The reaper is not starved.** No lock that it shares with adders yields the processor. If a
//!   thread that waits for a core holds a shard, the reaper serves the other shards first.
//! - **Idle costs nothing.** There is no periodic wake-up, however many timers wait.
//! - **Cancelled timers leave little behind.** Their task is returned at once. What remains of each
//!   takes 12 to 64 bytes. Each call takes a few of these remains away once a shard has more of
//!   them than of live timers, and 256 besides. When fifteen sixteenths of a chunk of up to 1,024
//!   entries are vacant, all of it is freed but its live entries and a record of 48 bytes. So live
//!   timers keep at most about sixteen times their own memory, and half a percent of what there was
//!   at the peak. In shapes made for the worst it was up to twelve times, with keys and with
//!   operations seven; when one in 64 lived on, or fewer, twice, thrice and seven times.
//! - **Any delay is valid**, from zero to [`Duration::MAX`](std::time::Duration::MAX): no panic, no
//!   overflow.
//! - **No `unsafe`** in this crate.
//!
//! # Trade-offs
//! - Deadlines are rounded up to a tick, by default one millisecond: on average a timer expires
//!   half a tick late. A finer tick costs a wake-up for each bucket that is due.
//! - The tick is a promise about the timer, not about the scheduler. If every core is busy, the
//!   reaper waits for one like any other thread, and timers are late by that wait. See the guide's
//!   section on [busy cores](guide#busy-cores).
//! - Timers of the same tick expire in no promised order; different ticks keep their order. There
//!   are two exceptions. Timers whose deadline had passed when they were added or last moved come
//!   first, and the timers of a shard that another thread is using come after those of other
//!   shards. With a [`ManualClock`] or a single shard the second does not happen.
//! - Each adding thread has its own shards, so even an empty timer takes some tens of kilobytes.
//!   One timer for the whole service is better than many. A dropped timer leaves about a kilobyte
//!   per shard, which the next timer with the same type of task reuses.
//! - It has neither calendars nor persistence. What must survive a restart belongs in a database.
//!
//! # Implementation
//! A [`Timer`] is divided into shards; each is a complete single-threaded wheel behind one lock,
//! and a thread adds to its own. Entries lie in a slab; the buckets of the wheels hold references
//! of 12 bytes. The shards share one delay queue, a binary heap of bucket expirations. Advancing
//! the clock polls the due buckets and flushes them in batches: due timers go to the executor, the
//! others to a finer wheel (Varghese & Lauck 1987; Apache Kafka's timer). [`LocalTimer`] is one
//! such shard without the lock. `docs/ARCHITECTURE.md` in the repository has the details.
//!
//! # Features
//! - `tracing` (default): reports panicking and refused tasks, tasks that were dropped with their
//!   timer, leases that were not renewed, and the start and stop of the reaper, as events.
//! - `hyper`: implements `hyper::rt::Timer` for [`Timer`].
//! - `stream`: implements `futures_core::Stream` for [`Interval`](future::Interval).
//!
//! [`Purgatory`]: purgatory::Purgatory
//! [`PurgatoryStats::panicked`]: purgatory::PurgatoryStats::panicked
//! [`KeyedTimer`]: keyed::KeyedTimer
//! [`KeyedTimer::with`]: keyed::KeyedTimer::with
//! [`Leases`]: lease::Leases
//! [`Periodic`]: periodic::Periodic
//! [`start`]: TimerBuilder::start
//! [`advance_clock`]: Timer::advance_clock
//! [`drive`]: Timer::drive
//! [`executor`]: TimerBuilder::executor
//! [`clock`]: TimerBuilder::clock

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

// In reading order: first the modules that are built on the timer, then the timer, then its parts.
pub mod future;
pub mod keyed;
pub mod lease;
pub mod periodic;
pub mod purgatory;
mod timer;
mod wheel;
mod store;
mod sync;
mod unwind;
#[cfg(not(tickwheel_count))]
mod work;
/// For this crate's tests only.
#[cfg(tickwheel_count)]
#[doc(hidden)]
pub mod work;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Which part to use for what; how to drive, test and shut down a timer: documentation only.
///
/// [the purgatory]: crate::guide::purgatory
/// [runtimes, pools and servers]: crate::guide::runtimes
/// [coming from another timer]: crate::guide::migrating
#[cfg(any(doc, doctest))]
#[doc = include_str!("../docs/GUIDE.md")]
pub mod guide {
    /// Calls to the timers of Netty, Kafka, tokio-util and godis, and the equivalents in this
    /// crate.
    ///
    /// [executor]: crate::guide#executors
    /// [what differs from Kafka's]: crate::guide::purgatory#what-differs-from-kafkas
    #[doc = include_str!("../docs/MIGRATING.md")]
    pub mod migrating {}

    /// Requests that wait until a condition holds or their time is up.
    #[doc = include_str!("../docs/PURGATORY.md")]
    pub mod purgatory {}

    /// Recipes for tokio, smol, rayon and hyper.
    // The recipes are compiled in `tests/runtimes`, which has those dependencies.
    #[cfg(not(doctest))]
    #[doc = include_str!("../docs/RUNTIMES.md")]
    pub mod runtimes {}
}

pub use timer::builder::TimerBuilder;
pub use timer::clock::{Clock, ManualClock, SystemClock};
pub use timer::entry::{IntoTask, SharedClosure, Task, TimerEntry, When};
pub use timer::error::{AddError, BuildError};
pub use timer::executor::{Batch, Executor, Inline, IntoExecuteResult, Worker};
pub use timer::stats::Stats;
pub use timer::timeout::{Cancel, CancelOnDrop, Timeout};
pub use timer::{Timer, WeakTimer};
pub use wheel::counters::Lateness;
pub use wheel::local::{LocalTimer, TimerKey};
pub use wheel::snapshot::{LevelSnapshot, Snapshot};
