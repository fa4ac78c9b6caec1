//! Queues and drives on sleeps that end early, late, at once or never: random timers in virtual
//! time, of a clock that wakes nobody.

use crate::wakes::Wakes;
use quickcheck::{Arbitrary, Gen};
use std::collections::BTreeMap;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tickwheel::queue::KeyedQueue;
use tickwheel::{Clock, Timer};

/// A tick of both. All times are in microseconds since the start.
const TICK: u64 = 1_000;

/// When sleeps end.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// By so much after their time.
    Late(u64),
    /// By a clock that is ahead by so much.
    Ahead(u64),
    /// At a multiple of this.
    RoundDown(u64),
    /// By a clock that is twice as fast.
    Fast,
    /// After half of what is left when they are made.
    Half,
    /// With the first poll.
    AtOnce,
    /// With the second poll, for which they wake.
    Yield,
    Never,
}

impl Habit {
    /// Returns when a sleep ends that is made at `now`.
    fn end(self, now: u64, until: u64) -> u64 {
        match self {
            Habit::Late(by) => until + by,
            Habit::Ahead(by) => until.saturating_sub(by),
            Habit::RoundDown(to) => until / to * to,
            Habit::Fast => until / 2,
            Habit::Half => now + until.saturating_sub(now) / 2,
            Habit::AtOnce | Habit::Yield => 0,
            Habit::Never => u64::MAX,
        }
    }

    /// Returns how late a timer may be; `None` if nobody need be woken for it.
    fn slack(self, deadline: u64) -> Option<u64> {
        match self {
            Habit::Late(by) => Some(by),
            // A sleep is longer by at least a tick than the one that was early; by twice as much as
            // it was early, if the clock stands still meanwhile.
            Habit::Half => Some(TICK),
            Habit::Ahead(by) => Some(by + TICK),
            Habit::RoundDown(to) => Some(2 * to + TICK),
            // Ahead by all the time so far, and made for twice as much later.
            Habit::Fast => Some(deadline + TICK),
            Habit::AtOnce | Habit::Yield | Habit::Never => None,
        }
    }
}

impl Arbitrary for Habit {
    fn arbitrary(random: &mut Gen) -> Self {
        let us = u64::arbitrary(random) % 20_000;
        match u8::arbitrary(random) % 8 {
            0 => Habit::Late(us),
            1 => Habit::Ahead(us),
            2 => Habit::RoundDown(us + 1),
            3 => Habit::Fast,
            4 => Habit::Half,
            5 => Habit::AtOnce,
            6 => Habit::Yield,
            _ => Habit::Never,
        }
    }
}

/// The time, and who sleeps until when.
#[derive(Clone)]
struct World {
    start: Instant,
    now: Arc<AtomicU64>,
    sleepers: Arc<Mutex<BTreeMap<u64, (u64, Waker)>>>,
    made: Arc<AtomicU64>,
}

struct Sleep {
    world: World,
    number: u64,
    end: u64,
    yields: bool,
}

impl World {
    fn new() -> Self {
        let [now, made] = [Arc::default(), Arc::default()];
        World {
            start: Instant::now(),
            now,
            sleepers: Arc::default(),
            made,
        }
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn clock(&self) -> Clock {
        let world = self.clone();
        Clock::reading(move || world.start + Duration::from_micros(world.now()))
    }

    fn sleeps(&self, habit: Habit) -> impl Fn(Instant) -> Sleep + use<> {
        let world = self.clone();
        move |until| {
            let until = until.duration_since(world.start).as_micros() as u64;
            let end = habit.end(world.now(), until);
            let number = world.made.fetch_add(1, Ordering::Relaxed);
            Sleep {
                world: world.clone(),
                number,
                end,
                yields: matches!(habit, Habit::Yield),
            }
        }
    }

    /// Moves the time to the first end of a sleep, and wakes the sleeper. Returns whether there is
    /// one before `end`.
    fn step(&self, end: u64) -> bool {
        let mut sleepers = self.sleepers.lock().unwrap();
        let first = sleepers.iter().min_by_key(|(_, (at, _))| *at);
        let Some((&number, &(at, _))) = first.filter(|(_, (at, _))| *at <= end) else {
            return false;
        };
        self.now.fetch_max(at, Ordering::Relaxed);
        let woken = sleepers.remove(&number);
        drop(sleepers);
        woken.is_some_and(|(_, waker)| {
            waker.wake();
            true
        })
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if mem::take(&mut self.yields) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.end <= self.world.now() {
            return Poll::Ready(());
        }
        let sleeper = (self.end, context.waker().clone());
        self.world
            .sleepers
            .lock()
            .unwrap()
            .insert(self.number, sleeper);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.world.sleepers.lock().unwrap().remove(&self.number);
    }
}

/// A queue, or a timer with its drive.
trait Subject {
    fn add(&mut self, id: u64, delay: Duration);

    /// Polls it, and returns what has expired.
    fn poll(&mut self, context: &mut Context<'_>) -> Vec<u64>;
}

impl Subject for KeyedQueue<u64, ()> {
    fn add(&mut self, id: u64, delay: Duration) {
        self.insert(id, delay, ());
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Vec<u64> {
        let mut expired = Vec::new();
        while let Poll::Ready(Some(it)) = self.poll_expired(context) {
            expired.push(it.key);
        }
        expired
    }
}

struct Driven<F> {
    timer: Timer,
    drive: Pin<Box<F>>,
    expired: Arc<Mutex<Vec<u64>>>,
}

impl<F: Future> Subject for Driven<F> {
    fn add(&mut self, id: u64, delay: Duration) {
        let expired = Arc::clone(&self.expired);
        assert!(
            self.timer
                .after(delay, move || expired.lock().unwrap().push(id))
                .is_ok()
        );
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Vec<u64> {
        assert!(self.drive.as_mut().poll(context).is_pending());
        mem::take(&mut self.expired.lock().unwrap())
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u64),
    Pass(u64),
}

impl Arbitrary for Step {
    fn arbitrary(random: &mut Gen) -> Self {
        let us = u64::arbitrary(random);
        if bool::arbitrary(random) {
            Step::Add(us % 60_000)
        } else {
            Step::Pass(us % 20_000)
        }
    }
}

struct Run<S> {
    world: World,
    habit: Habit,
    subject: S,
    wakes: Arc<Wakes>,
    /// The deadlines of what has not expired.
    pending: BTreeMap<u64, u64>,
    added: u64,
    polls: u64,
}

impl<S: Subject> Run<S> {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Add(delay) => {
                self.pending.insert(self.added, self.world.now() + delay);
                self.subject.add(self.added, Duration::from_micros(delay));
                self.added += 1;
                self.settle();
            }
            Step::Pass(time) => {
                let end = self.world.now() + time;
                while self.world.step(end) {
                    self.settle();
                }
                self.world.now.store(end, Ordering::Relaxed);
                self.settle();
            }
        }
    }

    /// Polls the task as long as it is woken.
    fn settle(&mut self) {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let now = self.world.now();
        while self.wakes.take() > 0 {
            self.polls += 1;
            let bound = 20 * (1 + self.added + now / TICK);
            assert!(self.polls <= bound, "{} polls in {now} us", self.polls);
            for id in self.subject.poll(&mut Context::from_waker(&waker)) {
                let deadline = self.pending.remove(&id).expect("it expires once");
                assert!(deadline <= now, "{id} is early");
            }
        }
        for (id, deadline) in &self.pending {
            if let Some(slack) = self.habit.slack(*deadline) {
                let at_latest = deadline.next_multiple_of(TICK) + slack;
                assert!(
                    now <= at_latest,
                    "{id} of {deadline} us is late at {now} us"
                );
            }
        }
    }
}

fn run<S: Subject>(world: World, habit: Habit, subject: S, steps: &[Step]) {
    let wakes = Arc::<Wakes>::default();
    wakes.clone().wake(); // It is polled once, as any task.
    let pending = BTreeMap::new();
    let mut run = Run {
        world,
        habit,
        subject,
        wakes,
        pending,
        added: 0,
        polls: 0,
    };
    steps.iter().for_each(|step| run.apply(*step));
}

/// Each sleep ends when half of its time has passed by the queue's clock.
#[test]
fn a_queue_is_in_time_for_hours_on_a_clock_at_half_the_speed_of_its_sleeps() {
    const HOUR: u64 = 3_600_000_000;
    let world = World::new();
    let queue = KeyedQueue::new(world.clock(), world.sleeps(Habit::Half));
    run(
        world,
        Habit::Half,
        queue,
        &[Step::Add(HOUR), Step::Pass(HOUR + 2 * TICK)],
    );
}

#[test]
fn a_queue_is_in_time_on_sleeps_that_are_early_and_never_spins() {
    fn property(habit: Habit, steps: Vec<Step>) {
        let world = World::new();
        let queue = KeyedQueue::new(world.clock(), world.sleeps(habit));
        run(world, habit, queue, &steps);
    }
    crate::quick::check(property as fn(Habit, Vec<Step>), 2_000, 40);
}

#[test]
fn a_drive_is_in_time_on_sleeps_that_are_early_and_never_spins() {
    fn property(habit: Habit, steps: Vec<Step>) {
        let world = World::new();
        let timer = Timer::builder().clock(world.clock()).build().unwrap();
        let drive = Box::pin(timer.drive(world.sleeps(habit)));
        run(
            world,
            habit,
            Driven {
                timer,
                drive,
                expired: Arc::default(),
            },
            &steps,
        );
    }
    crate::quick::check(property as fn(Habit, Vec<Step>), 2_000, 40);
}
