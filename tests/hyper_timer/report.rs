//! What is reported of a sleep that nobody wakes.

use crate::{Fixture, MS};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_sleep_that_nobody_wakes_is_reported_once() {
    let (fixture, warnings) = (Fixture::with_room_for(0), Arc::default());
    let subscriber = Warnings(Arc::clone(&warnings));
    tracing::subscriber::with_default(subscriber, || {
        let sleeps = || [fixture.hyper().sleep(10 * MS), fixture.hyper().sleep(10 * MS)];
        let poll_each = |mut sleeps: [_; 2]| {
            for _ in 0..5 {
                assert!(sleeps.iter_mut().all(|sleep| fixture.poll(sleep).is_pending()));
            }
        };
        poll_each(sleeps());
        assert_eq!(warnings.load(Ordering::Relaxed), 0, "a full timer wakes them");
        fixture.timer.shutdown();
        poll_each(sleeps());
        assert_eq!(warnings.load(Ordering::Relaxed), 2);
    });
}
