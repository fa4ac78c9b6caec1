//! Models of handles: cancelling, moving deadlines, and the limit.

use crate::harness::{all, both, explore};
use crate::world::World;
use shuttle::thread;
use std::sync::Arc;
use tickwheel::Cancel;

/// Of the expiry and two calls one wins, and each call tells who.
///
/// Fails when a cancel that wins says so after it has released the cell's lock.
#[test]
fn cancel_against_cancel_and_flush() {
    explore("cancel_against_cancel_and_flush", 2, || {
        let world = World::by_hand();
        let timeout = world.add_at(0, 2);
        let (one, other, _) =
            all(|| world.cancel(0, &timeout), || world.cancel(0, &timeout), || world.turns([2]));
        let answers = [one, other];
        let won = answers.iter().any(Cancel::is_cancelled);
        let lost = if won { Cancel::AlreadyCancelled } else { Cancel::Expired };
        assert!(answers.contains(&lost), "{answers:?}");
        assert_eq!((timeout.is_cancelled(), timeout.is_expired()), (won, !won));
        world.finish()
    });
}

/// Entries leave one wheel for another while they are cancelled.
///
/// Fails when the slab does not compare generations: a handle then cancels the timer that has taken
/// its place.
#[test]
fn cancel_against_cascade() {
    explore("cancel_against_cascade", 6, || {
        let world = World::by_hand();
        let timeouts = [world.add_at(0, 6), world.add_at(1, 7), world.add_at(2, 6)];
        all(
            || {
                let _ = world.cancel(1, &timeouts[1]);
                world.add_at(3, 6); // In the place of one that was cancelled or has fired.
            },
            || world.cancel(2, &timeouts[2]),
            || world.turns([4, 2, 1]),
        );
        world.finish()
    });
}

/// A timer that was moved to an earlier deadline fires then, if the call said that it was pending.
///
/// Fails when the bucket that a timer is moved to is offered after the cell's lock was released.
#[test]
fn reschedule_against_flush() {
    explore("reschedule_against_flush", 4, || {
        let world = World::by_hand();
        let timeouts = [world.add_at(0, 6), world.add_at(1, 3)];
        all(
            || world.reschedule(0, &timeouts[0], 1, false),
            || world.reschedule(1, &timeouts[1], 0, false),
            || world.turns([2, 2]),
        );
        world.finish()
    });
}

/// A timer that was touched fires at its later deadline and not before, if it was pending.
///
/// Fails when the lock is released between seeing that a timer is pending and extending it.
#[test]
fn touch_against_flush() {
    explore("touch_against_flush", 4, || {
        let world = World::by_hand();
        let timeouts = [world.add_at(0, 2), world.add_at(1, 5)];
        all(
            || world.reschedule(0, &timeouts[0], 4, true),
            || {
                world.reschedule(1, &timeouts[1], 7, true);
                world.reschedule(1, &timeouts[1], 1, false)
            },
            || world.turns([3, 3]),
        );
        world.finish()
    });
}

/// One fits, so one of the two is accepted: the first to come after the cancel, which only the
/// other can have kept out.
///
/// Fails when the count goes above the limit for a moment: raised first, and then taken back.
#[test]
fn limit_against_cancel() {
    explore("limit_against_cancel", 2, || {
        let world = World::new(|builder| builder.max_pending(1).build());
        let timeout = world.add(0, 2);
        let (own, other, _) = all(
            || {
                assert!(world.cancel(0, &timeout).is_cancelled());
                world.try_add(1, 2).is_some()
            },
            || world.try_add(2, 2).is_some(),
            || assert!(world.timer.len() <= 1, "above the limit"),
        );
        let accepted = [own, other];
        assert_eq!(accepted.iter().filter(|accepted| **accepted).count(), 1, "{accepted:?}");
        world.finish()
    });
}

/// Two adders and a canceller at a limit of two: all that a call frees is free when it returns,
/// and nothing is accepted beyond the limit.
///
/// Fails when the limit is looked at and the count raised in two steps.
#[test]
fn limit_against_two_adders() {
    explore("limit_against_two_adders", 3, || {
        let world = World::new(|builder| builder.max_pending(2).build());
        let timeout = world.add(0, 2);
        let mut accepted = [false; 2];
        let [one, other] = &mut accepted;
        thread::scope(|scope| {
            scope.spawn(|| *one = world.try_add(1, 2).is_some());
            scope.spawn(|| *other = world.try_add(2, 2).is_some());
            scope.spawn(|| assert!(world.cancel(0, &timeout).is_cancelled()));
            scope.spawn(|| assert!(world.timer.len() <= 2, "above the limit"));
        });
        let pending = accepted.iter().filter(|accepted| **accepted).count();
        assert!(pending > 0, "one of them fitted");
        assert_eq!(world.timer.len(), pending);
        for id in 3..5 - pending as u32 {
            assert!(world.try_add(id, 2).is_some(), "{id} fits");
        }
        assert!(world.try_add(9, 2).is_none(), "the limit is reached");
        world.finish()
    });
}

/// A timer does not count any more when its task runs, nor when the call that fired it returns.
///
/// Fails when the permits of a flush are released after its tasks were handed over.
#[test]
fn limit_against_flush() {
    explore("limit_against_flush", 2, || {
        let world = World::new(|builder| builder.max_pending(1).build());
        let (again, added) = (world.clone(), Arc::new(std::sync::Mutex::new(None)));
        let answer = Arc::clone(&added);
        world.add_with(0, 2, move || {
            let accepted = again.try_add(1, 0).is_some();
            *answer.lock().unwrap() = Some(accepted);
        });
        let (other, _) = both(|| world.try_add(2, 3).is_some(), || world.turns([2]));
        let own = added.lock().unwrap().expect("it has fired");
        assert!(own != other, "one of the two fits");
        world.finish()
    });
}

/// A thread that finds a timer expired also finds its permit free.
///
/// Fails when a flush gives permits back after it has released the cell's lock.
#[test]
fn permit_of_an_expired_timer() {
    explore("permit_of_an_expired_timer", 2, || {
        let world = World::new(|builder| builder.max_pending(1).build());
        let timeout = world.add_at(0, 2);
        both(
            || world.turns([2]),
            || {
                if timeout.is_expired() {
                    assert!(world.try_add(1, 5).is_some(), "full without a timer");
                }
            },
        );
        world.finish()
    });
}
