//! The harness: how models are explored, and how their threads are started.

#[path = "bounded.rs"]
mod bounded;

use bounded::{Bounded, Seen};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
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
    run(name, if drawn < 1_000 { 1 } else { outcomes }, drawn, most, model);
}

/// Explores a model that is small enough for that exhaustively, with no preemptions, with one, and
/// so on.
pub(crate) fn exhaust(name: &str, outcomes: usize, model: fn() -> String) {
    run(name, outcomes, 0, 50 * number("TICKWHEEL_EXHAUSTIVE", 2_000), model);
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().expect("a number"))
}

fn run(name: &str, outcomes: usize, drawn: usize, most: usize, model: fn() -> String) {
    if let Ok(schedule) = std::env::var("SHUTTLE_REPLAY") {
        return shuttle::replay(move || drop(model()), &schedule);
    }
    let begun = Arc::new(AtomicUsize::new(0));
    let ends = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let (counter, log) = (Arc::clone(&begun), Arc::clone(&ends));
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
            assert!(seen >= outcomes, "{name}: only {seen} different outcomes");
            println!("model {name}: {random} random, {pct} PCT, {exhaustive} exhaustive: {reach}");
        }
        Err(panic) => {
            println!("model {name} failed: schedule {}", begun.load(Ordering::Relaxed));
            resume_unwind(panic);
        }
    }
}

/// Makes two calls, each on a thread of its own. Returns what they return.
pub(crate) fn both<A: Send, B: Send>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B + Send,
) -> (A, B) {
    let (mut a, mut b) = (None, None);
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
    let (mut a, mut b, mut c) = (None, None, None);
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
