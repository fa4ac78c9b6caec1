//! The drive: advances a timer in a service's loop or a future, without a thread of its own.

use crate::engine::alarm::Alarm;
use crate::engine::delay_queue::Awaited;
use crate::engine::reaper::Engine;
use crate::timer::Timer;
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How many tasks a poll of [`Drive`] expires before it lets the runtime's other tasks run.
const LIMIT: usize = 512;

/// Tells a service's own loop when to advance a timer, and wakes the loop when that becomes
/// earlier; created by [`Timer::listener`].
///
/// For a loop that waits in a call of its own, such as `epoll_wait`. A loop with nothing else to
/// wait for calls [`advance_clock`](Timer::advance_clock) with a timeout. A listener does not keep
/// the timer alive.
pub struct Listener {
    engine: Arc<Engine>,
    number: u64,
}

impl Listener {
    /// Returns when to call [`advance_clock`](Timer::advance_clock) next, as
    /// [`Timer::next_expiration`] does, and keeps `waker` to wake the loop when this becomes
    /// earlier. Replaces the waker of the previous call.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::task::{Wake, Waker};
    /// use std::thread::{self, Thread};
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    ///
    /// struct Unpark(Thread);
    ///
    /// impl Wake for Unpark {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.unpark();
    ///     }
    /// }
    ///
    /// let timer = Timer::builder().build()?;
    /// let listener = timer.listener();
    /// let added = timer.clone();
    /// thread::spawn(move || added.after(Duration::from_millis(5), || println!("5 ms")));
    ///
    /// // The loop; here until one timer has expired.
    /// let waker = Waker::from(Arc::new(Unpark(thread::current())));
    /// while timer.advance_clock(Duration::ZERO) == 0 {
    ///     match listener.next_expiration(&waker) {
    ///         Some(next) => thread::park_timeout(next - timer.now()),
    ///         None => thread::park(), // The waker ends it.
    ///     }
    /// }
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    ///
    /// Call this last in the loop, and wait no longer than it returns. The waker is woken when a
    /// later call adds an earlier timer or moves one to an earlier deadline, also through a keyed
    /// timer, a purgatory, a periodic task or a future. **No wake-up is lost if waking also ends a
    /// wait that begins after it.** An `eventfd`, a `mio::Waker`, a channel and
    /// [`Thread::unpark`](std::thread::Thread::unpark) do that; a condition variable needs a flag.
    ///
    /// The waker is also woken when a [`ManualClock`](crate::ManualClock) of the timer is moved,
    /// after [`is_shutdown`](Timer::is_shutdown) has become true, and after the last clone was
    /// dropped. After these two, this returns `None` and wakes the loop at once. A wake-up may be
    /// needless: the earlier timer may have been cancelled.
    ///
    /// # What the waker may do
    /// It is woken on the thread that adds or moves the earlier timer, before that call returns,
    /// with no lock of the timer held. It should not block or take long, but may call the timer. A
    /// panic in it is contained, reported, and counted in
    /// [`Stats::panicked`](crate::Stats::panicked).
    ///
    /// A thread that holds an [`Entry`](crate::keyed::Entry) wakes it under the entry's lock. The
    /// waker must then neither advance nor shut down the entry's timer.
    pub fn next_expiration(&self, waker: &Waker) -> Option<Instant> {
        let context = &self.engine.context;
        match self.engine.listen(self.number, waker) {
            Awaited::Due => Some(context.time.clock.now()),
            Awaited::Until(next) => next,
            Awaited::Stopped => {
                // Asked after the waker was left: a thread that closes the timer finds the waker,
                // or has closed it by now.
                if self.engine.sources.is_closed() {
                    context.catch_panic(|| waker.wake_by_ref());
                }
                None
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("timer", &self.engine.context.name)
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Timer<T> {
    /// Returns a listener for a loop that drives the timer, in place of a reaper thread. Several
    /// listeners, futures and a reaper may drive the timer at the same time.
    #[must_use]
    pub fn listener(&self) -> Listener {
        let engine = Arc::clone(&self.base.engine);
        let number = engine.context.delay_queue.number_of_listener();
        Listener { engine, number }
    }

    /// Returns a future that drives the timer, in place of a reaper thread. Spawn it on a runtime,
    /// and give it that runtime's sleep: [the
    /// guide](crate::guide::runtimes#a-timer-without-a-thread) does so on tokio and smol. In
    /// virtual time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use std::{future, thread};
    /// use tickwheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let drive = timer.drive(|_| future::pending::<()>());
    /// let driver = thread::spawn(|| pollster::block_on(drive));
    ///
    /// timer.after(Duration::from_secs(3600), || println!("an hour later"))?;
    /// clock.advance(Duration::from_secs(3600)); // Wakes the future.
    /// # while !timer.is_empty() {
    /// #     thread::yield_now();
    /// # }
    /// timer.shutdown(); // Ends it.
    /// assert!(driver.join().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The future calls `sleep_until` with the next expiration, a time of the timer's clock, and
    /// advances the timer when that sleep completes. The sleep and the clock must show the same
    /// time: see [a clock for paused tests](crate::guide::runtimes#tokios-paused-clock). An earlier
    /// timer, or moving a [`ManualClock`](crate::ManualClock), wakes the future. In virtual time
    /// `sleep_until` may therefore return [`std::future::pending`].
    ///
    /// If a sleep ends early by the timer's clock, the future makes others, [as a keyed queue
    /// does](crate::queue::KeyedQueue#its-sleeps). If these end at once, nothing wakes the future
    /// at the next expiration. An earlier timer, a `ManualClock` and the end of the timer still do.
    ///
    /// A poll hands some 512 due tasks to the executor, and then lets the runtime's other tasks
    /// run. Tasks that run in place run on the runtime's thread, and must not block there.
    ///
    /// The future does not keep the timer alive. It completes when the timer is shut down or its
    /// last clone is dropped. If you drop it earlier, nothing expires until something else drives
    /// the timer. Several such futures, a reaper and [`advance_clock`](Self::advance_clock) may
    /// drive a timer at the same time.
    pub fn drive<F: FnMut(Instant) -> S, S: Future>(&self, sleep_until: F) -> Drive<F, S> {
        Drive {
            listener: self.listener(),
            alarm: Alarm::new(sleep_until),
        }
    }
}

pin_project! {
    /// A future that drives a timer; created by [`Timer::drive`].
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Drive<F, S> {
        listener: Listener,
        #[pin]
        alarm: Alarm<F, S>,
    }
}

impl<F: FnMut(Instant) -> S, S: Future> Future for Drive<F, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let drive = self.project();
        let Listener { engine, number } = drive.listener;
        engine.advance_clock(Duration::ZERO, LIMIT);
        let next = match engine.listen(*number, context.waker()) {
            Awaited::Stopped => return Poll::Ready(()),
            Awaited::Due => return again(context),
            Awaited::Until(next) => next,
        };
        match drive.alarm.poll(next, &engine.context.time.clock, context) {
            // The clock has reached it since the timer was advanced.
            Poll::Ready(()) => again(context),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<F, S> fmt::Debug for Drive<F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

/// Has the future polled again, after others that are ready.
fn again(context: &Context<'_>) -> Poll<()> {
    context.waker().wake_by_ref();
    Poll::Pending
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.engine.context.delay_queue.forget_listener(self.number));
    }
}
