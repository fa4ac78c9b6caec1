//! hyper's timer: what its servers and clients wait for.

use crate::engine::report;
use crate::engine::shard::Limit;
use crate::timer::Timer;
use crate::timer::sleep::Sleep;
use hyper::rt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// With the feature `hyper`: provides the time limits of hyper's servers and clients. [The
/// guide](crate::guide::runtimes#hyper) has a server, and what happens when the timer is full or
/// shut down.
///
/// Each sleep takes one allocation, because hyper wants a box. Resetting a sleep takes none: see
/// [`Timeout::reschedule`](crate::Timeout::reschedule). `now` is the time of the timer's clock, so
/// a server on a [`ManualClock`](crate::ManualClock) keeps virtual time.
impl<T: Send + 'static> rt::Timer for Timer<T> {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Unfailing {
            sleep: Timer::sleep(self, duration),
            reported: false,
        })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Unfailing {
            sleep: Timer::sleep(self, deadline),
            reported: false,
        })
    }

    fn now(&self) -> Instant {
        Timer::now(self)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Unfailing>() {
            Some(own) => own.get_mut().sleep.reset(new_deadline),
            None => *sleep = rt::Timer::sleep_until(self, new_deadline),
        }
    }
}

/// A sleep that ends at its deadline and in no other way.
#[derive(Debug)]
struct Unfailing {
    sleep: Sleep,
    /// Whether it was reported that nothing wakes it.
    reported: bool,
}

impl Future for Unfailing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.sleep.poll_by(context, Limit::Exceed) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(_)) if self.sleep.is_elapsed() => Poll::Ready(()),
            // It is refused for one reason only: the timer was shut down.
            Poll::Ready(Err(_)) => {
                if !self.reported {
                    self.reported = true;
                    report::event!(
                        warn,
                        timer = self.sleep.timer_name(),
                        "hyper sleeps on a timer that was shut down: nobody wakes it"
                    );
                }
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl rt::Sleep for Unfailing {}
