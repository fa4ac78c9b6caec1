//! A hierarchical timing wheel driven by a delay queue: the timer for services that hold from
//! thousands to tens of millions of timeouts, nearly all of which are cancelled or extended.
//!
//! ```
//! use std::{sync::mpsc, time::Duration};
//! use tickwheel::{Timer, TimerEntry};
//!
//! let timer = Timer::builder().start()?; // A reaper thread drives it.
//! let (sender, receiver) = mpsc::channel();
//! // Runs once, ten milliseconds from now.
//! timer.add(TimerEntry::after(Duration::from_millis(10), move || {
//!     sender.send("timed out").unwrap();
//! }))?;
//! // Most timeouts never expire: keep the handle, and cancel it when the answer has come.
//! let timeout = timer.add(TimerEntry::after(Duration::from_secs(30), || unreachable!()))?;
//! assert!(timeout.cancel().is_cancelled());
//!
//! assert_eq!(receiver.recv()?, "timed out");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Tasks of your own type
//! A [`Timer`] of closures boxes each of them. A service that holds millions of timers keeps its
//! own small type instead, an id or an `Arc`; it lies in the timer's memory and costs no
//! allocation. The [executor](Executor) gets what expired:
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::{Timer, TimerEntry};
//!
//! let timer: Timer<u64> = Timer::builder()
//!     .executor(|request: u64| println!("request {request} has timed out"))
//!     .build()?; // No thread: you drive it.
//! timer.add(TimerEntry::after(Duration::from_millis(1), 7_u64))?;
//! timer.advance_clock(Duration::from_millis(200)); // Waits for the next bucket, at most 200 ms.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Virtual time
//! With a [`ManualClock`] the code that you ship runs in virtual time: hours pass at once, nothing
//! sleeps, and each run is like the other.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::{ManualClock, Timer, TimerEntry};
//!
//! let clock = ManualClock::new();
//! let timer: Timer<&str> =
//!     Timer::builder().clock(clock.clone()).executor(|_: &str| ()).build()?;
//! let session = timer.add(TimerEntry::after(Duration::from_secs(3600), "session"))?;
//! clock.advance(Duration::from_secs(3599));
//! assert_eq!(timer.advance_clock(Duration::ZERO), 0);
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(timer.advance_clock(Duration::ZERO), 1);
//! assert!(session.is_expired());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Purgatory
//! A broker parks requests until they can be answered, or until their time is up: a fetch that
//! waits for bytes, a join that waits for members. A [`Purgatory`] holds such
//! [delayed operations](purgatory::DelayedOperation), and completes each exactly once, when one of
//! its keys is triggered and its condition holds, or on expiry. Any number of purgatories share one
//! timer.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::time::Duration;
//! use tickwheel::Timer;
//! use tickwheel::purgatory::{DelayedOperation, Purgatory};
//!
//! struct Fetch(Arc<AtomicBool>);
//!
//! impl DelayedOperation for Fetch {
//!     fn try_complete(&mut self) -> bool {
//!         self.0.load(Ordering::Acquire)
//!     }
//!     fn on_complete(&mut self) {
//!         println!("there is data, or half a second is over");
//!     }
//! }
//!
//! let timer = Timer::builder().start()?;
//! let purgatory = Purgatory::new(&timer);
//! let has_data = Arc::new(AtomicBool::new(false));
//! let fetch = Fetch(Arc::clone(&has_data));
//! let max_wait = Duration::from_millis(500);
//! let watch = purgatory.try_complete_else_watch(fetch, max_wait, &["orders-0"])?;
//! assert!(!watch.is_completed());
//!
//! has_data.store(true, Ordering::Release); // Whoever appends to the partition
//! assert_eq!(purgatory.check_and_complete(&"orders-0"), 1); // triggers its key.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The repository's `docs/PURGATORY.md` tells the whole story, and how it differs from Kafka's.
//!
//! # Guarantees
//! - **Never early.** A task is handed over at or after its exact deadline, at any tick; with a
//!   reaper less than a tick later, plus the time that waking and running take.
//! - **Never lost, never twice.** Every timer that was added is, exactly once: cancelled, or handed
//!   to the executor, or returned by [`Timer::shutdown`]. Without a `shutdown`, what is pending is
//!   dropped with the [last clone](Timer#the-last-clone) of its timer, and that is reported. What
//!   could not be added, and what an executor refuses, comes back to you.
//! - **One winner.** Of all cancels and the expiry, one wins, and [`Timeout::cancel`] says which.
//!   Inside its own task a timer has expired already.
//! - **Handles never alias.** A handle may be kept for ever; it never touches another timer.
//! - **Nothing runs under a lock.** Not a task, not an executor, not a task's `Drop`. So a task may
//!   add, cancel, shut down, or drop the last timer.
//! - **A panic stays in its task.** It is counted (in [`Stats::panicked`], an operation's in
//!   [`PurgatoryStats::panicked`]) and reported; the reaper goes on, whatever the panic carries,
//!   and if the report panics as well. A timer may be used in and after a `catch_unwind`.
//! - **Nothing stalls.** No call takes time proportional to the number of timers while it holds a
//!   lock: buckets are flushed in batches of 128, and to grow a shard copies no more than its first
//!   32 KiB of entries, and 48 bytes for each 1,024 further ones. Keys are the exception: the table
//!   of a shard of a [`KeyedTimer`] or a [`Purgatory`] is built anew under its lock when its keys
//!   have doubled, in time proportional to the keys in that one shard.
//! - **Nothing starves the reaper.** No lock that it shares with adders yields the processor, and
//!   where a thread that waits for a core holds a shard, the reaper does the other shards first.
//! - **Idle costs nothing.** No periodic wake-up, however many timers wait.
//! - **Cancelled timers leave little behind.** Their task goes at once. What is left of each is 12
//!   to 64 bytes, and there is never much more of it than there are live timers. A chunk of up to
//!   1,024 entries is given back when fifteen sixteenths of it are vacant: so whatever came and
//!   went, the live ones keep at most about sixteen times their own memory, and seldom twice.
//! - **Any delay is good.** Zero, the past, [`Duration::MAX`](std::time::Duration::MAX): no panic,
//!   no overflow.
//! - **No `unsafe`** in this crate.
//!
//! # Trade-offs
//! - Timers are told apart by ticks, a millisecond unless chosen otherwise: on average a timer
//!   expires half a tick late. A finer tick costs a wake-up per bucket that is due.
//! - The tick is a promise about the timer, not about the scheduler. With every core busy the
//!   reaper waits for one like any other thread, and timers are late by as much more. What helps is
//!   a core to spare, a priority that the system gives to that thread, or
//!   [`advance_clock`](Timer::advance_clock) in a loop of your own.
//! - Timers of the same tick expire in no promised order; from tick to tick the order is kept. But
//!   first come those whose time had passed when they were added; and those of a shard that another
//!   thread is using are overtaken by the other shards'. With a [`ManualClock`] or a single shard
//!   nothing is overtaken.
//! - Each thread that adds has shards of its own, so a timer takes some tens of kilobytes even when
//!   empty. One timer for the whole service is better than many. Of a timer that was dropped about
//!   a kilobyte per shard stays, for the next timer with the same type of task.
//! - It knows neither calendars nor persistence. What must survive a restart belongs into a
//!   database.
//!
//! # Implementation
//! A [`Timer`] is divided into shards, each a complete single-threaded wheel behind one lock; a
//! thread adds to its own. Entries lie in a slab; the buckets of the wheels hold references of 12
//! bytes. The shards share one delay queue, a binary heap of bucket expirations. Advancing the
//! clock polls the due buckets and flushes them in batches: what is due goes to the executor, the
//! rest to a finer wheel (Varghese & Lauck 1987; Apache Kafka's timer). [`LocalTimer`] is one such
//! shard without the lock. The repository's `docs/ARCHITECTURE.md` tells it all.
//!
//! # Features
//! - `tracing` (default): reports panicking and refused tasks, those that were dropped with their
//!   timer, leases that were not renewed, and the reaper's start and stop.
//! - `hyper`: a [`Timer`] is a `hyper::rt::Timer`, which keeps the time for hyper's servers and
//!   clients.
//!
//! [`Purgatory`]: purgatory::Purgatory
//! [`PurgatoryStats::panicked`]: purgatory::PurgatoryStats::panicked
//! [`KeyedTimer`]: keyed::KeyedTimer

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// In reading order: what stands on the timer, then the timer, and downwards what it stands on.
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

/// Compiles and runs the example of the purgatory's page.
#[cfg(doctest)]
#[doc = include_str!("../docs/PURGATORY.md")]
struct PurgatoryPage;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/GUIDE.md")]
struct Guide;

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
