//! Models of handles: cancelling, moving deadlines, and the limit.

use crate::harness::{all, both, explore};
use crate::world::World;
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
        let (one, other, _) = all(
            || world.cancel(0, &timeout),
            || world.cancel(0, &timeout),
            || world.turns([2]),
        );
        let answers = [one, other];
        let won = answers.iter().any(Cancel::is_cancelled);
        let lost = if won {
            Cancel::AlreadyCancelled
        } else {
            Cancel::Expired
        };
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
/// other can have kept out. They add to two shards, so no shard's lock orders them.
///
/// Fails when the limit is looked at and the count raised in two steps, and when the count goes
/// above the limit for a moment: raised first, and then taken back.
#[test]
fn limit_against_two_adders() {
    explore("limit_against_two_adders", 2, || {
        let world = World::new(|builder| builder.shards(4).max_pending(1).build());
        let timeout = world.add(0, 2);
        let accepted = both(
            || world.try_add(1, 2).is_some(),
            || {
                assert!(world.cancel(0, &timeout).is_cancelled());
                world.try_add(2, 2).is_some()
            },
        );
        assert!(accepted.0 != accepted.1, "one fits: {accepted:?}");
        assert!(world.try_add(3, 2).is_none(), "the limit is reached");
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
        let again = world.clone();
        let added = Arc::new(std::sync::Mutex::new(None));
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
