//! Each panic of a user's code is counted once, where the documentation says.

use crate::by_hand;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tickwheel::periodic::Periodic;
use tickwheel::{ManualClock, Task, Timer, TimerEntry, Worker};

const S: Duration = Duration::from_secs(1);

/// Returns how many panics there were after so many seconds.
fn after(seconds: u32, timer: &Timer, clock: &ManualClock) -> u64 {
    for _ in 0..seconds {
        clock.advance(S);
        while timer.advance_clock(Duration::ZERO) > 0 {}
    }
    timer.stats().panicked
}

/// Seen to fail: none was counted. On a worker it is still counted once.
#[test]
fn panics_of_a_series_are_counted_once() {
    let (timer, clock) = by_hand();
    let _series = Periodic::every(S)
        .start(&timer, |_| panic!("a run"))
        .unwrap();
    assert_eq!(after(5, &timer, &clock), 5);
    let clock = ManualClock::new();
    let worker = Worker::unbounded("worker", Task::run).unwrap();
    let timer = Timer::builder()
        .clock(clock.clone())
        .executor(worker)
        .build()
        .unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    let _series = Periodic::every(S).start(&timer, move |run| {
        run.cancel();
        let _told = Tells(sender.clone());
        panic!("a run");
    });
    clock.advance(S);
    timer.advance_clock(Duration::ZERO);
    ended.recv().unwrap();
    let weak = timer.downgrade();
    let (told, counted) = std::sync::mpsc::channel();
    // The worker runs this after the run.
    let tell = move || {
        told.send(weak.upgrade().map(|timer| timer.stats().panicked))
            .unwrap()
    };
    timer.add(TimerEntry::after(Duration::ZERO, tell)).unwrap();
    timer.advance_clock(Duration::ZERO);
    assert_eq!(counted.recv(), Ok(Some(1)));
}

struct Tells(std::sync::mpsc::Sender<()>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

struct Wakes;

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

#[test]
fn panics_of_tasks_and_wakers_are_counted_once() {
    for seed in [0, 1] {
        let clock = ManualClock::seeded(seed);
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let waker = Waker::from(Arc::new(Wakes));
        let mut sleep = pin!(timer.sleep(S));
        assert!(
            sleep
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        timer
            .add(TimerEntry::after(S, || panic!("a task")))
            .unwrap();
        timer.add(TimerEntry::after(S, Task::from(waker))).unwrap();
        assert_eq!(after(1, &timer, &clock), 3, "seed {seed}");
    }
}
