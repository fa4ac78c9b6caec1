//! The drive: a future that advances a timer without a thread.

use crate::engine::delay_queue::Told;
use crate::engine::driver::Driver;
use crate::timer::Timer;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A future's place among those that wait for a timer. It does not keep the timer alive.
struct Drive {
    driver: Arc<Driver>,
    number: u64,
}

impl<T: Send + 'static> Timer<T> {
    /// Returns a future that drives the timer, in place of a reaper thread: spawn it on a runtime,
    /// and give it the sleep of that runtime.
    ///
    /// The future calls `sleep_until` with the next expiration, a time of the timer's clock, and
    /// advances the timer when that sleep completes. A thread that adds an earlier timer wakes the
    /// future, which then sleeps anew; the timer needs no hook for that. If no timer is pending,
    /// the future only waits to be woken. Moving a [`ManualClock`](crate::ManualClock) wakes it as
    /// well, so in virtual time `sleep_until` may return [`std::future::pending`].
    ///
    /// Each poll hands everything that is due to the executor. Tasks that run in place run on the
    /// runtime's thread, and must not block there.
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
    pub fn drive<F, S>(&self, mut sleep_until: F) -> impl Future<Output = ()> + use<T, F, S>
    where
        F: FnMut(Instant) -> S,
        S: Future,
    {
        let driver = Arc::clone(self.driver());
        let number = driver.context.delay_queue.number_of_future();
        let drive = Drive { driver, number };
        async move {
            let (mut until, mut sleep) = (None, pin!(None));
            poll_fn(|context| {
                drive.driver.advance(Duration::ZERO);
                let next = match drive.driver.tell(drive.number, context.waker()) {
                    Told::Stopped => return Poll::Ready(()),
                    Told::Due => return again(context),
                    Told::Until(next) => next,
                };
                if next != until {
                    until = next;
                    sleep.set(next.map(&mut sleep_until));
                }
                match sleep.as_mut().as_pin_mut().map(|sleep| sleep.poll(context)) {
                    // Too early, by the timer's clock.
                    Some(Poll::Ready(_)) => {
                        until = None;
                        sleep.set(None);
                        again(context)
                    }
                    Some(Poll::Pending) | None => Poll::Pending,
                }
            })
            .await;
        }
    }
}

/// Has the future polled again, after others that are ready.
fn again(context: &Context<'_>) -> Poll<()> {
    context.waker().wake_by_ref();
    Poll::Pending
}

impl Drop for Drive {
    fn drop(&mut self) {
        let context = &self.driver.context;
        let waker = context.delay_queue.forget_future(self.number);
        context.catch_panic(|| drop(waker));
    }
}
