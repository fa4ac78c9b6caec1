//! What becomes of leases whose rounds nobody runs any more: their timer was shut down or has
//! ended, whatever its tasks are and whoever drives it.

use crate::{Fixture, S, by_hand};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;
use tickwheel::{AddError, BuildError, ManualClock, Task, Timer, TimerBuilder, WeakTimer, Worker};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};

/// Seen to fail: who holds a lease was refused, and the others were not told.
#[test]
fn all_are_lost_when_somebody_finds_the_timer_shut_down() {
    let fixture = Fixture::new();
    let first = fixture.leases.hold(1).unwrap();
    let rounds = fixture.timer.shutdown();
    assert!(
        first.is_held() && fixture.take_lost().is_empty(),
        "until those are run or dropped"
    );
    let refused = fixture.leases.hold(2);
    assert_eq!(
        (fixture.take_lost(), first.is_held()),
        (vec![(0, 1)], false)
    );
    let stats = fixture.leases.stats();
    assert_eq!(
        (stats.taken, stats.lost, stats.held),
        (1, 1, 0),
        "what is refused was never taken"
    );
    drop((refused, rounds));
    assert_eq!(fixture.take_lost(), [], "told once");
}

#[test]
fn what_is_kept_of_leases_keeps_no_store() {
    struct Keeps(
        Mutex<Vec<Renewal<u32>>>,
        #[expect(dead_code, reason = "only kept")] Arc<()>,
    );
    impl LeaseStore<u32> for Keeps {
        fn renew(&self, batch: Vec<Renewal<u32>>) {
            self.0.lock().unwrap().extend(batch);
        }
        fn lost(&self, _: u32) {}
    }
    let (timer, clock) = by_hand();
    let owned = Arc::new(());
    let store = Keeps(Mutex::default(), Arc::clone(&owned));
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store);
    let lease = leases.hold(1).unwrap();
    clock.run_for(15 * S); // Now the store keeps a renewal, which it has not answered.
    drop(leases);
    assert!(!lease.is_held());
    assert_eq!(Arc::strong_count(&owned), 1);
}

/// As soon as the first of them is reported lost, none is held: each caller is told.
#[test]
fn none_is_held_any_more_when_the_first_is_reported() {
    type Held = Arc<Mutex<Vec<tickwheel_leases::Lease<u32>>>>;
    struct Looks(Held, Arc<Mutex<Vec<usize>>>);
    impl LeaseStore<u32> for Looks {
        fn renew(&self, _: Vec<Renewal<u32>>) {}
        fn lost(&self, _: u32) {
            let held = self
                .0
                .lock()
                .unwrap()
                .iter()
                .filter(|lease| lease.is_held())
                .count();
            self.1.lock().unwrap().push(held);
        }
    }
    let (timer, _clock) = by_hand();
    let held = Held::default();
    let seen = Arc::<Mutex<Vec<usize>>>::default();
    let store = Looks(Arc::clone(&held), Arc::clone(&seen));
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store);
    held.lock()
        .unwrap()
        .extend((0..1000).map(|key| leases.hold(key).unwrap()));
    drop(timer.shutdown());
    let seen = seen.lock().unwrap();
    assert!(
        seen.len() == 1000 && seen.iter().all(|held| *held == 0),
        "{:?}",
        seen.iter().max()
    );
    let left = std::mem::take(&mut *held.lock().unwrap());
    assert!(left.into_iter().all(|lease| !lease.release()));
}

/// Seen to fail: a round that was refused was the last one. It is tried again as a renewal is that
/// failed.
#[test]
fn a_round_that_the_executor_refuses_is_planned_again() {
    let refuses = AtomicBool::new(true);
    let executor = move |task: Task| match refuses.swap(false, Ordering::SeqCst) {
        true => Err(task),
        false => {
            task.run();
            Ok(())
        }
    };
    let fixture = Fixture::with(|builder| builder.executor(executor).build(), |terms| terms);
    let lease = fixture.leases.hold(1).unwrap();
    for _ in 0..40 {
        fixture.pass(1);
        assert_eq!(fixture.timer.len(), 1, "one round is planned");
    }
    assert!(lease.is_held());
    let renewed = [(13, 1), (23, 1), (33, 1)];
    assert_eq!(
        fixture.take_renewals(),
        renewed,
        "a quarter of the period after 10"
    );
}

/// Seen to fail: only rounds looked for what had run out, and none ran.
#[test]
fn what_runs_out_while_the_executor_refuses_each_round_is_reported_once() {
    let refuses = |task: Task| -> Result<(), Task> { Err(task) };
    let fixture = Fixture::with(|builder| builder.executor(refuses).build(), |terms| terms);
    let _early = [1, 2].map(|key| fixture.leases.hold(key).unwrap());
    fixture.pass(15);
    let _late = fixture.leases.hold(3).unwrap();
    fixture.pass(60);
    assert_eq!(
        fixture.take_lost(),
        [(31, 1), (31, 2), (46, 3)],
        "with the first round after it: one is tried each 2.5 s"
    );
    assert_eq!((fixture.take_renewals(), fixture.timer.len()), (vec![], 0));
}

/// Drops the last clone of the leases when the first of them is lost.
#[derive(Clone, Default)]
struct DropsAll {
    leases: Arc<Mutex<Option<Leases<u32>>>>,
    calls: Arc<AtomicUsize>,
}

impl LeaseStore<u32> for DropsAll {
    fn renew(&self, _: Vec<Renewal<u32>>) {
        self.calls.fetch_add(1000, Ordering::SeqCst);
    }

    fn lost(&self, _: u32) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let last = self.leases.lock().unwrap().take();
        drop(last);
    }
}

/// Seen to fail: the others of the batch were reported, and the one that was due was renewed.
#[test]
fn the_store_is_not_called_after_a_report_in_which_the_last_clone_was_dropped() {
    for shuts_down in [false, true] {
        let (timer, clock) = by_hand();
        let store = DropsAll::default();
        let leases = Leases::new(&timer, LeaseTerms::new(30 * S), store.clone());
        let run_out = [1, 2, 3].map(|key| leases.hold(key).unwrap());
        clock.advance(21 * S);
        let is_due = leases.hold(4).unwrap();
        *store.leases.lock().unwrap() = Some(leases);
        clock.advance(10 * S);
        if shuts_down {
            drop(timer.shutdown());
        } else {
            timer.advance_clock(Duration::ZERO);
        }
        assert_eq!(
            store.calls.load(Ordering::SeqCst),
            1,
            "shutdown: {shuts_down}"
        );
        assert!(
            run_out
                .iter()
                .chain([&is_due])
                .all(|lease| !lease.is_held())
        );
        assert!(timer.is_empty());
    }
}

/// Two threads meet at the barrier when the first batch is renewed, when the first lease is lost,
/// and when the thread that renews is done.
struct Meets(Arc<Barrier>, AtomicBool, Arc<[AtomicUsize; 2]>);

impl LeaseStore<u32> for Meets {
    fn renew(&self, _: Vec<Renewal<u32>>) {
        if self.2[0].fetch_add(1, Ordering::SeqCst) == 0 {
            self.0.wait();
            self.0.wait();
        }
    }

    fn lost(&self, _: u32) {
        self.2[1].fetch_add(1, Ordering::SeqCst);
        if !self.1.swap(true, Ordering::SeqCst) {
            self.0.wait();
            self.0.wait();
        }
    }
}

/// Seen to fail: the round went on renewing what nobody held any more.
#[test]
fn a_round_in_progress_renews_nothing_after_the_first_was_lost_to_a_shutdown() {
    let (timer, clock) = by_hand();
    let barrier = Arc::new(Barrier::new(2));
    let calls = Arc::default();
    let store = Meets(
        Arc::clone(&barrier),
        AtomicBool::new(false),
        Arc::clone(&calls),
    );
    let leases = Leases::new(&timer, LeaseTerms::new(30 * S).batch_size(5), store);
    let held: Vec<_> = (0..200).map(|key| leases.hold(key).unwrap()).collect();
    clock.advance(10 * S);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            timer.advance_clock(Duration::ZERO);
            barrier.wait();
        });
        barrier.wait();
        drop(timer.shutdown());
    });
    assert_eq!(
        [0, 1].map(|call: usize| calls[call].load(Ordering::SeqCst)),
        [1, 200]
    );
    assert!(held.iter().all(|lease| !lease.is_held()) && leases.is_empty());
}

const HANG: Duration = Duration::from_secs(20);

/// Reports what is lost. Shuts a timer down when it is asked to renew, if it has one.
struct Store<T: Send + 'static>(Mutex<Sender<u32>>, Option<WeakTimer<T>>);

impl<T: Send> LeaseStore<u32> for Store<T> {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        drop(
            self.1
                .as_ref()
                .and_then(WeakTimer::upgrade)
                .map(|timer| timer.shutdown()),
        );
        batch.into_iter().for_each(Renewal::renewed);
    }

    fn lost(&self, key: u32) {
        self.0.lock().unwrap().send(key).unwrap();
    }
}

/// Creates leases of 30 s, renewed every 10 s.
fn leases<T: Send + 'static>(
    timer: &Timer<T>,
    shuts_down: Option<WeakTimer<T>>,
) -> (Leases<u32>, Receiver<u32>) {
    let (sender, lost) = channel();
    let store = Store(Mutex::new(sender), shuts_down);
    (Leases::new(timer, LeaseTerms::new(30 * S), store), lost)
}

/// Checks that a timer which is shut down, outside or in a round, loses all leases, once each, and
/// takes no more.
fn loses_all<T: Send + 'static>(
    build: impl Fn(TimerBuilder<Task>) -> Result<Timer<T>, BuildError>,
) {
    for in_a_round in [false, true] {
        let clock = ManualClock::new();
        let timer = build(Timer::builder().clock(clock.clone())).unwrap();
        let (leases, lost) = leases(&timer, in_a_round.then(|| timer.downgrade()));
        let held = [1, 2].map(|key| leases.hold(key).unwrap());
        if in_a_round {
            clock.advance(10 * S);
            timer.advance_clock(Duration::ZERO);
        } else {
            drop(timer.shutdown());
        }
        let mut keys = [(); 2].map(|()| lost.recv_timeout(HANG).unwrap());
        keys.sort_unstable();
        assert_eq!(keys, [1, 2]);
        assert!(matches!(leases.hold(3), Err(AddError::Shutdown(_))));
        assert!(
            held.into_iter()
                .all(|lease| !lease.is_held() && !lease.release())
        );
        assert_eq!((leases.stats().lost, leases.len()), (2, 0));
        clock.advance(60 * S);
        timer.advance_clock(Duration::ZERO);
        drop((leases, timer));
        assert_eq!(lost.try_iter().count(), 0, "told once");
    }
}

/// Seen to fail: those on a timer with its own type of task were never reported.
#[test]
fn every_timer_that_is_shut_down_loses_all_leases_once() {
    loses_all(|builder| builder.build());
    loses_all(|builder| builder.start());
    loses_all(|builder| {
        builder
            .executor(Worker::unbounded("rounds", Task::run)?)
            .start()
    });
    loses_all(|builder| builder.executor(|_: u64| ()).build());
    loses_all(|builder| builder.executor(|_: u64| ()).start());
}
