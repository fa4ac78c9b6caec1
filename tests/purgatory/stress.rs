//! Exactly once, on real threads. `TICKWHEEL_STRESS_OPS` is the number of steps of the second test.

use crate::HOUR;
use crate::random::Random;
use crate::until::until;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use tickwheel::purgatory::{Cancelled, DelayedOperation, Pending, Purgatory, Watch, WatchError};
use tickwheel::{ManualClock, Timer};

/// Only a bug takes that long.
const HANG: Duration = Duration::from_secs(60);

/// What became of one operation.
#[derive(Default)]
struct Fate {
    /// Whether a piece of its code runs.
    inside: AtomicBool,
    completed: AtomicU32,
    expired: AtomicU32,
    cancelled: AtomicU32,
    /// Handed back, by a cancel or in an error.
    returned: AtomicU32,
    dropped: AtomicU32,
    /// Two pieces of its code ran at once, or a piece after its end.
    broken: AtomicBool,
}

struct Tracked {
    fate: Arc<Fate>,
    /// How many checks are false.
    checks: u32,
}

impl Tracked {
    fn new(fate: &Arc<Fate>, checks: u32) -> Self {
        Tracked { fate: Arc::clone(fate), checks }
    }

    /// Runs a piece of code, alone.
    fn alone<R>(&mut self, code: impl FnOnce(&mut Self) -> R) -> R {
        let fate = Arc::clone(&self.fate);
        let broken = fate.inside.swap(true, SeqCst) || fate.dropped.load(SeqCst) > 0;
        std::thread::yield_now();
        let result = code(self);
        if broken || !fate.inside.swap(false, SeqCst) {
            fate.broken.store(true, SeqCst);
        }
        result
    }
}

impl DelayedOperation for Tracked {
    fn try_complete(&mut self) -> bool {
        self.alone(|own| {
            let holds = own.checks == 0;
            own.checks = own.checks.saturating_sub(1);
            holds
        })
    }

    fn on_complete(&mut self) {
        self.alone(|own| own.fate.completed.fetch_add(1, SeqCst));
    }

    fn on_expiration(&mut self) {
        self.alone(|own| own.fate.expired.fetch_add(1, SeqCst));
    }

    fn on_cancellation(&mut self) {
        self.alone(|own| own.fate.cancelled.fetch_add(1, SeqCst));
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.alone(|own| own.fate.dropped.fetch_add(1, SeqCst));
    }
}

/// Every check counts, on whichever thread. So the number of triggers that it takes is not known,
/// and a lost one would leave an operation behind.
#[test]
fn operations_that_take_any_number_of_checks_are_all_completed_once() {
    const THREADS: u32 = 20;
    const EACH: u32 = 100;
    const KEYS: u32 = 10;
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let purgatory: Purgatory<u32, Tracked> = Purgatory::new(&timer);
    let fates: Vec<Arc<Fate>> = (0..THREADS * EACH).map(|_| Arc::default()).collect();
    let (barrier, counted) = (Barrier::new(THREADS as usize), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (purgatory, fates, barrier, counted) = (&purgatory, &fates, &barrier, &counted);
            scope.spawn(move || {
                let mut random = Random(u64::from(thread) + 1);
                barrier.wait();
                for number in 0..EACH {
                    let checks = random.below(10) as u32;
                    let operation = Tracked::new(&fates[(thread * EACH + number) as usize], checks);
                    let first = random.below(u64::from(KEYS)) as u32;
                    let keys: Vec<u32> = (0..=number % 3).map(|nth| (first + nth) % KEYS).collect();
                    let watch = purgatory.try_complete_else_watch(operation, HOUR, &keys).unwrap();
                    let at_once = usize::from(watch.is_completed());
                    counted.fetch_add(at_once + purgatory.check_and_complete(&first), SeqCst);
                }
                let start = Instant::now();
                while purgatory.delayed() > 0 {
                    assert!(start.elapsed() < HANG, "lost: {}", purgatory.stats());
                    for key in 0..KEYS {
                        counted.fetch_add(purgatory.check_and_complete(&key), SeqCst);
                    }
                }
            });
        }
    });
    for (number, fate) in fates.iter().enumerate() {
        let counts = [&fate.completed, &fate.expired, &fate.cancelled, &fate.returned];
        let counts = counts.map(|count| count.load(SeqCst));
        assert_eq!(counts, [1, 0, 0, 0], "completed, expired, cancelled, returned: {number}");
        assert!(fate.dropped.load(SeqCst) == 1 && !fate.broken.load(SeqCst), "{number}");
    }
    timer.advance_clock(Duration::ZERO); // Checks that were handed on find nothing any more.
    let stats = purgatory.stats();
    let all = u64::from(THREADS * EACH);
    assert_eq!(stats.completed_at_once + stats.completed_by_trigger, all);
    // A trigger that meets an operation while it is added has its adder check it again.
    assert_eq!(counted.load(SeqCst) as u64, all);
    assert_eq!((stats.watched, stats.delayed, stats.panicked, timer.len()), (0, 0, 0, 0));
    purgatory.assert_invariants();
    timer.assert_invariants();
}

/// What the threads of the second test share.
struct Race {
    timer: Timer,
    purgatory: Purgatory<u32, Tracked>,
    fates: Vec<Arc<Fate>>,
    forced: AtomicUsize,
    completed: AtomicUsize,
    /// Handles for whichever thread comes first.
    shared: Mutex<Vec<(usize, Pending<u32, Tracked>)>>,
}

impl Race {
    const THREADS: usize = 4;
    const KEYS: u64 = 8;

    fn work(&self, thread: usize, steps: usize) {
        let mut random = Random(thread as u64 + 1);
        for step in 0..steps {
            let key = random.below(Self::KEYS) as u32;
            match random.below(16) {
                0..7 => self.add(thread * steps + step, &mut random),
                7..12 => {
                    let completed = self.purgatory.check_and_complete(&key);
                    self.completed.fetch_add(completed, SeqCst);
                }
                12 if step % 4 == 0 => self.give_back(self.purgatory.cancel_for_key(&key)),
                nth => self.end_one(nth % 2 == 0, &mut random),
            }
        }
    }

    fn add(&self, id: usize, random: &mut Random) {
        let operation = Tracked::new(&self.fates[id], random.below(40) as u32);
        let timeout = Duration::from_micros(random.below(4000));
        let keys: Vec<u32> =
            (0..=random.below(3)).map(|_| random.below(Self::KEYS) as u32).collect();
        match self.purgatory.try_complete_else_watch(operation, timeout, &keys) {
            Ok(Watch::Pending(pending)) => self.shared.lock().unwrap().push((id, pending)),
            Ok(Watch::Completed) => {}
            Err(WatchError::Shutdown(operation)) => self.give_back(vec![operation]),
            Err(error) => panic!("{error}"),
        }
    }

    fn end_one(&self, force: bool, random: &mut Random) {
        let mut shared = self.shared.lock().unwrap();
        let nth = random.below(shared.len().max(1) as u64) as usize;
        let Some((id, pending)) = (nth < shared.len()).then(|| shared.swap_remove(nth)) else {
            return;
        };
        drop(shared);
        if force {
            self.forced.fetch_add(usize::from(pending.force_complete()), SeqCst);
            return;
        }
        match pending.cancel() {
            Cancelled::Returned(operation) => {
                assert!(Arc::ptr_eq(&operation.fate, &self.fates[id]));
                self.give_back(vec![operation]);
            }
            Cancelled::Deferred | Cancelled::Finished => {}
        }
        assert!(!pending.force_complete(), "its fate is sealed");
    }

    fn give_back(&self, operations: Vec<Tracked>) {
        for operation in operations {
            operation.fate.returned.fetch_add(1, SeqCst);
        }
    }

    /// Returns how many were completed without an expiry, expired, cancelled while they were
    /// checked, and were returned.
    fn check(&self) -> [u64; 4] {
        let mut sums = [0; 4];
        for (id, fate) in self.fates.iter().enumerate() {
            let expired = fate.expired.load(SeqCst);
            let ends = [
                fate.completed.load(SeqCst) - expired,
                expired,
                fate.cancelled.load(SeqCst),
                fate.returned.load(SeqCst),
            ];
            let added = fate.dropped.load(SeqCst);
            assert!(added <= 1 && !fate.broken.load(SeqCst), "{id}");
            assert_eq!(ends.iter().sum::<u32>(), added, "{id}: {ends:?}");
            (0..4).for_each(|end| sums[end] += u64::from(ends[end]));
        }
        let stats = self.purgatory.stats();
        assert_eq!((stats.watched, stats.delayed, stats.panicked), (0, 0, 0));
        assert_eq!(stats.completed_by_force, self.forced.load(SeqCst) as u64);
        assert!(stats.completed_by_trigger >= self.completed.load(SeqCst) as u64);
        let completed = stats.completed_at_once + stats.completed_by_trigger;
        assert_eq!(completed + stats.completed_by_force, sums[0]);
        assert_eq!((stats.expired, stats.cancelled), (sums[1], sums[2] + sums[3]));
        sums
    }
}

#[test]
fn whatever_races_every_operation_meets_exactly_one_end() {
    let steps: usize = std::env::var("TICKWHEEL_STRESS_OPS")
        .map_or(200_000, |ops| ops.parse().expect("TICKWHEEL_STRESS_OPS is a number"));
    let each = steps.div_ceil(Race::THREADS);
    let timer = Timer::builder().start().unwrap();
    let race = Race {
        purgatory: Purgatory::new(&timer),
        timer,
        fates: (0..each * Race::THREADS).map(|_| Arc::default()).collect(),
        forced: AtomicUsize::new(0),
        completed: AtomicUsize::new(0),
        shared: Mutex::default(),
    };
    let race = &race;
    std::thread::scope(|scope| {
        for thread in 0..Race::THREADS {
            scope.spawn(move || race.work(thread, each));
        }
    });
    // What is left expires: no later than some milliseconds from now, and a bug may take forever.
    until("one is lost", || race.purgatory.delayed() == 0 && race.timer.is_empty());
    assert!(race.timer.shutdown().is_empty());
    race.purgatory.assert_invariants();
    let ends = race.check();
    println!("completed, expired, cancelled at a check, returned: {ends:?}");
    // Few steps need not meet a check with a cancel.
    assert!(
        steps < 200_000 || ends.iter().all(|end| *end > 0),
        "not all of it was tried: {ends:?}"
    );
}
