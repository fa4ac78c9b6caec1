//! A manual clock on a runtime with a single thread: it moves whenever all tasks wait, as the
//! guide has it.

use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// Far more than the 61 that tokio polls before it looks at `block_on`'s own future again.
const TASKS: u32 = 1_000;

fn virtual_time() -> (Runtime, ManualClock, Timer) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let moved = clock.clone();
    let runtime = Builder::new_current_thread()
        .on_thread_park(move || _ = moved.step())
        .build();
    (runtime.unwrap(), clock, timer)
}

#[test]
fn a_thousand_tasks_are_each_woken_at_their_deadlines() {
    let (runtime, clock, timer) = virtual_time();
    let start = clock.now();
    let sleeps = |number: u32, timer: Timer| async move {
        for round in 0..10 {
            let due = timer.now() + MS * ((number * 37 + round * 101) % 500);
            timer.sleep(due).await.unwrap();
            assert_eq!(timer.now(), due, "task {number}, round {round}");
        }
        timer.now()
    };
    let last = runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|number| tokio::spawn(sleeps(number, timer.clone())))
            .collect();
        let mut last = start;
        for task in tasks {
            last = last.max(task.await.unwrap());
        }
        last
    });
    assert_eq!(clock.now(), last);
    assert!(timer.is_empty());
}

/// One task after the other becomes ready, and only the last one lets time pass.
#[test]
fn time_stands_still_while_tasks_wake_each_other() {
    let (runtime, clock, timer) = virtual_time();
    let start = clock.now();
    let next = timer.after(S + MS, || ()).unwrap();
    runtime.block_on(async {
        let (first, mut before) = oneshot::channel();
        for _ in 0..TASKS {
            let (next, woken) = oneshot::channel::<()>();
            let waits = std::mem::replace(&mut before, woken);
            tokio::spawn(async move { waits.await.map(|woken| next.send(woken)) });
        }
        timer.after(S, move || first.send(()).unwrap()).unwrap();
        before.await.unwrap();
        assert!(clock.now() == start + S && next.is_pending());
    });
}
