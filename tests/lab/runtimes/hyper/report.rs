//! What is reported of a sleep that nobody wakes.

use crate::warnings::Warnings;
use crate::{Fixture, MS};

#[test]
fn a_sleep_that_nobody_wakes_is_reported_once() {
    let (fixture, warnings) = (Fixture::with_room_for(0), Warnings::default());
    tracing::subscriber::with_default(warnings.listener(), || {
        let sleeps = || [fixture.hyper().sleep(10 * MS), fixture.hyper().sleep(10 * MS)];
        let poll_each = |mut sleeps: [_; 2]| {
            for _ in 0..5 {
                assert!(sleeps.iter_mut().all(|sleep| fixture.poll(sleep).is_pending()));
            }
        };
        poll_each(sleeps());
        assert_eq!(warnings.take().len(), 0, "a full timer wakes them");
        fixture.timer.shutdown();
        poll_each(sleeps());
        assert_eq!(warnings.take().len(), 2);
    });
}
