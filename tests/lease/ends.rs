//! What becomes of leases whose rounds nobody runs any more.

use crate::{Fixture, S};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{AddError, ManualClock, Task, Timer};

/// Seen to fail: they were never reported.
#[test]
fn all_are_lost_as_soon_as_what_the_shutdown_returned_is_dropped() {
    let fixture = Fixture::new();
    let leases = [1, 2, 3].map(|key| fixture.leases.hold(key).unwrap());
    fixture.pass(9);
    let rounds = fixture.timer.shutdown();
    assert_eq!((rounds.len(), fixture.take_lost()), (1, vec![]));
    assert!(leases.iter().all(|lease| lease.is_held()), "until that is run or dropped");
    drop(rounds);
    let mut lost = fixture.take_lost();
    lost.sort_unstable();
    assert_eq!(lost, [(9, 1), (9, 2), (9, 3)]);
    assert!(leases.iter().all(|lease| !lease.is_held()) && fixture.leases.is_empty());
    assert!(matches!(fixture.leases.hold(4), Err(AddError::Shutdown(_))));
    assert_eq!(fixture.take_lost(), [], "told once");
    assert!(leases.into_iter().all(|lease| !lease.release()));
}

/// Seen to fail: who holds a lease was refused, and the others were not told.
#[test]
fn all_are_lost_when_somebody_finds_the_timer_shut_down() {
    let fixture = Fixture::new();
    let first = fixture.leases.hold(1).unwrap();
    let rounds = fixture.timer.shutdown();
    let refused = fixture.leases.hold(2);
    assert_eq!((fixture.take_lost(), first.is_held()), (vec![(0, 1)], false));
    drop((refused, rounds));
    assert_eq!(fixture.take_lost(), [], "told once");
}

/// As soon as the first of them is reported lost, none is held: each caller is told.
#[test]
fn none_is_held_any_more_when_the_first_is_reported() {
    type Held = Arc<Mutex<Vec<tickwheel::lease::Lease<u32>>>>;
    struct Looks(Held, Arc<Mutex<Vec<usize>>>);
    impl LeaseStore<u32> for Looks {
        fn renew(&self, _: Vec<Renewal<u32>>) {}
        fn lost(&self, _: u32) {
            let held = self.0.lock().unwrap().iter().filter(|lease| lease.is_held()).count();
            self.1.lock().unwrap().push(held);
        }
    }
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let (held, seen) = (Held::default(), Arc::<Mutex<Vec<usize>>>::default());
    let store = Looks(Arc::clone(&held), Arc::clone(&seen));
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store);
    held.lock().unwrap().extend((0..1000).map(|key| leases.hold(key).unwrap()));
    drop(timer.shutdown());
    let seen = seen.lock().unwrap();
    assert!(seen.len() == 1000 && seen.iter().all(|held| *held == 0), "{:?}", seen.iter().max());
    let left = std::mem::take(&mut *held.lock().unwrap());
    assert!(left.into_iter().all(|lease| !lease.release()));
}

struct Renews(Arc<Mutex<Vec<u64>>>, ManualClock, std::time::Instant);

impl LeaseStore<u32> for Renews {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        self.0.lock().unwrap().push(self.1.now().duration_since(self.2).as_secs());
        batch.into_iter().for_each(Renewal::renewed);
    }

    fn lost(&self, _: u32) {
        unreachable!("it is renewed");
    }
}

/// Seen to fail: a round that was refused was the last one. It is tried again as a renewal is that
/// failed.
#[test]
fn a_round_that_the_executor_refuses_is_planned_again() {
    let clock = ManualClock::new();
    let refuses = AtomicBool::new(true);
    let executor = move |task: Task| match refuses.swap(false, Ordering::SeqCst) {
        true => Err(task),
        false => {
            task.run();
            Ok(())
        }
    };
    let timer = Timer::builder().clock(clock.clone()).executor(executor).build().unwrap();
    let renewed = Arc::<Mutex<Vec<u64>>>::default();
    let store = Renews(Arc::clone(&renewed), clock.clone(), clock.now());
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store);
    let lease = leases.hold(1).unwrap();
    for _ in 0..40 {
        clock.advance(S);
        timer.advance_clock(Duration::ZERO);
        assert_eq!(timer.len(), 1, "one round is planned");
    }
    assert!(lease.is_held());
    assert_eq!(*renewed.lock().unwrap(), [13, 23, 33], "a quarter of the period after 10");
}
