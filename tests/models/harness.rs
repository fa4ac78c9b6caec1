//! The harness: how models are explored, and how their threads are started. Its bounded scheduler
//! runs all schedules with at most so many preemptions, one after another.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::{Config, Runner, thread};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Explores a model at random, with PCT, and exhaustively with few preemptions. It returns how it
/// ended; at least `outcomes` different ends must be seen, so that a model that no longer races is
/// noticed.
pub(crate) fn explore(name: &str, outcomes: usize, model: fn() -> String) {
    let drawn = number("TICKWHEEL_SCHEDULES", 10_000);
    let most = number("TICKWHEEL_EXHAUSTIVE", 2_000);
    if let Ok(schedule) = std::env::var("SHUTTLE_REPLAY") {
        return shuttle::replay(move || drop(model()), &schedule);
    }
    let begun = Arc::new(AtomicUsize::new(0));
    let ends = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let counter = Arc::clone(&begun);
    let log = Arc::clone(&ends);
    let body = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        let end = model();
        log.lock().expect("not poisoned").insert(end);
    };
    let explored = catch_unwind(AssertUnwindSafe(|| {
        let random = schedule(RandomScheduler::new(drawn), &body);
        let pct = schedule(PctScheduler::new(3, drawn), &body);
        let (exhaustive, reach) = deepen(most, &body);
        (random, pct, exhaustive, reach)
    }));
    match explored {
        Ok((random, pct, exhaustive, reach)) => {
            let seen = ends.lock().expect("not poisoned").len();
            let outcomes = if drawn < 1_000 { 1 } else { outcomes };
            assert!(seen >= outcomes, "{name}: only {seen} different outcomes");
            println!("model {name}: {random} random, {pct} PCT, {exhaustive} exhaustive: {reach}");
        }
        Err(panic) => {
            println!(
                "model {name} failed: schedule {}",
                begun.load(Ordering::Relaxed)
            );
            resume_unwind(panic);
        }
    }
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().expect("a number"))
}

/// Makes two calls, each on a thread of its own. Returns what they return.
pub(crate) fn both<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    let mut a = None;
    let mut b = None;
    thread::scope(|scope| {
        scope.spawn(|| a = Some(one()));
        scope.spawn(|| b = Some(other()));
    });
    a.zip(b).expect("they have returned")
}

/// The same with three.
pub(crate) fn all<A: Send, B: Send, C: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
    third: impl FnOnce() -> C + Send,
) -> (A, B, C) {
    let mut a = None;
    let mut b = None;
    let mut c = None;
    thread::scope(|scope| {
        scope.spawn(|| a = Some(one()));
        scope.spawn(|| b = Some(other()));
        scope.spawn(|| c = Some(third()));
    });
    let ((a, b), c) = a.zip(b).zip(c).expect("they have returned");
    (a, b, c)
}

/// What a thread waits for. Rung before, it ends the wait at once.
#[derive(Default)]
pub(crate) struct Bell {
    is_rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.is_rung.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// Waits until it is rung. It stays so, unless the caller changes that.
    pub(crate) fn wait(&self) -> MutexGuard<'_, bool> {
        let mut is_rung = self.is_rung.lock().unwrap();
        while !*is_rung {
            is_rung = self.changed.wait(is_rung).unwrap();
        }
        is_rung
    }

    pub(crate) fn is_rung(&self) -> bool {
        *self.is_rung.lock().unwrap()
    }
}

/// Runs a model by a scheduler, and returns how many schedules were run.
fn schedule(
    scheduler: impl Scheduler + 'static,
    body: &(impl Fn() + Clone + Send + Sync + 'static),
) -> usize {
    Runner::new(scheduler, Config::new()).run(body.clone())
}

/// Runs all schedules without preemptions, with one, with two, and so on, as long as those of one
/// kind are no more than `most`. Returns how many different ones were run, and which kinds fully.
fn deepen(most: usize, body: &(impl Fn() + Clone + Send + Sync + 'static)) -> (usize, String) {
    let mut explored = 0;
    for bound in 0.. {
        let seen = Rc::new(Cell::new(Seen::default()));
        schedule(Bounded::new(bound, most, &seen), body);
        let seen = seen.get();
        explored += seen.at_the_bound;
        if seen.is_cut {
            return (explored, format!("all with fewer than {bound} preemptions"));
        }
        if !seen.is_bound {
            break;
        }
    }
    (explored, "all there are".to_owned())
}

/// What a run of the scheduler has seen.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// The schedules that took as many preemptions as the bound allows.
    pub(crate) at_the_bound: usize,
    /// The bound has kept a thread from going on: there are more schedules.
    pub(crate) is_bound: bool,
    /// It was stopped before it had run all schedules within the bound.
    pub(crate) is_cut: bool,
}

/// Searches the tree of all choices depth-first. What is expected is free, and anything else counts
/// as a preemption:
/// - A thread that can go on is expected to.
/// - After one that yields, the next in turn is expected. It does not go on itself before another
///   one has: it would find what it found before.
/// - After one that waits or has ended, all others are expected alike.
/// - A random bit is expected to be set.
pub(crate) struct Bounded {
    bound: usize,
    /// So many schedules are run at most.
    most: usize,
    run: usize,
    /// The choices of this schedule: the one taken, and how many there are.
    path: Vec<(usize, usize)>,
    depth: usize,
    preemptions: usize,
    seen: Rc<Cell<Seen>>,
}

impl Bounded {
    pub(crate) fn new(bound: usize, most: usize, seen: &Rc<Cell<Seen>>) -> Self {
        let seen = Rc::clone(seen);
        Bounded {
            bound,
            most,
            run: 0,
            path: Vec::new(),
            depth: 0,
            preemptions: 0,
            seen,
        }
    }

    fn note(&self, note: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        note(&mut seen);
        self.seen.set(seen);
    }

    /// Makes a choice, all but the first of which count as preemptions unless they are free.
    fn choose(&mut self, choices: usize, are_free: bool) -> usize {
        if choices == 1 {
            return 0;
        }
        if !are_free && self.preemptions == self.bound {
            self.note(|seen| seen.is_bound = true);
            return 0;
        }
        if self.depth == self.path.len() {
            self.path.push((0, choices));
        }
        let (taken, known) = self.path[self.depth];
        assert_eq!(choices, known, "the model differs from run to run");
        self.depth += 1;
        self.preemptions += usize::from(!are_free && taken > 0);
        taken
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.run > 0 {
            if self.preemptions == self.bound {
                self.note(|seen| seen.at_the_bound += 1);
            }
            let is_last = |(taken, choices): &(usize, usize)| taken + 1 == *choices;
            while self.path.last().is_some_and(is_last) {
                self.path.pop();
            }
            self.path.last_mut()?.0 += 1;
        }
        if self.run == self.most {
            self.note(|seen| seen.is_cut = true);
            return None;
        }
        self.run += 1;
        self.depth = 0;
        self.preemptions = 0;
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let own = current.and_then(|own| runnable.iter().position(|task| task.id() == own));
        let next = current.map_or(0, |own| runnable.partition_point(|task| task.id() <= own));
        let (first, choices) = match own {
            Some(own) if !is_yielding => (own, runnable.len()),
            Some(_) if runnable.len() > 1 => (next, runnable.len() - 1),
            _ => (next, runnable.len()),
        };
        let choice = self.choose(choices, own.is_none());
        Some(runnable[(first + choice) % runnable.len()].id())
    }

    fn next_u64(&mut self) -> u64 {
        1 - self.choose(2, false) as u64
    }
}
