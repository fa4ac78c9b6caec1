//! Models of alarms that go off before their keys' deadlines, which were extended.

use crate::book::End;
use crate::harness::{all, both, explore};
use crate::stand::{Stand, returned, run};
use std::time::Duration;

/// The alarm of a key that was touched in time is on its way, when the key is moved again.
///
/// Fails when an alarm that went off too early is not set again, or not to the deadline that it
/// finds.
#[test]
fn move_against_an_early_alarm() {
    explore("move_against_an_early_alarm", 1, || {
        let (stand, queue) = Stand::queued();
        stand.schedule(1, 0, 2);
        assert!(stand.keyed.touch(&1, Duration::from_nanos(6)));
        stand.pass(2);
        all(
            || run(&queue),
            || assert!(stand.keyed.reschedule(&1, Duration::from_nanos(2))),
            || assert!(stand.keyed.touch(&1, Duration::from_nanos(1))),
        );
        assert!(!stand.has_fired(0));
        stand.assert_sound();
        stand.pass(1);
        run(&queue);
        assert!(!stand.has_fired(0), "it has time until 4");
        stand.pass(1);
        run(&queue);
        assert!(stand.has_fired(0));
        stand.settle()
    });
}

/// The former deadline of a key that was touched comes, on a timer that has room for one.
///
/// Fails when the key's permit is given back while it waits for its later deadline.
#[test]
fn early_alarm_on_a_full_timer() {
    explore("early_alarm_on_a_full_timer", 1, || {
        let stand = Stand::new(|builder| builder.max_pending(1));
        stand.schedule(1, 0, 2);
        assert!(stand.keyed.touch(&1, Duration::from_nanos(4)));
        both(
            || stand.pass(2),
            || match stand.keyed.schedule(2, stand.entry(1, 4, || ())) {
                Ok(replaced) => panic!("there is no room, but it replaced {}", returned(replaced)),
                Err(error) => error.into_entry().into_task().end(End::Refused),
            },
        );
        assert!(!stand.has_fired(0));
        stand.finish(4)
    });
}
