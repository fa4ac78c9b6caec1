//! Every short sequence of operations at the edges of the smallest wheels, on `LocalTimer` and on
//! `Timer`, against a model that anybody can check by reading: a list of all timers ever added.
//!
//! The random models see longer sequences; this one leaves none out, in a release build. A debug
//! build takes every eleventh. `TICKWHEEL_SEQUENCES=5` takes those of five operations as well:
//! twelve million for each of the two timers.

use std::env::var;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::{LocalTimer, ManualClock, Timeout, Timer, TimerEntry, TimerKey};

/// The last deadline.
const END: u64 = u64::MAX - 1;
const WHEEL_SIZE: usize = 4;
/// The low 32 bits of a tick wrap around soon after the second, time ends soon after the third.
const STARTS: [u64; 3] = [0, (1 << 32) - 3, u64::MAX - 70];
/// Has no divisor in common with the number of operations, so none is left out at any place.
const STRIDE: usize = if cfg!(debug_assertions) { 11 } else { 1 };

/// All times are so many ticks ahead.
#[derive(Clone, Copy, Debug)]
enum Op {
    Add(u64),
    CancelFirst,
    CancelLast,
    MoveFirst(u64),
    MoveLast(u64),
    Advance(u64),
}

const OPS: [Op; 21] = [
    Op::Add(0),
    Op::Add(1),
    Op::Add(2),
    Op::Add(3),
    Op::Add(4),
    Op::Add(7),
    Op::Add(15),
    Op::Add(16),
    Op::Add(17),
    Op::Add(63),
    Op::Add(65),
    Op::Add(u64::MAX),
    Op::CancelFirst,
    Op::CancelLast,
    Op::MoveFirst(0),
    Op::MoveFirst(6),
    Op::MoveLast(6),
    Op::MoveLast(1 << 32),
    Op::Advance(1),
    Op::Advance(5),
    Op::Advance(64),
];

/// What is compared with the model. Timer `n` has the task `n`.
trait Real {
    /// Creates a timer at the tick `now`.
    fn start(now: u64) -> Self;
    fn add(&mut self, deadline: u64, id: usize);
    fn cancel(&mut self, id: usize) -> bool;
    fn move_to(&mut self, id: usize, deadline: u64) -> bool;
    /// Returns what expires, in order.
    fn advance(&mut self, now: u64) -> Vec<usize>;
    fn len(&self) -> usize;
    fn next_expiration(&mut self) -> Option<u64>;
}

struct Local(LocalTimer<usize>, Vec<TimerKey>);

impl Real for Local {
    fn start(now: u64) -> Self {
        Local(LocalTimer::starting_at(now, WHEEL_SIZE), Vec::new())
    }

    fn add(&mut self, deadline: u64, id: usize) {
        let key = self.0.add(deadline, id);
        self.1.push(key);
    }

    fn cancel(&mut self, id: usize) -> bool {
        self.0.cancel(self.1[id]).is_some()
    }

    fn move_to(&mut self, id: usize, deadline: u64) -> bool {
        self.0.reschedule(self.1[id], deadline)
    }

    fn advance(&mut self, now: u64) -> Vec<usize> {
        let mut expired = Vec::new();
        self.0.advance(now, |id| expired.push(id));
        expired
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn next_expiration(&mut self) -> Option<u64> {
        self.0.next_expiration()
    }
}

/// Its tick is a nanosecond.
struct Shared {
    timer: Timer<usize>,
    clock: ManualClock,
    origin: Instant,
    expired: Arc<Mutex<Vec<usize>>>,
    timeouts: Vec<Timeout<usize>>,
}

impl Shared {
    fn instant(&self, tick: u64) -> Instant {
        self.origin + Duration::from_nanos(tick)
    }
}

impl Real for Shared {
    fn start(now: u64) -> Self {
        let clock = ManualClock::new();
        let expired = Arc::default();
        let sink: Arc<Mutex<Vec<usize>>> = Arc::clone(&expired);
        let builder = Timer::builder()
            .shards(1)
            .wheel_size(WHEEL_SIZE)
            .clock(clock.clone());
        let builder = builder.tick(Duration::from_nanos(1));
        let timer = builder
            .executor(move |id| sink.lock().unwrap().push(id))
            .build();
        let timer = timer.expect("the options are valid");
        let origin = clock.now();
        let mut real = Shared {
            timer,
            clock,
            origin,
            expired,
            timeouts: Vec::new(),
        };
        assert_eq!(real.advance(now), []);
        real
    }

    fn add(&mut self, deadline: u64, id: usize) {
        let added = self.timer.add(TimerEntry::at(self.instant(deadline), id));
        self.timeouts.push(added.expect("there is no limit"));
    }

    fn cancel(&mut self, id: usize) -> bool {
        self.timeouts[id].cancel().is_cancelled()
    }

    fn move_to(&mut self, id: usize, deadline: u64) -> bool {
        self.timeouts[id].reschedule(self.instant(deadline))
    }

    fn advance(&mut self, now: u64) -> Vec<usize> {
        self.clock.advance_to(self.instant(now));
        self.timer.advance_clock(Duration::ZERO);
        std::mem::take(&mut self.expired.lock().unwrap())
    }

    fn len(&self) -> usize {
        self.timer.len()
    }

    fn next_expiration(&mut self) -> Option<u64> {
        let next = self.timer.next_expiration()?;
        u64::try_from((next - self.origin).as_nanos()).ok()
    }
}

#[derive(Debug)]
struct Expected {
    deadline: u64,
    /// It leaves with those of this tick, if its deadline is not later.
    filed: u64,
    is_pending: bool,
}

/// Both, side by side.
struct Run<R> {
    real: R,
    now: u64,
    timers: Vec<Expected>,
}

impl<R: Real> Run<R> {
    /// Returns false if this is the same as a sequence without `op`.
    fn apply(&mut self, op: Op) -> bool {
        let last = self.timers.len().wrapping_sub(1);
        match op {
            Op::Add(ahead) => {
                let deadline = self.now.saturating_add(ahead).min(END);
                self.real.add(deadline, self.timers.len());
                let filed = deadline.max(self.now);
                self.timers.push(Expected {
                    deadline,
                    filed,
                    is_pending: true,
                });
            }
            Op::CancelFirst => return self.cancel(0),
            Op::CancelLast => return last > 0 && self.cancel(last),
            Op::MoveFirst(ahead) => return self.move_to(0, ahead),
            Op::MoveLast(ahead) => return self.move_to(last, ahead),
            Op::Advance(ahead) => self.advance(self.now.saturating_add(ahead).min(END - 1)),
        }
        true
    }

    fn cancel(&mut self, id: usize) -> bool {
        let Some(timer) = self.timers.get_mut(id) else {
            return false;
        };
        let was_pending = std::mem::replace(&mut timer.is_pending, false);
        assert_eq!(self.real.cancel(id), was_pending);
        true
    }

    fn move_to(&mut self, id: usize, ahead: u64) -> bool {
        let Some(timer) = self.timers.get_mut(id) else {
            return false;
        };
        let deadline = self.now.saturating_add(ahead).min(END);
        let is_filed_later = timer.deadline > deadline.max(self.now);
        // What was extended may be filed by its former deadline by now, and stays there.
        let until = if is_filed_later {
            deadline
        } else {
            timer.filed.max(timer.deadline)
        };
        timer.filed = until.max(self.now);
        timer.deadline = deadline;
        assert_eq!(self.real.move_to(id, timer.deadline), timer.is_pending);
        true
    }

    fn advance(&mut self, now: u64) {
        self.now = now;
        let expired = self.real.advance(now);
        let mut latest = 0;
        for timer in expired.iter().map(|id| &self.timers[*id]) {
            assert!(
                latest <= timer.filed.max(timer.deadline),
                "{expired:?}: their order"
            );
            latest = latest.max(timer.deadline);
        }
        for (id, timer) in self.timers.iter_mut().enumerate() {
            let is_due = timer.is_pending && timer.deadline <= now;
            let times = expired.iter().filter(|expired| **expired == id).count();
            assert_eq!(times, usize::from(is_due), "how often {id} expired");
            timer.is_pending &= !is_due;
        }
    }

    fn compare(&mut self) {
        let pending = self.timers.iter().filter(|timer| timer.is_pending);
        assert_eq!(self.real.len(), pending.clone().count());
        let first = pending.map(|timer| timer.deadline.max(self.now)).min();
        let next = self.real.next_expiration();
        // A `Timer` does not wait for what never expires.
        let comes = first.is_some_and(|first| first < END);
        assert!(next.is_some() || !comes, "{first:?}");
        let is_right =
            next.is_none_or(|next| next >= self.now && first.is_some_and(|first| next <= first));
        assert!(is_right, "{next:?} {first:?} {}", self.now);
    }
}

/// Says which sequence it was, if what is done to it panics.
struct Named<'a>(u64, &'a [Op]);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("from {} on: {:?}", self.0, self.1);
        }
    }
}

/// Does a sequence, and then expires all that ever does.
fn run<R: Real>(start: u64, ops: &[Op]) {
    let _named = Named(start, ops);
    let mut run = Run {
        real: R::start(start),
        now: start,
        timers: Vec::new(),
    };
    if !ops.iter().all(|op| run.apply(*op)) {
        return;
    }
    run.compare();
    run.advance(END - 1);
    run.compare();
}

fn every_sequence<R: Real>() {
    let longest = var("TICKWHEEL_SEQUENCES").map_or(4, |longest| longest.parse().expect("number"));
    let sequences = |len: u32| (0..OPS.len().pow(len)).map(move |number| (len, number));
    for (len, number) in (1..=longest).flat_map(sequences).step_by(STRIDE) {
        let digits = (0..len).map(|place| number / OPS.len().pow(place) % OPS.len());
        let ops: Vec<Op> = digits.map(|digit| OPS[digit]).collect();
        STARTS.into_iter().for_each(|start| run::<R>(start, &ops));
    }
}

#[test]
fn a_local_timer_does_in_every_short_sequence_what_the_model_says() {
    every_sequence::<Local>();
}

#[test]
fn a_timer_does_in_every_short_sequence_what_the_model_says() {
    every_sequence::<Shared>();
}
