//! What a round is like: everything about it follows from its seed; and its timer, with its
//! executor.

use crate::ledger::{End, drop_as};
use fastrand::Rng;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tickwheel::{Batch, Clock, Executor, Task, Timer, Worker};

/// Long-lived threads that work in each round.
pub(crate) const THREADS: usize = 4;

/// In a debug build all takes about eight times as long.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 8 } else { 1 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executing {
    Inline,
    /// Sleeps now and then.
    Blocking,
    /// Refuses some, which `on_refused` runs.
    RunsRefused,
    /// Refuses some, which `on_refused` drops.
    DropsRefused,
    /// Refuses some, and there is no `on_refused`.
    Loses,
    /// Panics now and then, with a task in its hands or without.
    Panics,
    /// Leaves part of each batch lying, which counts as refused and is run then.
    Leaves,
    Worker,
    /// One with room for three tasks. What it refuses is run.
    NarrowWorker,
}

/// What the threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Adds, cancels and moves timers and advances the clock, as fast as possible.
    Timers,
    /// The same, and tasks that call back, and all that is rarely called.
    Calls,
    Everything,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All is quiet, everything due has to have expired, and what is left is shut down.
    Settle,
    /// A thread shuts the timer down while the others work.
    Shutdown,
    /// The last thread to let go of the timer drops it, with all that is pending.
    Drop,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) seed: u64,
    pub(crate) wheel_size: usize,
    pub(crate) tick: Duration,
    pub(crate) shards: usize,
    pub(crate) max_pending: Option<usize>,
    pub(crate) manual: bool,
    pub(crate) reaper: bool,
    /// Whether a thread does nothing but advance the timer.
    pub(crate) advancer: bool,
    pub(crate) executing: Executing,
    pub(crate) mix: Mix,
    /// Of each thread.
    pub(crate) operations: u64,
    pub(crate) ending: Ending,
}

/// Random numbers from a seed.
pub(crate) struct Random(Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(Rng::with_seed(seed))
    }

    /// Returns a number from 0 to less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Returns true in one of `of` cases.
    pub(crate) fn is_rare(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Takes one of several things.
    pub(crate) fn take<T>(&mut self, of: &mut Vec<T>) -> Option<T> {
        let nth = self.below(of.len().max(1) as u64) as usize;
        (nth < of.len()).then(|| of.swap_remove(nth))
    }
}

impl Config {
    pub(crate) fn new(seed: u64) -> Self {
        use Executing::{
            Blocking, DropsRefused, Inline, Leaves, Loses, NarrowWorker, Panics, RunsRefused,
            Worker,
        };
        let mut random = Random::new(seed);
        let random = &mut random;
        let manual = random.below(5) < 3;
        let wheel_size = match random.below(32) {
            0 => 1 << 17,
            1..4 => 512,
            _ => random.one(&[4, 4, 4, 4, 4, 8, 8, 16]),
        };
        let [ns, us, ms] = [1, 1_000, 1_000_000].map(Duration::from_nanos);
        let ticks = [us, us, us, ns, ms, Duration::from_secs(1)];
        let mix = random.one(&[Mix::Timers, Mix::Timers, Mix::Calls, Mix::Everything]);
        let operations = match mix {
            Mix::Timers => 4_000 + random.below(40_000),
            Mix::Calls => 2_000 + random.below(8_000),
            Mix::Everything => 1_000 + random.below(4_000),
        };
        let kinds = [
            Blocking,
            RunsRefused,
            DropsRefused,
            Loses,
            Panics,
            Leaves,
            Worker,
            NarrowWorker,
        ];
        let executing = if mix == Mix::Timers && !random.is_rare(4) || random.is_rare(3) {
            Inline
        } else {
            random.one(&kinds)
        };
        let reaper = random.below(4) > 0;
        Config {
            seed,
            wheel_size,
            tick: ticks[random.below(if manual { 6 } else { 5 }) as usize],
            shards: random.one(&[1, 1, 2, 4]),
            max_pending: random.is_rare(5).then(|| 1 + random.below(60) as usize),
            manual,
            reaper,
            advancer: !reaper || random.is_rare(3),
            executing,
            mix,
            operations: operations / SLOWNESS,
            ending: random.one(&[
                Ending::Settle,
                Ending::Settle,
                Ending::Shutdown,
                Ending::Drop,
            ]),
        }
    }

    /// Returns whether tasks may vanish without a trace: then no sleeper is sure to be woken.
    pub(crate) fn loses(&self) -> bool {
        matches!(
            self.executing,
            Executing::Loses | Executing::Panics | Executing::DropsRefused
        )
    }

    fn tick_nanos(&self) -> u64 {
        self.tick.as_nanos() as u64
    }

    /// Returns nanoseconds at an edge of a level, or one tick or nanosecond beside it; counted from
    /// `now`, which is aligned to the level first in half of the cases.
    fn edge(&self, random: &mut Random, now: u64) -> u64 {
        let size = self.wheel_size as u64;
        let level = random.one(&[0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 8]);
        let span = (size / 2).saturating_pow(level);
        let slots = random.one(&[1, 2, size / 2, size - 1, size, size + 1]);
        let ticks = span
            .saturating_mul(slots)
            .saturating_add_signed(random.one(&[0, 0, 0, 1, -1]));
        let nanos = ticks.saturating_mul(self.tick_nanos());
        let nanos = nanos.saturating_add_signed(random.one(&[0, 0, 0, 1, -1]));
        let slot = span.saturating_mul(self.tick_nanos());
        if random.is_rare(2) {
            nanos
        } else {
            nanos.saturating_sub(now % slot)
        }
    }

    /// Returns after how many nanoseconds something is due, if it is `now` in nanoseconds.
    pub(crate) fn delay(&self, random: &mut Random, now: u64) -> u64 {
        let tick = self.tick_nanos();
        let bits = random.below(63);
        match random.below(32) {
            0..2 => 0,
            2..12 => (random.below(40) * tick).saturating_sub(random.below(2)),
            12..15 if !self.manual => random.below(2_000_000),
            12..20 => self.edge(random, now),
            // A moment that many have in common.
            20..26 => {
                let length = 64 * tick;
                let nth = random.below(3);
                (now / length + nth)
                    .saturating_mul(length)
                    .saturating_sub(now)
            }
            26..29 => 1 + random.below(3 * tick),
            29 => random
                .one(&[1_u64, 2, 1 << 31, 1 << 32, 1 << 33, 1 << 42])
                .saturating_mul(tick),
            30 => u64::MAX,
            _ => (u64::MAX >> bits).saturating_sub(random.below(1000)),
        }
    }

    /// Returns by how many nanoseconds a manual clock is moved.
    pub(crate) fn step(&self, random: &mut Random, now: u64) -> u64 {
        const YEAR: u64 = 365 * 24 * 3_600 * 1_000_000_000;
        match random.below(64) {
            0..40 => random.below(6) * self.tick_nanos() + random.below(2),
            40..60 => self.edge(random, now).min(YEAR),
            60..63 => random.below(1000) * self.tick_nanos(),
            _ if random.is_rare(8) => YEAR * (1 + random.below(10)),
            _ => random.below(YEAR / 365),
        }
    }
}

/// Returns a function that returns true every so many times.
fn sometimes(of: u64) -> impl Fn() -> bool + Send + Sync {
    let count = AtomicU64::new(0);
    move || (count.fetch_add(1, Relaxed) + 1) % of == 0
}

/// Refuses some.
fn refusing() -> impl Fn(Task) -> Result<(), Task> + Send + Sync {
    let refuses = sometimes(5);
    move |task: Task| {
        if refuses() {
            return Err(task);
        }
        task.run();
        Ok(())
    }
}

struct Leaves;

impl Executor<Task> for Leaves {
    fn execute(&self, task: Task) -> Result<(), Task> {
        Err(task)
    }

    fn execute_batch(&self, batch: &mut Batch<'_, Task>) {
        for task in batch.by_ref().take(4) {
            task.run();
        }
    }
}

pub(crate) fn build(config: &Config, clock: Clock) -> Timer {
    let mut builder = Timer::builder()
        .name("torture")
        .tick(config.tick)
        .wheel_size(config.wheel_size)
        .shards(config.shards)
        .warn_on_drop(false)
        .clock(clock);
    if let Some(max_pending) = config.max_pending {
        builder = builder.max_pending(max_pending);
    }
    let builder = match config.executing {
        Executing::Inline => builder,
        Executing::Blocking => {
            let blocks = sometimes(40);
            builder.executor(move |task: Task| {
                if blocks() {
                    std::thread::sleep(Duration::from_micros(20));
                }
                task.run();
            })
        }
        Executing::RunsRefused => builder.executor(refusing()).on_refused(Task::run),
        Executing::DropsRefused => builder
            .executor(refusing())
            .on_refused(|task| drop_as(End::Rejected, task)),
        Executing::Loses => builder.executor(refusing()),
        Executing::Panics => {
            let panics = sometimes(11);
            builder.executor(move |task: Task| {
                assert!(!panics(), "planted");
                task.run();
            })
        }
        Executing::Leaves => builder.executor(Leaves).on_refused(Task::run),
        Executing::Worker => {
            builder.executor(Worker::unbounded("worker", Task::run).expect("a thread"))
        }
        Executing::NarrowWorker => builder
            .executor(Worker::bounded("worker", 3, Task::run).expect("a thread"))
            .on_refused(Task::run),
    };
    let timer = if config.reaper {
        builder.start()
    } else {
        builder.build()
    };
    timer.expect("the options are valid")
}
