//! Models of owners of wheels that come and go while turns are taken.

use crate::futures::{NANO, by_hand, with_reaper};
use crate::harness::{both, explore};
use crate::limbo::KeyHasher;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Timer, TimerEntry};

type Keyed = KeyedTimer<u64, (), KeyHasher>;

/// Returns keyed timers that count how many keys have expired.
fn keyed(timer: &Timer, expired: &Arc<AtomicUsize>) -> Keyed {
    let expired = Arc::clone(expired);
    let count = move |_, ()| _ = expired.fetch_add(1, Ordering::SeqCst);
    Keyed::with_hasher(timer, KeyHasher::default(), count)
}

fn schedule(keyed: &Keyed, key: u64, nanos: u64) {
    let entry = TimerEntry::after(Duration::from_nanos(nanos), ());
    assert!(keyed.schedule(key, entry).is_ok_and(|former| former.is_none()));
}

/// The last clone is dropped while a turn expires its keys, and others take its number.
///
/// Fails when an owner's buckets stay behind in the delay queue.
#[test]
fn end_of_keyed_timers_against_turn() {
    explore("end_of_keyed_timers_against_turn", 2, || {
        let (timer, clock) = by_hand();
        let (expired, own) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let first = keyed(&timer, &expired);
        schedule(&first, 0, 1);
        schedule(&first, 1, 1);
        assert!(first.touch(&1, Duration::from_nanos(7)));
        let counted = Arc::clone(&own);
        let count = move || _ = counted.fetch_add(1, Ordering::SeqCst);
        assert!(timer.add(TimerEntry::after(NANO, count)).is_ok());
        clock.advance(NANO);
        both(
            || timer.advance_clock(Duration::ZERO),
            || {
                drop(first);
                let next = keyed(&timer, &expired);
                schedule(&next, 0, 9);
                timer.advance_clock(Duration::ZERO);
                assert!(next.contains(&0), "its time has not come");
            },
        );
        assert_eq!(own.load(Ordering::SeqCst), 1, "the turn saw to all others");
        timer.assert_invariants();
        assert!(timer.is_empty() && timer.next_expiration().is_none(), "nothing is left behind");
        format!("{}", expired.load(Ordering::SeqCst))
    });
}

/// Keyed timers are made, and a key is scheduled there, while a thread waits for something earlier.
///
/// Fails when what a new owner arms wakes nobody.
#[test]
fn new_keyed_timers_against_wait() {
    explore("new_keyed_timers_against_wait", 1, || {
        let (timer, clock) = with_reaper();
        let expired = Arc::default();
        let first = keyed(&timer, &expired);
        schedule(&first, 0, 5);
        let other = thread::spawn({
            let (timer, expired) = (timer.clone(), Arc::clone(&expired));
            move || {
                let second = keyed(&timer, &expired);
                schedule(&second, 1, 2);
                second
            }
        });
        clock.advance(Duration::from_nanos(2));
        let second = other.join().expect("it does not panic");
        clock.advance(Duration::from_nanos(5));
        while expired.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        assert!(first.is_empty() && second.is_empty());
        String::new()
    });
}
