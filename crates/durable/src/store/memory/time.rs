//! Virtual time that passes as fast as the tasks allow.

use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tokio::runtime::{Handle, RuntimeFlavor};

/// How often all tasks are polled at each moment: more often than a chain of a node's tasks wakes
/// each other without waiting for the clock.
const TURNS: u32 = 30;

/// Lets time pass on a manual clock, from each moment at which something is due to the next one,
/// and has all tasks of this thread's runtime act at each of them. The nodes' timer is on that
/// clock, is not [started](tickwheel::TimerBuilder::start), and the runtime is one of tokio's
/// current thread. A fleet then lives through an hour in a few seconds without any thread, and
/// faster with a longer [lease](crate::DurableBuilder::lease). To skip months in which nothing is
/// due, advance the clock itself first.
///
/// # Panics
/// On a runtime of several threads, where nobody knows when all tasks have had their turns.
pub async fn pass(clock: &ManualClock, timer: &Timer, time: Duration) {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    assert!(
        flavor.is_err() || matches!(flavor, Ok(RuntimeFlavor::CurrentThread)),
        "`pass` needs a runtime of tokio's current thread: on others tasks act in their own time"
    );
    let end = clock.now() + time;
    // The last moment at which the clock steps. Fails if the timer was shut down: nothing is due
    // then.
    let _ = timer.after(time, || ());
    while clock.now() < end {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        if clock.step().is_none() {
            clock.advance_to(end);
        }
    }
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}
