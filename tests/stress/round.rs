//! One round: a timer, what is done to it, and the ledger of what became of each entry.

use crate::random::Random;
use crate::until::until;
use crate::{OPERATIONS, THREADS};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::{Cancel, Timeout, Timer, TimerEntry, When};

const FAR: Duration = Duration::from_secs(3600);

type Handle = (u32, Timeout<u32>);

/// What became of one timer.
#[derive(Default)]
struct Fate {
    added: AtomicBool,
    expired: AtomicU8,
    cancelled: AtomicU8,
    returned: AtomicU8,
    refused: AtomicU8,
    /// A lower bound of its deadline, in nanoseconds since the round began.
    not_before: AtomicU64,
}

struct Ledger {
    start: Instant,
    fates: Vec<Fate>,
    early: AtomicU64,
}

impl Ledger {
    fn new() -> Self {
        let fates = (0..THREADS * OPERATIONS).map(|_| Fate::default()).collect();
        Ledger { start: Instant::now(), fates, early: AtomicU64::new(0) }
    }

    fn of(&self, id: u32) -> &Fate {
        &self.fates[id as usize]
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn expire(&self, id: u32) {
        let fate = self.of(id);
        self.early.fetch_add(u64::from(self.now() < fate.not_before.load(SeqCst)), SeqCst);
        fate.expired.fetch_add(1, SeqCst);
    }

    /// Notes that a timer may fall due `delay` from now.
    fn expect(&self, id: u32, delay: Duration) {
        let bound = self.now() + delay.as_nanos() as u64;
        self.of(id).not_before.fetch_min(bound, SeqCst);
    }
}

pub(crate) struct Round {
    pub(crate) timer: Timer<u32>,
    ledger: Arc<Ledger>,
    /// Handles for whichever thread comes first.
    shared: Mutex<Vec<Handle>>,
    /// Handles at the end of the round.
    kept: Mutex<Vec<Handle>>,
    pub(crate) stop: AtomicBool,
    /// The thread that shuts down in the middle of the round, if one does.
    stopper: Option<usize>,
    number: u64,
}

impl Round {
    pub(crate) fn new(number: u64) -> Self {
        let ledger = Arc::new(Ledger::new());
        let fired = Arc::clone(&ledger);
        let tick = [Duration::from_millis(1), Duration::from_micros(50)][number as usize % 2];
        let mut builder = Timer::builder().tick(tick).wheel_size([512, 8][number as usize / 2 % 2]);
        match number % 3 {
            0 => {}
            shards => builder = builder.shards(shards as usize),
        }
        if number % 5 == 4 {
            builder = builder.max_pending(500);
        }
        let timer = builder.executor(move |id| fired.expire(id)).start().unwrap();
        let stopper = (number % 4 == 3).then_some(number as usize % THREADS);
        let (shared, kept) = (Mutex::default(), Mutex::default());
        Round { timer, ledger, shared, kept, stop: AtomicBool::new(false), stopper, number }
    }

    /// Does the work of one thread in a round.
    pub(crate) fn work(&self, thread: usize) {
        let mut random = Random(self.number * 31 + thread as u64 + 1);
        let mut own: Vec<Handle> = Vec::new();
        for step in 0..OPERATIONS {
            if self.stopper == Some(thread) && step == OPERATIONS / 2 {
                self.shut_down();
            }
            match random.below(16) {
                0..8 => self.add((thread * OPERATIONS + step) as u32, &mut random, &mut own),
                8..11 => {
                    if let Some(handle) = random.take(&mut own) {
                        self.cancel(handle);
                    }
                }
                11 => {
                    let others = self.shared.lock().unwrap().pop();
                    others.into_iter().for_each(|handle| self.cancel(handle));
                }
                _ => self.move_one(&mut random, &own),
            }
        }
        self.kept.lock().unwrap().append(&mut own);
    }

    fn add(&self, id: u32, random: &mut Random, own: &mut Vec<Handle>) {
        let delay = random.delay();
        let fate = self.ledger.of(id);
        fate.added.store(true, SeqCst);
        fate.not_before.store(u64::MAX, SeqCst);
        self.ledger.expect(id, delay);
        let entry = match random.below(2) {
            0 => TimerEntry::after(delay, id),
            _ => TimerEntry::at(Instant::now() + delay, id),
        };
        match self.timer.add(entry) {
            Ok(timeout) if random.below(4) == 0 => self.shared.lock().unwrap().push((id, timeout)),
            Ok(timeout) => own.push((id, timeout)),
            Err(error) => {
                assert_eq!(error.into_entry().into_task(), id);
                fate.refused.fetch_add(1, SeqCst);
            }
        }
    }

    fn cancel(&self, (id, timeout): Handle) {
        match timeout.cancel() {
            Cancel::Cancelled(task) => {
                assert_eq!(task, id);
                self.ledger.of(id).cancelled.fetch_add(1, SeqCst);
                assert!(matches!(timeout.cancel(), Cancel::AlreadyCancelled));
            }
            Cancel::Expired => assert!(timeout.is_expired()),
            Cancel::AlreadyCancelled => panic!("{id} has one handle"),
        }
    }

    fn move_one(&self, random: &mut Random, own: &[Handle]) {
        let Some((id, timeout)) = random.choose(own) else { return };
        let delay = random.delay();
        let was_pending = match random.below(3) {
            0 => timeout.touch(delay),
            1 => {
                self.ledger.expect(*id, delay);
                timeout.reschedule_at(Instant::now() + delay)
            }
            _ => {
                self.ledger.expect(*id, delay);
                timeout.reschedule(delay)
            }
        };
        // While `shutdown` collects what is pending, nothing moves any more.
        assert!(was_pending || timeout.is_expired() || self.stopper.is_some());
    }

    pub(crate) fn shut_down(&self) {
        for entry in self.timer.shutdown() {
            assert!(matches!(entry.when(), When::At(_)));
            self.ledger.of(entry.into_task()).returned.fetch_add(1, SeqCst);
        }
    }

    /// Waits in a quiet round until all timers that are not far away have expired.
    pub(crate) fn settle(&self) {
        let soon = Instant::now() + FAR / 2;
        let near = |(_, timeout): &Handle| timeout.deadline().is_some_and(|it| it < soon);
        let handles = [&self.kept, &self.shared];
        until("what is due and pending expires", || {
            !handles.iter().any(|handles| handles.lock().unwrap().iter().any(near))
        });
    }

    /// Returns how many expired, were cancelled, returned and refused.
    pub(crate) fn check(&self) -> [u64; 4] {
        let mut sums = [0; 4];
        for (id, fate) in self.ledger.fates.iter().enumerate() {
            let fates = [&fate.expired, &fate.cancelled, &fate.returned, &fate.refused];
            let fates = fates.map(|fate| u64::from(fate.load(SeqCst)));
            let added = u64::from(fate.added.load(SeqCst));
            assert_eq!(
                fates.iter().sum::<u64>(),
                added,
                "timer {id} of round {}: expired, cancelled, returned, refused {fates:?}",
                self.number
            );
            (0..4).for_each(|fate| sums[fate] += fates[fate]);
        }
        assert_eq!(self.ledger.early.load(SeqCst), 0, "timers expired early");
        let stats = self.timer.stats();
        assert_eq!([stats.expired, stats.cancelled, stats.returned], sums[..3]);
        assert_eq!(stats.added, sums[..3].iter().sum::<u64>());
        assert_eq!((stats.pending, stats.refused, stats.panicked), (0, 0, 0));
        let kept = self.kept.lock().unwrap();
        assert!(kept.iter().all(|(_, timeout)| timeout.is_expired()));
        self.timer.assert_invariants();
        sums
    }
}

impl Random {
    fn delay(&mut self) -> Duration {
        match self.below(8) {
            0 => Duration::ZERO,
            1..6 => Duration::from_micros(self.below(3000)),
            _ => FAR + Duration::from_micros(self.below(1_000_000)),
        }
    }

    fn choose<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let nth = self.below(of.len().max(1) as u64);
        of.get(nth as usize)
    }

    fn take<T>(&mut self, of: &mut Vec<T>) -> Option<T> {
        let nth = self.below(of.len().max(1) as u64) as usize;
        (nth < of.len()).then(|| of.swap_remove(nth))
    }
}
