//! Retries of failed registrations, with exponential backoff and jitter.
//!
//! ```text
//! cargo run -p tickwheel-services --features retry --bin retry
//! cargo run -p tickwheel-services --features retry --bin retry -- --check
//! ```
//!
//! The registry fails on schedule. The exit status is 1 if a service was not registered, was tried
//! too early or too often, or blocked itself forever.

use backon::{BackoffBuilder, ExponentialBuilder};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_services::retry::{Attempt, Failback, Operation};
use tickwheel_services::{Timeline, happens, is_check};

/// Tries after the first one.
const RETRIES: usize = 4;
/// Services that fail all at once.
const WORKERS: usize = 200;

/// A registry that fails as often as a service's name says: `orders 3`.
struct Registry {
    timeline: Timeline,
    /// When each service tried to register.
    tries: Mutex<HashMap<String, Vec<Instant>>>,
}

impl Registry {
    fn register(&self, service: &str) -> bool {
        let mut all = self.tries.lock();
        let tries = all.entry(service.to_owned()).or_default();
        tries.push(Instant::now());
        let failures = service
            .split(' ')
            .next_back()
            .and_then(|count| count.parse().ok());
        let is_registered = tries.len() > failures.unwrap_or(0);
        if !service.starts_with("worker") {
            let outcome = if is_registered {
                "registered"
            } else {
                "failed"
            };
            self.timeline.say(format!("{service}: {outcome}"));
        }
        is_registered
    }

    fn tries(&self, service: &str) -> Vec<Instant> {
        self.tries.lock().get(service).cloned().unwrap_or_default()
    }
}

impl Registry {
    /// Checks that each service waited between its tries for at least so long.
    fn check_delays(&self, shortest: &[Duration]) -> Result<(), String> {
        for (service, tries) in self.tries.lock().iter() {
            // Its retry was cancelled by hand.
            if service == "stock 1" {
                continue;
            }
            for (pair, shortest) in tries.windows(2).zip(shortest) {
                if pair[1] - pair[0] < *shortest {
                    return Err(format!("{service} did not wait for {shortest:?}"));
                }
            }
        }
        Ok(())
    }
}

impl Operation<String> for Registry {
    /// Registers the service again. It takes no time here, and so may run on the timer's thread.
    fn attempt(&self, attempt: Attempt<String>) {
        if self.register(attempt.key()) {
            attempt.succeeded()
        } else {
            attempt.failed()
        }
    }

    fn gave_up(&self, service: String) {
        self.timeline.say(format!("{service}: given up"));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let delay = Duration::from_millis(if is_check()? { 40 } else { 400 });
    let backoff = ExponentialBuilder::new()
        .with_min_delay(delay)
        .with_max_times(RETRIES);
    let shortest: Vec<Duration> = backoff.build().collect();
    let timer = Timer::builder().start()?;
    let tries = Mutex::default();
    let registry = Arc::new(Registry {
        timeline: Timeline::begin(),
        tries,
    });
    let failback = Failback::new(&timer, backoff.with_jitter(), Arc::clone(&registry));
    let register = |service: &str| {
        if registry.register(service) {
            failback.succeeded(&service.to_owned());
        } else {
            failback.failed(service.to_owned());
        }
    };
    // Tries, and waits for so many and until nothing waits for another.
    let require = |service: &str, tries: usize| {
        register(service);
        let is_over = || registry.tries(service).len() >= tries && timer.is_empty();
        let count = || registry.tries(service).len();
        if happens(is_over) && count() == tries {
            return Ok(());
        }
        Err(format!("{service} came {} times, and not {tries}", count()))
    };
    require("orders 3", 4)?;
    // Its first five tries are in vain. It is forgotten, and so its next failure is as its first.
    require("payments 6", 5)?;
    require("payments 6", 7)?;

    register("stock 1");
    // The retry that this cancels may have been under way.
    register("stock 1");
    let is_over = happens(|| timer.is_empty());
    registry
        .timeline
        .say(format!("{WORKERS} services fail at once"));
    let workers: Vec<String> = (0..WORKERS)
        .map(|number| format!("worker-{number} 1"))
        .collect();
    workers.iter().for_each(|worker| register(worker));
    let retried = || {
        workers
            .iter()
            .all(|worker| registry.tries(worker).len() == 2)
    };
    if !is_over || !happens(|| retried() && timer.is_empty()) {
        return Err("they did not come again, once".into());
    }
    let retries: Vec<Instant> = workers
        .iter()
        .map(|worker| registry.tries(worker)[1])
        .collect();
    let spread = retries
        .iter()
        .max()
        .zip(retries.iter().min())
        .map(|(last, first)| *last - *first);
    registry.timeline.say(format!(
        "thanks to the jitter they came again within {:?}",
        spread.unwrap_or_default()
    ));

    Ok(registry.check_delays(&shortest)?)
}
