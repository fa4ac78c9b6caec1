//! Everything at once on a clock of the user's that walks at random, forwards and back, while calls
//! and tasks read it.

use super::HOUR;
use super::reading::Hand;
use fastrand::Rng;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tickwheel::future::Sleep;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::{Periodic, Run, Series};
use tickwheel::queue::KeyedQueue;
use tickwheel::{Clock, Timeout, Timer, WeakTimer};

/// So many tasks may add themselves again in a call: far more than should.
const MOST_AGAIN: usize = 1_000;

/// Walks a hand, or lets it stand.
fn walk(random: &mut Rng, hand: &Hand) {
    let step = Duration::from_nanos(1 << random.u32(..42));
    match random.u32(..1_000) {
        0 => hand.back(2 * HOUR),
        1..80 => hand.back(step),
        80..200 => hand.leap(step),
        _ => {}
    }
}

/// What all tasks share.
struct Ends {
    hand: Arc<Hand>,
    clock: Clock,
    early: AtomicUsize,
    count: AtomicUsize,
    again: AtomicUsize,
    is_over: AtomicBool,
}

impl Ends {
    fn judge(&self, deadline: Instant) {
        // The hand first: the clock walks on when it is asked.
        let is_due = self.hand.has_reached(deadline) && self.clock.now() >= deadline;
        self.early.fetch_add(usize::from(!is_due), SeqCst);
    }

    fn end(&self, deadline: Instant) {
        self.judge(deadline);
        self.count.fetch_add(1, SeqCst);
    }
}

/// Adds a task that, while the test goes on, adds itself for now whenever it runs.
fn add_again(timer: &WeakTimer, ends: &Arc<Ends>) {
    let weak = timer.clone();
    let shared = Arc::clone(ends);
    let deadline = ends.clock.now();
    let task = move || {
        if shared.is_over.load(SeqCst) || shared.again.fetch_add(1, SeqCst) > MOST_AGAIN {
            return shared.end(deadline);
        }
        shared.judge(deadline);
        add_again(&weak, &shared);
    };
    timer
        .upgrade()
        .expect("it lives")
        .after(Duration::ZERO, task)
        .expect("there is room");
}

struct World {
    random: Rng,
    hand: Arc<Hand>,
    walks: Arc<AtomicBool>,
    ends: Arc<Ends>,
    timer: Timer,
    timeouts: Vec<Timeout>,
    keyed: KeyedTimer<u32, Instant>,
    queue: KeyedQueue<u32, ()>,
    sleeps: Vec<Pin<Box<Sleep>>>,
    series: Series,
    begun: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let hand = Hand::new();
        let walks = Arc::new(AtomicBool::new(true));
        let read = Arc::clone(&hand);
        let goes_on = Arc::clone(&walks);
        let steps = Mutex::new(Rng::with_seed(!seed));
        let clock = Clock::reading(move || {
            if goes_on.load(SeqCst) {
                walk(&mut steps.lock().unwrap(), &read);
            }
            read.now()
        });
        let [early, count, again] = [const { AtomicUsize::new(0) }; 3];
        let is_over = AtomicBool::new(false);
        let of = Arc::clone(&hand);
        let shown = clock.clone();
        let ends = Arc::new(Ends {
            hand: of,
            clock: shown,
            early,
            count,
            again,
            is_over,
        });
        let timer = Timer::builder()
            .clock(clock.clone())
            .shards(1)
            .wheel_size(8)
            .build()
            .unwrap();
        let own = Arc::clone(&ends);
        let keyed = KeyedTimer::new(&timer, move |_, deadline| own.end(deadline));
        let queue = KeyedQueue::new(clock, |_| pending::<()>());
        let own = Arc::clone(&ends);
        let task = move |run: &Run<'_>| own.judge(run.due().expect("soon"));
        let series = Periodic::every(HOUR / 4).start(&timer, task).unwrap();
        let random = Rng::with_seed(seed);
        let timeouts = Vec::new();
        let sleeps = Vec::new();
        add_again(&timer.downgrade(), &ends);
        let begun = 1;
        World {
            random,
            hand,
            walks,
            ends,
            timer,
            timeouts,
            keyed,
            queue,
            sleeps,
            series,
            begun,
        }
    }

    fn step(&mut self) {
        let delay = Duration::from_nanos(1 << self.random.u32(..44));
        // The call may read a later time, and none that is earlier.
        let deadline = self.timer.now() + delay;
        let key = self.random.u32(..4);
        match self.random.u32(..12) {
            0..3 => {
                let own = Arc::clone(&self.ends);
                let timeout = self.timer.after(delay, move || own.end(deadline));
                self.timeouts.push(timeout.expect("there is room"));
                self.begun += 1;
            }
            3 if !self.timeouts.is_empty() => {
                let nth = self.random.usize(..self.timeouts.len());
                let timeout = self.timeouts.swap_remove(nth);
                self.begun -= usize::from(timeout.cancel().is_cancelled());
            }
            4 => {
                let replaced = self.keyed.add(key, delay, deadline).expect("there is room");
                self.begun += usize::from(replaced.is_none());
            }
            // At the earliest at the deadline that the task knows.
            5 => _ = self.keyed.touch(&key, delay),
            6 => self.begun += usize::from(self.queue.insert(key, delay, ()).is_none()),
            7 => {
                self.sleeps.push(Box::pin(self.timer.sleep(delay)));
                self.begun += 1;
            }
            8 | 9 => self.poll(),
            _ => self.advance(),
        }
    }

    fn poll(&mut self) {
        let context = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(expired)) = self.queue.poll_expired(context) {
            self.ends.end(expired.deadline);
        }
        self.sleeps.retain_mut(|sleep| {
            let Poll::Ready(ended) = sleep.as_mut().poll(context) else {
                return true;
            };
            assert_eq!(ended, Ok(()));
            self.ends.end(sleep.deadline().expect("soon"));
            false
        });
    }

    fn advance(&mut self) {
        self.ends.again.store(0, SeqCst);
        let pending = self.timer.len();
        let expired = self.timer.advance_clock(Duration::ZERO);
        // Those that add themselves may come in the tick before the last, and again in the last.
        assert!(
            expired <= 2 * pending,
            "{expired} of {pending} expired in one call"
        );
        self.timer.assert_invariants();
    }

    /// Lets the clock pass all deadlines. Everything ends then, the series apart.
    fn end(&mut self) {
        self.walks.store(false, SeqCst);
        self.ends.is_over.store(true, SeqCst);
        self.hand.set(1_000_000 * HOUR);
        let runs = self.series.runs();
        self.advance();
        self.poll();
        self.poll(); // For the sleep that lets others run first: each 64th.
        assert!(self.series.runs() > runs);
        assert_eq!(
            (self.sleeps.len(), self.queue.len(), self.timer.len()),
            (0, 0, 1)
        );
        assert_eq!(self.ends.count.load(SeqCst), self.begun);
        assert_eq!(self.ends.early.load(SeqCst), 0);
        assert_eq!(self.timer.stats().panicked, 0);
    }
}

#[test]
fn a_clock_that_goes_back_and_forth_makes_nothing_early_and_loses_nothing() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        (0..500).for_each(|_| world.step());
        world.end();
    }
}
