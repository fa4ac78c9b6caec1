//! Models of leases: of 12 µs, renewed every 4 µs, by a store that answers when a model wants; and
//! of their rounds, what goes on beside them, and how they end.

use crate::futures::{assert_empty, pass, with_reaper};
use crate::harness::{all, both, explore};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::lease::{Lease, LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::{AddError, ManualClock, Task, Timer, TimerBuilder, TimerEntry};

pub(crate) const MICRO: Duration = Duration::from_micros(1);

/// std's lock, because it is never held for a step of a schedule.
#[derive(Default)]
pub(crate) struct Seen {
    /// Renewals in flight.
    pub(crate) sent: Mutex<Vec<Renewal<u32>>>,
    pub(crate) lost: Mutex<Vec<u32>>,
}

pub(crate) struct Store(pub(crate) Arc<Seen>);

impl LeaseStore<u32> for Store {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        self.0.sent.lock().unwrap().extend(batch);
    }

    fn lost(&self, key: u32) {
        self.0.lost.lock().unwrap().push(key);
    }
}

/// Leases on a timer that is driven by hand, and what their store has seen.
pub(crate) struct Dog {
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
    pub(crate) leases: Leases<u32>,
    pub(crate) seen: Arc<Seen>,
}

impl Dog {
    pub(crate) fn new(build: impl FnOnce(TimerBuilder<Task>) -> TimerBuilder<Task>) -> Self {
        let (clock, seen) = (ManualClock::new(), Arc::new(Seen::default()));
        let builder = Timer::builder().tick(MICRO).wheel_size(4).shards(1).clock(clock.clone());
        let timer = build(builder).build().expect("it can be built");
        let leases = Leases::new(&timer, LeaseTerms::new(12 * MICRO), Store(Arc::clone(&seen)));
        Dog { timer, clock, leases, seen }
    }

    /// Creates leases with one on key 1, whose first renewal is in flight.
    pub(crate) fn in_flight() -> (Self, Lease<u32>, Renewal<u32>) {
        let dog = Self::new(|builder| builder);
        let lease = dog.hold(1);
        dog.pass(4);
        let renewal = dog.sent().pop().expect("it is due");
        (dog, lease, renewal)
    }

    pub(crate) fn hold(&self, key: u32) -> Lease<u32> {
        self.leases.hold(key).expect("there is room")
    }

    pub(crate) fn pass(&self, micros: u32) {
        self.clock.advance(micros * MICRO);
        self.timer.advance_clock(Duration::ZERO);
    }

    /// Takes what is in flight.
    pub(crate) fn sent(&self) -> Vec<Renewal<u32>> {
        std::mem::take(&mut *self.seen.sent.lock().unwrap())
    }

    pub(crate) fn lost(&self) -> Vec<u32> {
        self.seen.lost.lock().unwrap().clone()
    }

    /// Lets time pass, with a store that renews all. Returns how many renewals of a key there were.
    pub(crate) fn renewals(&self, key: u32, micros: u32) -> usize {
        (0..micros).fold(0, |count, _| {
            self.pass(1);
            let sent = self.sent().into_iter();
            count + sent.filter(|it| *it.key() == key).map(Renewal::renewed).count()
        })
    }

    /// Checks at quiescence, with nothing held, that nothing is planned, sent or lost any more.
    pub(crate) fn settle(self) {
        let lost = self.lost();
        self.sent().into_iter().for_each(Renewal::gone);
        assert!(self.leases.is_empty(), "a lease is left behind");
        let stats = self.leases.stats();
        assert_eq!((stats.taken, stats.lost), (stats.released + stats.lost, lost.len() as u64));
        self.pass(40);
        assert!(self.sent().is_empty(), "renewed after the end");
        assert_eq!(self.lost(), lost);
        assert_empty(&self.timer);
    }
}

/// Releases a lease while its renewal is in flight: it ends here or is lost, and not both.
fn release_against(answer: fn(Renewal<u32>)) -> String {
    let (dog, lease, renewal) = Dog::in_flight();
    let (released, _, _) = all(|| lease.release(), || answer(renewal), || dog.pass(8));
    let lost = dog.lost();
    assert!(lost.len() <= usize::from(!released), "{released} {lost:?}");
    dog.settle();
    format!("{released} {lost:?}")
}

/// Fails when `answer` looks whether the lease is held and forgets it in two steps.
#[test]
fn release_against_gone() {
    explore("release_against_gone", 3, || release_against(Renewal::gone));
}

/// Fails when an answer plans the renewal of what was released meanwhile.
#[test]
fn release_against_renewed() {
    explore("release_against_renewed", 2, || release_against(Renewal::renewed));
}

/// The answer comes as the lease runs out: it counts, or the lease is lost, once.
///
/// Fails when an answer looks whether the lease has run out, but not whether it is still held.
#[test]
fn loss_against_late_answer() {
    explore("loss_against_late_answer", 2, || {
        let (dog, lease, renewal) = Dog::in_flight();
        all(|| renewal.renewed(), || dog.pass(8), || dog.timer.advance_clock(Duration::ZERO));
        let held = lease.is_held();
        assert_eq!(dog.lost(), if held { vec![] } else { vec![1] });
        dog.pass(1);
        dog.sent().into_iter().for_each(Renewal::gone);
        assert_eq!((lease.release(), dog.lost()), (false, vec![1]), "told once");
        dog.settle();
        format!("{held}")
    });
}

/// The store says that the lease is gone as it runs out: that is one loss.
///
/// Fails when the round that finds it run out reports it without having forgotten it.
#[test]
fn loss_against_gone() {
    explore("loss_against_gone", 1, || {
        let (dog, lease, renewal) = Dog::in_flight();
        both(|| renewal.gone(), || dog.pass(8));
        assert_eq!((lease.is_held(), dog.lost()), (false, vec![1]));
        dog.settle();
        String::new()
    });
}

/// The lease is taken again while the renewal of the former one is in flight, and soon there is one
/// of the new lease as well: that is held, and renewed once a period.
///
/// Fails when an answer does not look for which generation it is.
#[test]
fn retake_against_old_renewal() {
    explore("retake_against_old_renewal", 3, || {
        let (dog, former, renewal) = Dog::in_flight();
        let ((lease, ()), (), released) =
            all(|| (dog.hold(1), dog.pass(4)), || renewal.gone(), || former.release());
        let lost = dog.lost();
        assert!(lease.is_held() && lost.len() <= 1 && dog.leases.len() == 1, "{lost:?}");
        assert!(lost.is_empty() || !released, "it was released");
        assert_eq!(dog.sent().into_iter().map(Renewal::renewed).count(), 1);
        assert_eq!((dog.renewals(1, 20), dog.lost()), (5, lost), "one a period");
        assert!(lease.release());
        let order = format!("{released} {:?}", dog.lost());
        dog.settle();
        order
    });
}

/// The first leases are taken on two threads, one of which finds no round to hasten yet; what it
/// took is due first.
///
/// Fails when who has added the round does not look once more when it is due.
#[test]
fn earlier_hold_against_first_hold() {
    explore("earlier_hold_against_first_hold", 1, || {
        let dog = Dog::new(|builder| builder);
        let asked = dog.timer.now();
        dog.pass(2);
        let (first, earlier) = both(|| dog.hold(1), || dog.leases.hold_since(2, asked));
        assert_eq!((dog.renewals(2, 2), dog.timer.len()), (1, 1), "one round, in time");
        assert!(first.release() && earlier.is_ok_and(Lease::release));
        dog.settle();
        String::new()
    });
}

/// The round is due at once, and begins before who has added it goes on. Another lease is taken
/// meanwhile.
///
/// Fails when the handle of a round is kept although it has begun, or when a round that begins
/// leaves the next one to who has added it.
#[test]
fn due_hold_against_round() {
    explore("due_hold_against_round", 1, || {
        let dog = Dog::new(|builder| builder);
        let asked = dog.timer.now();
        dog.pass(4);
        let (due, _, other) =
            all(|| dog.leases.hold_since(1, asked), || dog.pass(1), || dog.hold(2));
        dog.pass(0);
        assert_eq!(dog.timer.len(), 1, "a round for what is in flight");
        assert_eq!(dog.sent().into_iter().map(Renewal::renewed).count(), 1);
        assert!(dog.timer.len() == 1 && dog.renewals(2, 5) >= 1, "nobody renews it");
        assert!(due.is_ok_and(Lease::release) && other.release());
        dog.settle();
        String::new()
    });
}

/// A lease is taken as the round begins that plans the next one.
///
/// Fails when `plan` does not look whether the round that it knows of is still pending.
#[test]
fn hold_against_round() {
    explore("hold_against_round", 2, || {
        let dog = Dog::new(|builder| builder);
        let first = dog.hold(1);
        let ((), second) = both(|| dog.pass(4), || dog.hold(2));
        let in_flight = dog.sent().into_iter().map(Renewal::renewed).count();
        let renewals = dog.renewals(2, 5);
        assert!(renewals >= 1 && dog.lost().is_empty(), "nobody renews it");
        assert_eq!(dog.timer.len(), 1, "one round for all");
        assert!(first.release() && second.release());
        dog.settle();
        format!("{in_flight} {renewals}")
    });
}

/// A lease that has to be renewed earlier than all others, on a timer that others keep full.
///
/// Fails when `plan` cancels the round and adds an earlier one.
#[test]
fn earlier_hold_on_a_full_timer() {
    explore("earlier_hold_on_a_full_timer", 1, || {
        let dog = Dog::new(|builder| builder.max_pending(1));
        let asked = dog.timer.now();
        dog.pass(2);
        let first = dog.hold(1);
        both(
            || {
                let earlier = dog.leases.hold_since(2, asked);
                assert!(earlier.is_ok_and(Lease::release), "the round has its place");
            },
            || {
                let other = dog.timer.add(TimerEntry::after(MICRO, || ()));
                assert!(matches!(other, Err(AddError::Full(_))));
            },
        );
        assert_eq!(dog.renewals(1, 12), 3);
        assert!(first.release());
        dog.settle();
        String::new()
    });
}

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
struct Locks(Arc<shuttle::sync::Mutex<()>>);

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
        let service = Arc::new(shuttle::sync::Mutex::new(()));
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
