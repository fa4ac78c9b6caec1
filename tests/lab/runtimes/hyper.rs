//! hyper on a timer, in virtual time: the adapter by hand, and hyper's own server over a pipe in
//! memory, polled by hand.

#[path = "../../common/wakes.rs"]
mod wakes;
#[path = "../../common/warnings.rs"]
mod warnings;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, rt};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tickwheel::{ManualClock, Timer, TimerEntry};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use wakes::Wakes;
use warnings::Warnings;

const NS: Duration = Duration::from_nanos(1);
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

struct Fixture {
    timer: Timer,
    clock: ManualClock,
    wakes: Arc<Wakes>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_room_for(usize::MAX)
    }

    fn with_room_for(max_pending: usize) -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder()
            .clock(clock.clone())
            .max_pending(max_pending);
        Fixture {
            timer: builder.build().unwrap(),
            clock,
            wakes: Arc::default(),
        }
    }

    /// Returns the timer as hyper sees it.
    fn hyper(&self) -> &dyn rt::Timer {
        &self.timer
    }

    fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }

    /// Returns how many wake-ups come when the clock is moved by `step`.
    fn advance(&self, step: Duration) -> usize {
        self.clock.advance(step);
        self.timer.advance_clock(Duration::ZERO);
        self.timer.assert_invariants();
        self.wakes()
    }

    /// Returns how many wake-ups have come since it was asked last.
    fn wakes(&self) -> usize {
        self.wakes.take()
    }
}

#[test]
fn a_sleep_ends_at_its_deadline_and_wakes_once() {
    let fixture = Fixture::new();
    let deadline = fixture.clock.now() + 10 * MS;
    let sleeps = [
        fixture.hyper().sleep(10 * MS),
        fixture.hyper().sleep_until(deadline),
    ];
    for (mut sleep, step) in sleeps.into_iter().zip([10 * MS, Duration::ZERO]) {
        if !step.is_zero() {
            assert!(fixture.poll(&mut sleep).is_pending() && fixture.poll(&mut sleep).is_pending());
            assert_eq!(fixture.timer.len(), 1, "polling again adds nothing");
            assert_eq!(fixture.advance(step - NS), 0);
            assert!(
                fixture.poll(&mut sleep).is_pending(),
                "a nanosecond is left"
            );
            assert_eq!(fixture.advance(NS), 1);
        }
        assert!(fixture.poll(&mut sleep).is_ready());
        assert!(fixture.timer.is_empty());
    }
}

#[test]
fn now_is_the_time_of_the_timers_clock() {
    let fixture = Fixture::new();
    let start = fixture.hyper().now();
    fixture.advance(HOUR);
    assert_eq!(fixture.hyper().now(), start + HOUR);
    assert_eq!(fixture.hyper().now(), fixture.timer.now());
}

#[test]
fn a_reset_moves_the_sleep_where_it_is() {
    let fixture = Fixture::new();
    let start = fixture.clock.now();
    let mut sleep = fixture.hyper().sleep(10 * MS);
    assert!(fixture.poll(&mut sleep).is_pending());
    let place = std::ptr::from_ref(&*sleep).cast::<u8>();
    fixture.hyper().reset(&mut sleep, start + 30 * MS);
    assert_eq!(fixture.advance(20 * MS), 0, "its first deadline is over");
    assert!(fixture.poll(&mut sleep).is_pending());
    fixture.hyper().reset(&mut sleep, start + 25 * MS);
    assert_eq!(
        (fixture.timer.len(), fixture.timer.stats().added),
        (1, 1),
        "nothing was added"
    );
    assert_eq!(
        (fixture.advance(5 * MS - NS), fixture.advance(NS)),
        (0, 1),
        "without a poll"
    );
    assert!(fixture.poll(&mut sleep).is_ready());
    // One that has ended begins again.
    fixture.hyper().reset(&mut sleep, start + 26 * MS);
    assert!(fixture.poll(&mut sleep).is_pending());
    assert_eq!(fixture.advance(MS), 1);
    assert!(fixture.poll(&mut sleep).is_ready());
    assert_eq!(
        std::ptr::from_ref(&*sleep).cast::<u8>(),
        place,
        "the box is the same"
    );
}

/// A sleep of some other timer.
struct Never;

impl Future for Never {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl rt::Sleep for Never {}

#[test]
fn a_reset_replaces_a_sleep_of_another_timer() {
    let fixture = Fixture::new();
    let mut sleep: Pin<Box<dyn rt::Sleep>> = Box::pin(Never);
    fixture.hyper().reset(&mut sleep, fixture.clock.now() + MS);
    assert!(fixture.poll(&mut sleep).is_pending());
    assert_eq!(fixture.advance(MS), 1);
    assert!(fixture.poll(&mut sleep).is_ready());
}

#[test]
fn a_full_timer_takes_hypers_sleeps_and_nothing_else() {
    let fixture = Fixture::with_room_for(2);
    let add = || fixture.timer.add(TimerEntry::after(HOUR, || ()));
    let first = add().unwrap();
    let mut sleeps: Vec<_> = (0..10).map(|_| fixture.hyper().sleep(10 * MS)).collect();
    for sleep in &mut sleeps {
        assert!(fixture.poll(sleep).is_pending());
    }
    assert_eq!(fixture.timer.len(), 11, "nine more than there is room for");
    assert!(first.cancel().is_cancelled());
    assert!(add().is_err(), "there is still no room for others");
    assert_eq!(
        (fixture.advance(10 * MS - NS), fixture.advance(NS)),
        (0, 10)
    );
    assert!(
        sleeps
            .iter_mut()
            .all(|sleep| fixture.poll(sleep).is_ready())
    );
    let held = [add(), add()];
    assert!(
        held.iter().all(Result::is_ok),
        "each sleep gave back what it had taken"
    );
    assert!(add().is_err(), "and no more than that");
}

#[test]
fn a_sleep_on_a_timer_that_was_shut_down_is_not_early_and_ends_when_it_is_looked_at() {
    let fixture = Fixture::new();
    let mut slept = fixture.hyper().sleep(10 * MS);
    assert!(fixture.poll(&mut slept).is_pending());
    assert!(
        fixture.timer.shutdown().is_empty(),
        "a sleep is no task of the timer's"
    );
    assert_eq!(fixture.wakes(), 1);
    let mut fresh = fixture.hyper().sleep(10 * MS);
    for sleep in [&mut slept, &mut fresh] {
        assert!(fixture.poll(sleep).is_pending() && fixture.poll(sleep).is_pending());
    }
    assert_eq!(fixture.advance(10 * MS - NS), 0);
    assert!(fixture.poll(&mut slept).is_pending() && fixture.poll(&mut fresh).is_pending());
    assert_eq!(fixture.advance(NS), 0, "nobody is left to wake it");
    assert!(fixture.poll(&mut slept).is_ready() && fixture.poll(&mut fresh).is_ready());
}

#[test]
fn a_sleep_that_nobody_wakes_is_reported_once() {
    let fixture = Fixture::with_room_for(0);
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.listener(), || {
        let sleeps = || {
            [
                fixture.hyper().sleep(10 * MS),
                fixture.hyper().sleep(10 * MS),
            ]
        };
        let poll_each = |mut sleeps: [_; 2]| {
            for _ in 0..5 {
                assert!(
                    sleeps
                        .iter_mut()
                        .all(|sleep| fixture.poll(sleep).is_pending())
                );
            }
        };
        poll_each(sleeps());
        assert_eq!(warnings.take().len(), 0, "a full timer wakes them");
        fixture.timer.shutdown();
        poll_each(sleeps());
        assert_eq!(warnings.take().len(), 2);
    });
}

const LIMIT: Duration = MS.saturating_mul(10);

async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

type Connection = Pin<Box<dyn Future<Output = hyper::Result<()>>>>;

/// Returns a connection whose headers may take `LIMIT`, and the client's end of it.
fn connection(timer: &Timer) -> (Connection, DuplexStream) {
    let (client, server) = duplex(4096);
    let connection = http1::Builder::new()
        .timer(timer.clone())
        .header_read_timeout(LIMIT)
        .serve_connection(TokioIo::new(server), service_fn(hello));
    (Box::pin(connection), client)
}

/// Sends `text`, for which there is room.
fn send(client: &mut DuplexStream, text: &str) {
    let context = &mut Context::from_waker(Waker::noop());
    let sent = pin!(client).poll_write(context, text.as_bytes());
    assert!(
        matches!(sent, Poll::Ready(Ok(count)) if count == text.len()),
        "{sent:?}"
    );
}

/// Returns what has come from the server; `None` if it has closed the connection.
fn received(client: &mut DuplexStream) -> Option<String> {
    let mut bytes = [0; 4096];
    let context = &mut Context::from_waker(Waker::noop());
    let mut bytes = ReadBuf::new(&mut bytes);
    let ended = pin!(client).poll_read(context, &mut bytes).is_ready();
    let text = String::from_utf8_lossy(bytes.filled()).into_owned();
    (!ended || !text.is_empty()).then_some(text)
}

fn timed_out(result: Poll<hyper::Result<()>>) -> bool {
    matches!(result, Poll::Ready(Err(error)) if error.is_timeout())
}

const HALF: &str = "GET / HTTP/1.1\r\nHost: a\r\n";

#[test]
fn half_a_header_is_given_up_at_the_time_limit_and_not_a_nanosecond_before() {
    let fixture = Fixture::new();
    let (mut connection, mut client) = connection(&fixture.timer);
    send(&mut client, HALF);
    assert!(fixture.poll(&mut connection).is_pending());
    assert_eq!(fixture.timer.len(), 1, "the header's time limit");
    fixture.advance(LIMIT / 2);
    send(&mut client, "Slow: ");
    assert!(fixture.wakes() > 0 && fixture.poll(&mut connection).is_pending());
    assert_eq!(fixture.advance(LIMIT - LIMIT / 2 - NS), 0);
    assert!(fixture.poll(&mut connection).is_pending());
    assert_eq!(received(&mut client).as_deref(), Some(""), "it is open");
    assert_eq!(fixture.advance(NS), 1);
    assert!(timed_out(fixture.poll(&mut connection)));
    drop(connection);
    assert_eq!(received(&mut client), None, "it is closed");
    assert!(fixture.timer.is_empty(), "nothing is left");
}

#[test]
fn a_client_that_is_in_time_is_served_again_and_again() {
    let fixture = Fixture::new();
    let (mut connection, mut client) = connection(&fixture.timer);
    assert!(fixture.poll(&mut connection).is_pending());
    for request in 1..=5 {
        send(&mut client, HALF);
        assert!(fixture.poll(&mut connection).is_pending());
        fixture.advance(LIMIT - NS);
        send(&mut client, "\r\n");
        assert!(fixture.poll(&mut connection).is_pending());
        let answer = received(&mut client).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
            "{answer}"
        );
        assert_eq!(
            fixture.timer.len(),
            1,
            "request {request}: the next header's limit has begun"
        );
        fixture.wakes();
    }
    assert_eq!(fixture.advance(LIMIT + MS), 1, "less than a tick late");
    assert!(
        timed_out(fixture.poll(&mut connection)),
        "nothing came any more"
    );
}
