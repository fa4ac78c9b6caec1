//! An executor that hangs: only what waits for its thread waits.

use crate::{HOUR, MS, get};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Timer, TimerEntry};

/// Completes when it is triggered.
struct Triggered(bool);

impl DelayedOperation for Triggered {
    fn try_complete(&mut self) -> bool {
        std::mem::replace(&mut self.0, true)
    }

    fn on_complete(&mut self) {}
}

/// While a task hangs on the reaper, every call works, and another thread may advance the timer.
#[test]
fn while_the_reaper_hangs_in_a_task_every_call_works_and_another_thread_expires_the_rest() {
    let ((begin, begun), (release, released)) = (channel(), channel());
    let (ran, runs) = channel();
    let released = Mutex::new(released);
    let executor = move |id: u32| {
        if id == 0 {
            begin.send(()).unwrap();
            get(&released.lock().unwrap());
        }
        ran.send(id).unwrap();
    };
    let timer = Timer::builder().executor(executor).max_pending(100).start().unwrap();
    timer.add(TimerEntry::after(Duration::ZERO, 0)).unwrap();
    get(&begun);
    // It hangs: no lock is held, and no permit.
    assert!(timer.is_empty());
    let far = timer.add(TimerEntry::after(HOUR, 1)).unwrap();
    assert!(far.reschedule(2 * HOUR) && far.touch(3 * HOUR));
    assert!(timer.add(TimerEntry::after(HOUR, 2)).unwrap().cancel().is_cancelled());
    let keyed = KeyedTimer::new(&timer, |_: &str, ()| ());
    assert!(keyed.schedule("a", TimerEntry::after(HOUR, ())).unwrap().is_none());
    assert!(keyed.cancel("a").is_some());
    let purgatory = Arc::new(Purgatory::new(&timer));
    let watch = purgatory.try_complete_else_watch(Triggered(false), HOUR, &["b"]);
    // Its second check, when it is watched, is the first that finds it triggered.
    assert!(watch.unwrap().is_completed());
    assert_eq!((timer.len(), timer.stats().pending, timer.snapshot().shards > 0), (1, 1, true));
    // The calling thread expires what the reaper cannot.
    let near = timer.add(TimerEntry::after(MS, 3)).unwrap();
    while near.is_pending() {
        timer.advance_clock(10 * MS);
    }
    assert_eq!(get(&runs), 3);
    release.send(()).unwrap();
    assert_eq!(get(&runs), 0);
    // The reaper goes on.
    timer.add(TimerEntry::after(MS, 4)).unwrap();
    assert_eq!(get(&runs), 4);
    assert_eq!(timer.shutdown().len(), 1);
}
