//! Which shards threads add to. Alone in its binary: no other test's thread uses a timer here.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use tickwheel::{ManualClock, Timer, TimerEntry};

const THREADS: usize = 4;

/// Adds a timer on this thread, and takes it out again.
fn use_once(timer: &Timer<usize>) {
    let timeout = timer.add(TimerEntry::after(Duration::from_secs(1), 0)).unwrap();
    assert!(timeout.cancel().is_cancelled());
}

/// A bucket belongs to one shard, so as many are armed for one tick as shards have a timer there.
#[test]
fn threads_that_live_at_the_same_time_add_to_shards_of_their_own() {
    let builder = Timer::builder().clock(ManualClock::new()).shards(2 * THREADS);
    let timer: Timer<usize> = builder.executor(|_| ()).build().unwrap();
    let (all, added) = (&Barrier::new(THREADS), &Barrier::new(THREADS + 1));
    let timer = &timer;
    thread::scope(|scope| {
        for number in 0..THREADS {
            // So many that came and went that each would have met the first, had they kept what
            // they had.
            for _ in 1..THREADS {
                scope.spawn(|| use_once(timer)).join().unwrap();
            }
            let (ready, is_ready) = std::sync::mpsc::channel();
            scope.spawn(move || {
                use_once(timer);
                ready.send(()).unwrap();
                all.wait();
                timer.add(TimerEntry::after(Duration::from_millis(7), number)).unwrap();
                added.wait();
            });
            is_ready.recv().unwrap();
        }
        added.wait();
        let level = &timer.snapshot().levels[0];
        assert_eq!((level.entries, level.armed_buckets), (THREADS, THREADS));
    });
}
