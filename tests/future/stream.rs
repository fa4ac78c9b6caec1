//! An interval as a stream.

use crate::{Fixture, MS};
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tickwheel::future::{Interval, SleepError};
use tickwheel::periodic::MissedTick;

fn next(interval: &mut Interval) -> Poll<Option<Result<Instant, SleepError>>> {
    Pin::new(interval).poll_next(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn its_items_are_the_ticks() {
    let fixture = Fixture::new();
    let mut interval = fixture
        .timer
        .interval(2 * MS)
        .missed_tick(MissedTick::Burst);
    let start = fixture.clock.now();
    assert_eq!(next(&mut interval), Poll::Ready(Some(Ok(start))));
    assert_eq!(next(&mut interval), Poll::Pending);
    fixture.advance(5 * MS);
    assert_eq!(next(&mut interval), Poll::Ready(Some(Ok(start + 2 * MS))));
    assert_eq!(next(&mut interval), Poll::Ready(Some(Ok(start + 4 * MS))));
    assert_eq!(next(&mut interval), Poll::Pending);
}

#[test]
fn it_ends_with_the_first_error() {
    let fixture = Fixture::new();
    let mut interval = fixture.timer.interval(MS);
    assert!(next(&mut interval).is_ready());
    assert_eq!(next(&mut interval), Poll::Pending);
    fixture.timer.shutdown();
    assert_eq!(
        next(&mut interval),
        Poll::Ready(Some(Err(SleepError::Shutdown)))
    );
    assert_eq!(next(&mut interval), Poll::Ready(None));
    assert_eq!(next(&mut interval), Poll::Ready(None));
}
