//! `LocalTimer` against a model that anybody can check by reading: a list of all timers ever added.
//!
//! Random operations, biased to the edges of slots and levels, run on both; after every step
//! everything that can be seen of the timer is compared.
//!
//! What the timer promises, and so what is compared:
//! - a timer expires in the first `advance` to its deadline or beyond, in no other;
//! - timers leave in the order of their deadlines; one whose deadline had passed when it was added,
//!   or moved up, leaves between those of its deadline and those of the tick in which that was;
//! - `next_expiration` is not before the present and not after the first deadline; none if nothing
//!   is pending;
//! - the last deadline that is told apart is `u64::MAX - 1`: the one after it counts as that.

#[path = "common/delta.rs"]
mod delta;
#[cfg(test)]
#[path = "common/quick.rs"]
mod quick;

use delta::Delta;
use quickcheck::{Arbitrary, Gen};
use tickwheel::{LocalTimer, Popped, TimerKey};

/// The last deadline.
const END: u64 = u64::MAX - 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    wheel_size: usize,
    start: u64,
    /// A timer at the end of time keeps the coarsest wheel in use.
    far_timer: bool,
}

impl Arbitrary for Config {
    fn arbitrary(g: &mut Gen) -> Self {
        let starts = [
            0,
            0,
            1,
            1 << 30,
            1 << 32,
            1 << 36,
            1 << 42,
            END - 2000,
            END - 70,
            END,
        ];
        let base: u64 = *g.choose(&starts).expect("not empty");
        let wheel_size = *g
            .choose(&[4, 4, 4, 8, 8, 8, 16, 16, 64, 512])
            .expect("not empty");
        let before = *g.choose(&[0, 0, 1, 2, 37]).expect("not empty");
        let far_timer = u8::arbitrary(g) % 4 == 0;
        Config {
            wheel_size,
            start: base.saturating_sub(before),
            far_timer,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let nearer = (self.start > 0).then_some(Config { start: 0, ..*self });
        let single = self.far_timer.then_some(Config {
            far_timer: false,
            ..*self
        });
        Box::new(nearer.into_iter().chain(single))
    }
}

/// What a timer may be moved to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    Earlier,
    Later,
    Any,
}

/// Timers are chosen by their number, modulo of how many there were, gone ones included.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Add(Delta),
    Cancel(usize),
    Move(To, usize, Delta),
    Advance(Delta),
    /// To where `next_expiration` says.
    Follow,
    /// One that is due then.
    Pop(Delta),
    /// Goes on with a clone.
    Clone,
}

impl Arbitrary for Op {
    fn arbitrary(g: &mut Gen) -> Self {
        // The latest ones more often than the others: most others are gone.
        let nth = usize::arbitrary(g) % 80;
        match u8::arbitrary(g) % 16 {
            0..=5 => Op::Add(Delta::arbitrary(g)),
            6..=7 => Op::Cancel(nth),
            8..=10 => {
                let to = *g
                    .choose(&[To::Earlier, To::Later, To::Any])
                    .expect("not empty");
                Op::Move(to, nth, Delta::arbitrary(g))
            }
            11 => Op::Follow,
            12 => Op::Pop(Delta::arbitrary(g)),
            13 if nth == 0 => Op::Clone,
            _ => Op::Advance(Delta::arbitrary(g)),
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        match *self {
            Op::Add(delta) => Box::new(delta.shrink().map(Op::Add)),
            Op::Advance(delta) => Box::new(delta.shrink().map(Op::Advance)),
            Op::Pop(delta) => Box::new(delta.shrink().map(Op::Pop)),
            Op::Move(to, nth, delta) => {
                Box::new(delta.shrink().map(move |delta| Op::Move(to, nth, delta)))
            }
            Op::Cancel(_) | Op::Follow | Op::Clone => quickcheck::empty_shrinker(),
        }
    }
}

struct Timer {
    key: TimerKey,
    deadline: u64,
    /// It leaves with those of this tick, if its deadline is not later.
    filed: u64,
    pending: bool,
}

impl Timer {
    /// Returns the last tick with whose timers this one leaves.
    fn until(&self) -> u64 {
        self.filed.max(self.deadline)
    }
}

struct Run {
    real: LocalTimer<u32>,
    size: u64,
    now: u64,
    timers: Vec<Timer>,
}

impl Run {
    fn new(config: Config) -> Self {
        let real = LocalTimer::starting_at(config.start, config.wheel_size);
        let size = config.wheel_size as u64;
        let now = config.start;
        let timers = Vec::new();
        let mut run = Run {
            real,
            size,
            now,
            timers,
        };
        if config.far_timer {
            run.add(END);
        }
        run
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Add(delta) => self.add(self.tick(delta)),
            Op::Cancel(nth) => self.cancel(nth),
            Op::Move(to, nth, delta) => self.move_to(to, nth, self.tick(delta)),
            Op::Advance(delta) => self.advance(self.tick(delta)),
            Op::Follow => {
                if let Some(next) = self.real.next_expiration() {
                    self.advance(next);
                }
            }
            Op::Pop(delta) => self.pop(self.tick(delta)),
            Op::Clone => self.real = self.real.clone(),
        }
        self.compare();
    }

    fn tick(&self, delta: Delta) -> u64 {
        let pending = self.timers.iter().filter(|timer| timer.pending);
        let deadlines: Vec<u64> = pending.map(|timer| timer.deadline).collect();
        delta.resolve(self.now, self.size, &deadlines)
    }

    fn nth(&self, nth: usize) -> Option<usize> {
        let len = self.timers.len();
        (len > 0).then(|| len - 1 - nth % len)
    }

    fn add(&mut self, deadline: u64) {
        let key = self.real.add(deadline, self.timers.len() as u32);
        let deadline = deadline.min(END);
        let filed = deadline.max(self.now);
        self.timers.push(Timer {
            key,
            deadline,
            filed,
            pending: true,
        });
    }

    fn cancel(&mut self, nth: usize) {
        let Some(nth) = self.nth(nth) else { return };
        let timer = &mut self.timers[nth];
        let expected = timer.pending.then_some(nth as u32);
        assert_eq!(self.real.cancel(timer.key), expected, "cancel of {nth}");
        timer.pending = false;
    }

    fn move_to(&mut self, to: To, nth: usize, deadline: u64) {
        let Some(nth) = self.nth(nth) else { return };
        let timer = &mut self.timers[nth];
        let was_pending = match to {
            To::Earlier => self.real.hasten(timer.key, deadline),
            To::Later => self.real.touch(timer.key, deadline),
            To::Any => self.real.reschedule(timer.key, deadline),
        };
        assert_eq!(was_pending, timer.pending, "move of {nth}");
        let is_moved = match to {
            To::Earlier => deadline.min(END) < timer.deadline,
            To::Later => deadline.min(END) > timer.deadline,
            To::Any => true,
        };
        if !is_moved {
            return;
        }
        let moved = deadline.min(END).max(self.now);
        // What was extended may be filed by its former deadline by now, and stays there.
        let is_filed_later = timer.deadline > moved;
        timer.filed = if is_filed_later { moved } else { timer.until() };
        timer.deadline = deadline.min(END);
    }

    fn advance(&mut self, now: u64) {
        let mut fired = Vec::new();
        let count = self.real.advance(now, |id| fired.push(id));
        self.now = self.now.max(now);
        assert_eq!(count, fired.len());
        let mut latest = 0;
        for timer in fired.iter().map(|id| &self.timers[*id as usize]) {
            assert!(latest <= timer.until(), "{fired:?}");
            latest = latest.max(timer.deadline);
        }
        fired.sort_unstable();
        let mut expected = Vec::new();
        for (id, timer) in self
            .timers
            .iter_mut()
            .enumerate()
            .filter(|(_, timer)| timer.pending)
        {
            if timer.deadline <= self.now {
                timer.pending = false;
                expected.push(id as u32);
            }
        }
        assert_eq!(fired, expected, "expired at {}", self.now);
    }

    fn pop(&mut self, now: u64) {
        self.now = self.now.max(now.min(END));
        let popped = self.real.pop(now);
        let is_due = |timer: &&Timer| timer.pending && timer.deadline <= self.now;
        let first = self.timers.iter().filter(is_due).map(Timer::until).min();
        let Some(Popped {
            key,
            deadline,
            task: id,
        }) = popped
        else {
            assert!(
                !self.timers.iter().any(|timer| is_due(&timer)),
                "something is due"
            );
            return self.advance(now);
        };
        let timer = &mut self.timers[id as usize];
        assert!(timer.pending && timer.key == key && timer.deadline <= self.now);
        assert_eq!(timer.deadline, deadline);
        assert!(Some(timer.deadline) <= first, "{id} is not the first");
        timer.pending = false;
    }

    /// Takes all that is pending out of a clone.
    fn drain(&self) {
        let mut drained = self.real.clone().drain().collect::<Vec<_>>();
        assert!(drained.is_sorted_by_key(|(deadline, _)| *deadline));
        let ids = 0..self.timers.len() as u32;
        let pending = |id: u32| {
            let timer = &self.timers[id as usize];
            timer.pending.then_some((timer.deadline, id))
        };
        drained.sort_by_key(|(_, id)| *id);
        assert_eq!(drained, ids.filter_map(pending).collect::<Vec<_>>());
    }

    fn compare(&mut self) {
        let mut pending = 0;
        let mut first = u64::MAX;
        for (id, timer) in self.timers.iter().enumerate() {
            let deadline = timer.pending.then_some(timer.deadline);
            assert_eq!(self.real.deadline(timer.key), deadline, "deadline of {id}");
            let mut task = timer.pending.then_some(id as u32);
            assert_eq!(self.real.get(timer.key), task.as_ref());
            assert_eq!(self.real.get_mut(timer.key), task.as_mut());
            pending += usize::from(timer.pending);
            first = first.min(deadline.unwrap_or(u64::MAX));
        }
        assert_eq!(
            (self.real.len(), self.real.now()),
            (pending, self.now.min(END))
        );
        let peeked = self
            .real
            .peek()
            .map(|(key, deadline, task)| (key, deadline, *task));
        assert_eq!(
            peeked.map(|(_, deadline, _)| deadline),
            (pending > 0).then_some(first)
        );
        let is_there = |it: (TimerKey, u64, &u32)| self.real.get(it.0) == Some(it.2);
        assert_eq!(self.real.iter().filter(|it| is_there(*it)).count(), pending);
        assert!(peeked.is_none_or(|(key, _, task)| self.real.get(key) == Some(&task)));
        assert_eq!(self.real.is_empty(), pending == 0);
        match self.real.next_expiration() {
            None => assert_eq!(pending, 0, "something is pending and never expires"),
            Some(next) => {
                assert!(pending > 0, "nothing is pending");
                assert!(
                    next >= self.now.min(END),
                    "next expiration {next}, it is {}",
                    self.now
                );
                assert!(
                    next <= first.max(self.now),
                    "next expiration {next}, first {first}"
                );
            }
        }
        // Looks at every slot of every level.
        if self.size <= 64 || self.timers.len() % 8 == 0 {
            self.real.assert_invariants();
        }
    }
}

/// Does all this to a timer and to the model: also what `tests/lab/fuzz/` does.
pub(crate) fn property(config: Config, ops: Vec<Op>) {
    let mut run = Run::new(config);
    ops.into_iter().for_each(|op| run.apply(op));
    run.drain();
    run.advance(END);
    run.compare();
    assert_eq!(
        run.real.len(),
        0,
        "all that is left expires at the end of time"
    );
}

#[test]
fn the_timer_does_what_the_model_says_after_every_step() {
    quick::check(property as fn(Config, Vec<Op>), 5000, 80);
}
