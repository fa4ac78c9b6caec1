//! The harness: how models are explored.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Explores a model with both schedulers. It returns how it ended; at least `outcomes` different
/// ends must be seen, so that a model that no longer races is noticed.
pub(crate) fn explore(name: &str, outcomes: usize, model: fn() -> String) {
    if let Ok(schedule) = std::env::var("SHUTTLE_REPLAY") {
        return shuttle::replay(move || drop(model()), &schedule);
    }
    let wanted = std::env::var("TICKWHEEL_SCHEDULES");
    let wanted = wanted.map_or(10_000, |wanted| wanted.parse().expect("a number of schedules"));
    let begun = Arc::new(AtomicUsize::new(0));
    let ends = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let (counter, log) = (Arc::clone(&begun), Arc::clone(&ends));
    let body = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        let end = model();
        log.lock().expect("not poisoned").insert(end);
    };
    let both = body.clone();
    let explored = catch_unwind(AssertUnwindSafe(|| {
        Runner::new(RandomScheduler::new(wanted), Config::new()).run(body)
            + Runner::new(PctScheduler::new(3, wanted), Config::new()).run(both)
    }));
    match explored {
        Ok(schedules) => {
            let seen = ends.lock().expect("not poisoned").len();
            assert!(seen >= outcomes || wanted < 1_000, "{name}: only {seen} different outcomes");
            println!("model {name}: {schedules} schedules");
        }
        Err(panic) => {
            println!("model {name} failed: schedule {}", begun.load(Ordering::Relaxed));
            resume_unwind(panic);
        }
    }
}
