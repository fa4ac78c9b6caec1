//! hyper's timer: what its servers and clients wait for.

use crate::future::Sleep;
use crate::timer::{Timer, report};
use hyper::rt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// With the feature `hyper`: the time limits of hyper's servers and clients on this timer.
///
/// ```
/// use hyper::body::Incoming;
/// use hyper::server::conn::http1;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// use hyper_util::rt::TokioIo;
/// use std::{convert::Infallible, time::Duration};
/// use tickwheel::Timer;
/// use tokio::net::TcpStream;
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
///     Ok(Response::new("hello".to_owned()))
/// }
///
/// /// Serves one connection; it is closed if a header takes longer than five seconds.
/// async fn serve(stream: TcpStream, timer: &Timer) -> hyper::Result<()> {
///     http1::Builder::new()
///         .timer(timer.clone())
///         .header_read_timeout(Duration::from_secs(5))
///         .serve_connection(TokioIo::new(stream), service_fn(hello))
///         .await
/// }
/// ```
///
/// hyper's futures cannot fail: they end when their time is up, and hyper closes a connection then.
/// So a sleep that the timer cannot take never ends early, and is not forgotten either:
/// - **`max_pending` does not refuse hyper.** Its sleeps count as pending, above the limit if need
///   be. Limit the connections; each takes far more than its sleep.
/// - **Shut the timer down after the servers.** Nobody is woken by a timer that was shut down. A
///   sleep on it ends when hyper looks at it after its deadline, and not before: a connection on
///   which nothing happens stays open. That is reported, once for each sleep.
///
/// An executor that refuses tasks needs `on_refused(Task::run)`: hyper's tasks are wakers, and one
/// that is dropped wakes nobody.
///
/// Each sleep takes one allocation, because hyper wants it in a box. To reset it takes none, and
/// leaves it where it is in the timer: see [`Timeout::reschedule`](crate::Timeout::reschedule).
/// `now` is the time of the timer's clock, so a server on a
/// [`ManualClock`](crate::ManualClock) keeps virtual time.
impl<T: Send + 'static> rt::Timer for Timer<T> {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Unfailing { sleep: Timer::sleep(self, duration), reported: false })
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Unfailing { sleep: Timer::sleep_until(self, deadline), reported: false })
    }

    fn now(&self) -> Instant {
        Timer::now(self)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Unfailing>() {
            Some(own) => own.get_mut().sleep.reset_at(new_deadline),
            None => *sleep = rt::Timer::sleep_until(self, new_deadline),
        }
    }
}

/// A sleep that ends at its deadline and in no other way.
#[derive(Debug)]
struct Unfailing {
    sleep: Sleep,
    /// Whether it was reported that nobody wakes it.
    reported: bool,
}

impl Future for Unfailing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.sleep.poll_by(context, Timer::add_beyond_limit) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            // `add_beyond_limit` fails for one reason only: the timer was shut down.
            Poll::Ready(Err(_)) => {
                if !self.reported {
                    self.reported = true;
                    report::warn!("hyper sleeps on a timer that was shut down: nobody wakes it");
                }
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl rt::Sleep for Unfailing {}
