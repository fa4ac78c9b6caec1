//! The scheduler of a controller: one task owns a queue of objects that are to be reconciled. A
//! request for an object that waits already keeps the earlier time. Edits are debounced: an object
//! is reconciled when it has been quiet for a while, and after a limit in any case.
//!
//! ```text
//! cargo run --example controller
//! ```

use std::error::Error;
use std::future::poll_fn;
use std::time::{Duration, Instant};
use tickwheel::queue::{Entry, KeyedQueue};
use tickwheel::{ManualClock, Timer};

const S: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(5);

/// Each object waits for its time. The value is the latest time at which the object is reconciled,
/// however often it is edited.
struct Scheduler(KeyedQueue<&'static str, Instant>);

impl Scheduler {
    /// Has an object reconciled at a time, or before if that was requested.
    fn request(&mut self, object: &'static str, at: Instant) {
        match self.0.entry(object) {
            Entry::Vacant(entry) => entry.insert(at, at),
            Entry::Occupied(mut entry) => {
                // A later edit must not put the object off beyond this time.
                let latest = entry.get_mut();
                *latest = at.min(*latest);
                entry.hasten(at);
            }
        }
    }

    /// Has an object reconciled when nobody has edited it for a while.
    fn edited(&mut self, object: &'static str, now: Instant) {
        match self.0.entry(object) {
            Entry::Vacant(entry) => entry.insert(now + QUIET, now + LIMIT),
            Entry::Occupied(mut entry) => {
                // A request may have been for a time later than the limit.
                let latest = (now + LIMIT).min(*entry.get());
                *entry.get_mut() = latest;
                entry.reschedule((now + QUIET).min(latest));
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // In a controller: `SystemClock`, and the sleep of its runtime.
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build()?;
    let mut scheduler = Scheduler(KeyedQueue::new(clock.clone(), move |at| timer.sleep(at)));

    let start = clock.now();
    scheduler.request("pod", start + 60 * S);
    scheduler.request("pod", start + 10 * S);
    scheduler.request("pod", start + 30 * S);
    for _ in 0..4 {
        scheduler.edited("service", clock.now());
        clock.advance(S);
    }
    scheduler.edited("service", clock.now());
    scheduler.edited("job", clock.now());

    let mut reconciled = Vec::new();
    let run = async {
        while let Some(due) = poll_fn(|context| scheduler.0.poll_expired(context)).await {
            let seconds = (due.deadline - start).as_secs();
            println!("{seconds:>2} s: {} is reconciled", due.key);
            reconciled.push((due.key, seconds));
        }
    };
    clock.block_on(run).ok_or("the queue never ends")?;
    assert_eq!(reconciled, [("service", 5), ("job", 6), ("pod", 10)]);
    Ok(())
}
