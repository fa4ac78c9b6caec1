//! Timers.

use crate::shapes::{ENDS, Life, SHAPES, mixed};
use crate::{BATCH, CHUNK, SIZES, assert_bounded, check, check_with, millis, timer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tickwheel::{ManualClock, Timeout, Timer, TimerEntry, work};

/// Runs every shape and every end, in wheels of so many slots.
fn every_life(wheel_size: usize, sizes: [u64; 2]) {
    for size in sizes {
        for shape in SHAPES {
            for end in ENDS {
                Life { wheel_size, shape, end, size }.live();
            }
        }
    }
}

#[test]
fn in_wheels_as_they_are_by_default() {
    every_life(512, SIZES);
}

/// Such wheels have up to 64 levels, so that a timer cascades very often.
#[test]
fn in_the_smallest_wheels() {
    every_life(4, SIZES);
}

/// Nearly all buckets of such wheels are empty, or hold one timer.
#[test]
fn in_large_wheels() {
    every_life(1 << 17, SIZES);
}

/// A reaper that waits for the first bucket takes out the buckets before it whose timers were all
/// cancelled.
#[test]
fn a_wait_after_all_were_cancelled() {
    for size in SIZES {
        for apart in [0, 1, 301] {
            let timer: Timer<u64> =
                Timer::builder().shards(4).executor(|_: u64| ()).build().expect("it starts none");
            let hour = 3_600_000;
            let entry = |id| TimerEntry::after(millis(hour + id * apart), id);
            let timeouts: Vec<_> =
                (0..size).map(|id| timer.add(entry(id)).expect("there is no limit")).collect();
            timeouts.iter().for_each(|timeout| assert!(timeout.cancel().is_cancelled()));
            check("a wait", || assert_eq!(timer.advance_clock(millis(1)), 0));
            check("next_expiration", || assert_eq!(timer.next_expiration(), None));
        }
    }
}

/// As many others live, so no sweep takes what is stale out of the first buckets.
#[test]
fn a_look_for_the_first_timer_behind_many_that_were_cancelled() {
    for wheel_size in [512, 1 << 17] {
        for (size, apart) in SIZES.map(|size| [(size, 0), (size, 1)]).into_iter().flatten() {
            let (timer, _clock) = timer(wheel_size);
            let add = |delay: u64| {
                timer.add(TimerEntry::after(millis(delay), 0)).expect("there is no limit")
            };
            let _others: Vec<_> = (0..size).map(|_| add(1 << 40)).collect();
            let first: Vec<_> = (0..size).map(|id| add(100 + apart * id)).collect();
            assert!(first.iter().all(|timeout| timeout.cancel().is_cancelled()));
            check("next_expiration", || assert!(timer.next_expiration().is_some()));
        }
    }
}

/// A deadline that has passed lies in a bucket of its own.
#[test]
fn what_has_elapsed() {
    for size in SIZES {
        let (timer, clock) = timer(512);
        clock.advance(Duration::from_secs(60));
        let fill = || -> Vec<Timeout<u64>> {
            let entry = |id| TimerEntry::after(Duration::ZERO, id);
            (0..size).map(|id| timer.add(entry(id)).expect("there is no limit")).collect()
        };
        let timeouts = check("add", fill);
        check("cancel", || timeouts.iter().for_each(|it| assert!(it.cancel().is_cancelled())));
        check("a turn of nothing", || assert_eq!(timer.advance_clock(Duration::ZERO), 0));
        check("add again", fill);
        check("a turn", || assert_eq!(timer.advance_clock(Duration::ZERO), size as usize));
    }
}

/// Another thread holds a shard at any moment.
#[test]
fn while_a_shard_is_busy() {
    let (timer, clock) = timer(512);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let adder = scope.spawn(|| {
            for id in 0..SIZES[1] {
                let entry = TimerEntry::after(millis(mixed(id) % 2_000), id);
                let timeout = timer.add(entry).expect("there is no limit");
                if id % 3 == 0 {
                    let _ = timeout.cancel();
                }
            }
            done.store(true, Ordering::Release);
            work::longest()
        });
        // The delay queue grows with the buckets that are armed.
        check_with("turns beside an adder", 2 * 512, || {
            while !done.load(Ordering::Acquire) {
                clock.advance(millis(1));
                timer.advance_clock(Duration::ZERO);
            }
        });
        assert_bounded("an adder beside turns", 2 * 512, &adder.join().expect("it ends"));
    });
}

/// A batch does the most that it can: each of its entries is the last one that keeps a chunk from
/// becoming sparse. That is not proportional to the number of timers, but it is much.
#[test]
fn a_batch_that_thins_out_a_chunk_with_each_entry() {
    // A 16th of a chunk is few.
    let (few, chunks) = (CHUNK / 16, 3 * BATCH);
    let (timer, clock) = timer(512);
    let add = |delay, id| timer.add(TimerEntry::after(delay, id)).expect("there is no limit");
    let delay = |place| if place == 0 { millis(100) } else { Duration::from_secs(3600) };
    let timeouts: Vec<_> =
        (0..CHUNK * chunks).map(|number| add(delay(number % CHUNK), number)).collect();
    for (number, timeout) in (0..).zip(&timeouts) {
        if number % CHUNK > few {
            assert!(timeout.cancel().is_cancelled());
        }
    }
    clock.advance(millis(100));
    work::reset();
    assert_eq!(timer.advance_clock(Duration::ZERO), chunks as usize);
    // One in 32 that leave makes a chunk sparse.
    let bound = (BATCH / 32 + 2) * CHUNK;
    assert_bounded("a batch", bound, &work::longest());
}

/// A level is made when the first timer needs it, with all its slots, under a lock.
#[test]
fn a_level_is_made_once() {
    for wheel_size in [4, 512, 1 << 17] {
        let (timer, _clock) = timer(wheel_size);
        let add = || timer.add(TimerEntry::after(Duration::MAX, 0)).expect("there is no limit");
        check_with("the first", 64 * wheel_size as u64, add);
        check("the second", add);
    }
}

#[test]
fn timers_on_one_clock_are_looked_at_once_per_move() {
    let timers = 4_000;
    let clock = ManualClock::new();
    let build = || {
        let builder = Timer::builder().clock(clock.clone()).wheel_size(4).shards(1);
        builder.executor(|_: u64| ()).build().expect("it has no thread")
    };
    let timers: Vec<Timer<u64>> =
        check_with("build", timers, || (0..timers).map(|_| build()).collect());
    for (id, timer) in (0..).zip(&timers) {
        timer.add(TimerEntry::after(millis(id), id)).expect("there is no limit");
    }
    check_with("advance", timers.len() as u64, || clock.advance(Duration::from_secs(60)));
    let expired: usize = timers.iter().map(|timer| timer.advance_clock(Duration::ZERO)).sum();
    assert_eq!(expired, timers.len());
    check_with("drop", 0, || drop(timers));
}

/// Otherwise a clock that outlives very many timers grows with each of them.
#[test]
fn timers_that_are_gone_are_not_looked_at() {
    let clock = ManualClock::new();
    let build = || {
        let builder = Timer::builder().clock(clock.clone()).wheel_size(4).shards(1);
        builder.build().expect("in range")
    };
    (0..1000).for_each(|_| drop(build()));
    let last = check("build", build);
    check("advance", || clock.advance(Duration::from_secs(60)));
    drop(last);
}
