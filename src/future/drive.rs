//! The drive: what advances a timer without a thread of its own, a service's loop or a future.

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

/// How much a poll of [`Drive`] expires before it lets the runtime's other tasks run.
const LIMIT: usize = 512;

/// Tells a service's own loop when to advance a timer, and wakes the loop when that becomes
/// earlier; created by [`Timer::listener`].
///
/// It is for a loop that waits in a call of its own, such as `epoll_wait`. A loop with nothing else
/// to wait for calls [`advance_clock`](Timer::advance_clock) with a timeout. A listener does not
/// keep the timer alive.
pub struct Listener {
    engine: Arc<Engine>,
    number: u64,
}

impl Listener {
    /// Returns when to call [`advance_clock`](Timer::advance_clock) next, as
    /// [`Timer::next_expiration`] does, and keeps `waker` to wake the loop whenever this becomes
    /// earlier. It replaces the waker of the call before.
    ///
    /// Call this last in the loop, and wait no longer than it says. Its answer includes every timer
    /// that was added before. The waker is woken when a timer is added later that expires before
    /// that answer, or is moved to such a deadline, also by a keyed timer, a purgatory, a periodic
    /// task or a future. **No wake-up is lost if waking also ends a wait that begins after it.** An
    /// `eventfd`, a `mio::Waker`, a channel and [`Thread::unpark`](std::thread::Thread::unpark) do
    /// that; a condition variable needs a flag.
    ///
    /// The waker is also woken when a [`ManualClock`](crate::ManualClock) of the timer is moved,
    /// and after [`is_shutdown`](Timer::is_shutdown) has become true or the last clone was dropped;
    /// from then on this returns `None` and wakes it at once. It may be woken needlessly: the
    /// earlier timer may be cancelled by then.
    ///
    /// # What the waker may do
    /// It is woken on the thread that adds or moves the earlier timer, before that call returns,
    /// with no lock of the timer held. So it should neither block nor take long, but it may call
    /// the timer. Only a thread that holds an [`Entry`](crate::keyed::Entry) and adds a timer or
    /// moves the clock wakes it under that entry's lock: there the waker must neither advance nor
    /// shut down the entry's timer. A panic in it is contained: it is counted in
    /// [`Stats::panicked`](crate::Stats::panicked) and reported.
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
    /// let (listener, added) = (timer.listener(), timer.clone());
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
    pub fn next_expiration(&self, waker: &Waker) -> Option<Instant> {
        let context = &self.engine.context;
        match self.engine.listen(self.number, waker) {
            Awaited::Due => Some(context.time.clock.now()),
            Awaited::Until(next) => next,
            Awaited::Stopped => {
                // Asked after the waker was left: whoever closes the timer either finds it, or has
                // closed it by now.
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
        f.debug_struct("Listener").field("timer", &self.engine.context.name).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Timer<T> {
    /// Returns a listener for a loop that drives the timer, in place of a reaper thread.
    ///
    /// Several of them, and futures and a reaper, may drive the timer at the same time.
    #[must_use]
    pub fn listener(&self) -> Listener {
        let engine = Arc::clone(&self.base.engine);
        let number = engine.context.delay_queue.number_of_listener();
        Listener { engine, number }
    }

    /// Returns a future that drives the timer, in place of a reaper thread: spawn it on a runtime,
    /// and give it the sleep of that runtime.
    ///
    /// The future calls `sleep_until` with the next expiration, a time of the timer's clock, and
    /// advances the timer when that sleep completes. So the sleep and the clock have to show the
    /// same time; the page [`guide::runtimes`](crate::guide::runtimes#tokios-paused-clock) has the
    /// clock of a runtime that is paused in tests. A thread that adds an earlier timer wakes the
    /// future, which then sleeps anew. If no timer is pending, the future only waits to be woken.
    /// Moving a [`ManualClock`](crate::ManualClock) wakes it as well, so in virtual time
    /// `sleep_until` may return [`std::future::pending`].
    ///
    /// A poll hands some 512 due tasks to the executor, and then lets the runtime's other tasks
    /// run. Tasks that run in place run on the runtime's thread, and must not block there.
    ///
    /// The future does not keep the timer alive. It completes when the timer is shut down or its
    /// last clone is dropped. If you drop the future before that, nothing expires until something
    /// else drives the timer. Several such futures, a reaper and
    /// [`advance_clock`](Self::advance_clock) may drive a timer at the same time.
    ///
    /// With tokio's sleep it is `timer.drive(|next| tokio::time::sleep_until(next.into()))`, with
    /// smol's `timer.drive(smol::Timer::at)`; the page
    /// [`guide::runtimes`](crate::guide::runtimes#a-timer-without-a-thread) shows both. In virtual
    /// time:
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
    pub fn drive<F: FnMut(Instant) -> S, S: Future>(&self, sleep_until: F) -> Drive<F, S> {
        Drive { listener: self.listener(), sleep_until, until: None, sleep: None }
    }
}

pin_project! {
    /// A future that drives a timer; created by [`Timer::drive`].
    #[must_use = "a future does nothing unless it is polled"]
    pub struct Drive<F, S> {
        listener: Listener,
        sleep_until: F,
        until: Option<Instant>,
        #[pin]
        sleep: Option<S>,
    }
}

impl<F: FnMut(Instant) -> S, S: Future> Future for Drive<F, S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut drive = self.project();
        let Listener { engine, number } = drive.listener;
        engine.advance_clock(Duration::ZERO, LIMIT);
        let next = match engine.listen(*number, context.waker()) {
            Awaited::Stopped => return Poll::Ready(()),
            Awaited::Due => return again(context),
            Awaited::Until(next) => next,
        };
        if next != *drive.until {
            *drive.until = next;
            drive.sleep.set(next.map(&mut *drive.sleep_until));
        }
        match drive.sleep.as_mut().as_pin_mut().map(|sleep| sleep.poll(context)) {
            // Too early, by the timer's clock.
            Some(Poll::Ready(_)) => {
                *drive.until = None;
                drive.sleep.set(None);
                again(context)
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

impl<F, S> fmt::Debug for Drive<F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive").field("listener", &self.listener).finish_non_exhaustive()
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
