//! Models of the rounds of leases: what goes on beside them, and how they end.

use crate::futures::{assert_empty, pass, with_reaper};
use crate::harness::{all, both, explore};
use crate::leases::{Dog, MICRO, Seen, Store};
use shuttle::sync::Mutex;
use std::sync::Arc;
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{Task, TimerEntry};

/// The timer is shut down as a round begins: every lease is lost, once.
///
/// Fails when a round that can't plan the next one says nothing.
#[test]
fn shutdown_against_round() {
    explore("shutdown_against_round", 2, || {
        let dog = Dog::new(|builder| builder);
        let leases = [dog.hold(1), dog.hold(2)];
        let (rounds, _) = both(|| dog.timer.shutdown(), || dog.pass(4));
        let returned = rounds.into_iter().map(TimerEntry::into_task).map(Task::run).count();
        let mut lost = dog.lost();
        lost.sort_unstable();
        assert_eq!(lost, [1, 2]);
        assert!(leases.into_iter().all(|lease| !lease.release()));
        dog.settle();
        format!("{returned}")
    });
}

/// The result of a shutdown is dropped while a renewal is answered and another lease is taken:
/// every lease is lost, once, or was refused.
///
/// Fails when a round that is dropped says nothing.
#[test]
fn dropped_shutdown_against_answer() {
    explore("dropped_shutdown_against_answer", 2, || {
        let (dog, lease, renewal) = Dog::in_flight();
        let other = dog.hold(2);
        let (_, _, late) =
            all(|| drop(dog.timer.shutdown()), || renewal.renewed(), || dog.leases.hold(3).ok());
        let mut lost = dog.lost();
        lost.sort_unstable();
        assert_eq!(lost, if late.is_some() { vec![1, 2, 3] } else { vec![1, 2] });
        assert!(!lease.release() && !other.release() && late.is_none_or(|late| !late.release()));
        dog.settle();
        format!("{lost:?}")
    });
}

/// A round looks at two leases at a time: others get their turn in between, so that the third one
/// may be released when the first is in flight.
///
/// Fails when a round keeps the lock: then there are three different ends.
#[test]
fn release_between_batches() {
    explore("release_between_batches", 4, || {
        let dog = Dog::new(|builder| builder);
        let [first, second, third] = [1, 2, 3].map(|key| dog.hold(key));
        both(|| dog.pass(4), || assert!(first.release() && third.release()));
        let sent = dog.sent();
        let mut keys: Vec<u32> = sent.iter().map(|renewal| *renewal.key()).collect();
        keys.sort_unstable();
        sent.into_iter().for_each(Renewal::renewed);
        assert!(dog.lost().is_empty() && dog.leases.len() == 1);
        assert!(dog.renewals(2, 5) >= 1 && second.release());
        dog.settle();
        format!("{keys:?}")
    });
}

/// The last clone is dropped as a round begins: nothing is left, and nothing lost.
///
/// Fails when the drop leaves the round in the timer.
#[test]
fn drop_of_leases_against_round() {
    explore("drop_of_leases_against_round", 2, || {
        let Dog { timer, clock, leases, seen } = Dog::new(|builder| builder);
        let lease = leases.hold(1).expect("there is room");
        both(|| drop(leases), || pass(&timer, &clock, 4_000));
        assert_empty(&timer);
        let sent = std::mem::take(&mut *seen.sent.lock().unwrap());
        let sent = sent.into_iter().map(Renewal::renewed).count();
        assert!(!lease.release() && timer.is_empty() && seen.lost.lock().unwrap().is_empty());
        format!("{sent}")
    });
}

/// Others drop the timer while a round begins and a lease is taken: the leases keep it, and are
/// held as before.
///
/// Fails when the leases hold the timer weakly.
#[test]
fn drop_of_the_timer_against_round() {
    explore("drop_of_the_timer_against_round", 1, || {
        let (timer, clock) = with_reaper();
        let seen = Arc::new(Seen::default());
        let leases = Leases::new(&timer, LeaseTerms::new(12 * MICRO), Store(Arc::clone(&seen)));
        let lease = leases.hold(1).expect("there is room");
        all(|| drop(timer), || clock.advance(4 * MICRO), || drop(leases.hold(2)));
        assert!(lease.release());
        drop(leases);
        // A renewal in flight knows the leases.
        seen.sent.lock().unwrap().drain(..).for_each(Renewal::failed);
        String::new()
    });
}

/// A store that takes a lock of its service, as those do that use a lease.
struct Locks(Arc<Mutex<()>>);

impl LeaseStore<u32> for Locks {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        let _service = self.0.lock().unwrap();
        batch.into_iter().for_each(Renewal::renewed);
    }

    fn lost(&self, _: u32) {
        unreachable!("nobody shuts the timer down, and none runs out");
    }
}

/// The timer ends with the leases, during a round and while a thread asks for its lease under a
/// lock that the store takes as well.
///
/// Fails when a lease keeps the timer alive while it reads the clock: then that thread may have to
/// end the timer, and waits for the reaper, which waits for the lock.
#[test]
fn drop_of_leases_against_is_held() {
    explore("drop_of_leases_against_is_held", 2, || {
        let (timer, clock) = with_reaper();
        let service = Arc::new(Mutex::new(()));
        let leases = Leases::new(&timer, LeaseTerms::new(12 * MICRO), Locks(Arc::clone(&service)));
        drop(timer);
        let lease = leases.hold(1).expect("there is room");
        let (_, _, held) = all(
            || clock.advance(4 * MICRO),
            || drop(leases),
            || {
                let _service = service.lock().unwrap();
                lease.is_held()
            },
        );
        assert!(!lease.release());
        format!("{held}")
    });
}
