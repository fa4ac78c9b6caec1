//! Timers: how very many may lie in the wheels, and how they may end.

use crate::{BATCH, CHUNK, SIZES, assert_bounded, check, check_with, millis, timer};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tickwheel::{ManualClock, Timeout, Timer, TimerEntry, work};

/// Where the timers lie.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// All in one bucket, near or far.
    Together(u64),
    /// Each so many milliseconds after the one before.
    Apart(u64),
    /// At random moments of so many milliseconds.
    Scattered(u64),
}

/// What becomes of them.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The clock leaps beyond all of them.
    Leap,
    /// The clock moves to each `next_expiration`.
    Steps,
    CancelInOrder,
    CancelAtRandom,
    /// All but each so manyth are cancelled; the others come due.
    CancelBut(u64),
    /// Their deadlines are moved earlier and later, several times; then they come due.
    Move,
    Shutdown,
    Drop,
}

const HOUR: u64 = 3_600_000;

const SHAPES: [Shape; 7] = [
    Shape::Together(1),
    Shape::Together(100),
    Shape::Together(HOUR),
    Shape::Apart(1),
    Shape::Apart(301),
    Shape::Scattered(500),
    Shape::Scattered(24 * HOUR),
];

const ENDS: [End; 9] = [
    End::Leap,
    End::Steps,
    End::CancelInOrder,
    End::CancelAtRandom,
    End::CancelBut(1024),
    End::CancelBut(16),
    End::Move,
    End::Shutdown,
    End::Drop,
];

/// Returns a number that looks random.
fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20
}

impl Shape {
    fn delay(self, id: u64) -> Duration {
        millis(match self {
            Shape::Together(delay) => delay,
            Shape::Apart(by) => 1 + id * by,
            Shape::Scattered(within) => 1 + mixed(id) % within,
        })
    }
}

/// One life of a timer: `size` timers come, and end.
struct Life {
    wheel_size: usize,
    shape: Shape,
    end: End,
    size: u64,
}

impl Life {
    fn live(&self) {
        let Life { wheel_size, shape, end, size } = *self;
        let (timer, clock) = timer(wheel_size);
        // A level is made when it is needed first, with all its slots; and the delay queue grows
        // with the buckets that are armed. Neither has to do with how many timers there are.
        let slots = 2 * wheel_size as u64;
        let what = format!("{shape:?}, {size} in {wheel_size} slots");
        let timeouts: Vec<_> = check_with(&format!("{what}: add"), slots, || {
            let entry = |id| TimerEntry::after(shape.delay(id), id);
            (0..size).map(|id| timer.add(entry(id)).expect("there is no limit")).collect()
        });
        check(&format!("{what}: questions"), || ask(&timer, &timeouts));
        // A cancel makes no level and arms nothing.
        let cancels = matches!(end, End::CancelInOrder | End::CancelAtRandom);
        let more = if cancels { 0 } else { slots };
        check_with(&format!("{what}: {end:?}"), more, || end.of(&timer, &clock, &timeouts));
        check(&format!("{what}: questions after {end:?}"), || ask(&timer, &timeouts));
        check(&format!("{what}: {end:?} and dropped"), || drop(timer));
    }
}

/// Makes every call that changes nothing.
fn ask(timer: &Timer<u64>, timeouts: &[Timeout<u64>]) {
    let pending = timeouts.iter().filter(|timeout| timeout.is_pending()).count();
    assert_eq!((timer.len(), timer.is_empty()), (pending, pending == 0));
    assert_eq!(timer.stats().pending, pending);
    assert!(!timer.snapshot().levels.is_empty());
    assert_eq!(timer.next_expiration().is_none(), pending == 0);
    for timeout in timeouts.iter().take(1_000) {
        assert_eq!(timeout.deadline().is_some(), timeout.is_pending());
    }
}

/// Lets everything come due at once.
fn leap(timer: &Timer<u64>, clock: &ManualClock) {
    clock.advance(Duration::from_secs(1 << 30));
    timer.advance_clock(Duration::ZERO);
    assert!(timer.is_empty());
}

impl End {
    fn of(self, timer: &Timer<u64>, clock: &ManualClock, timeouts: &[Timeout<u64>]) {
        let cancel = |timeout: &Timeout<u64>| assert!(timeout.cancel().is_cancelled());
        match self {
            End::Leap => leap(timer, clock),
            End::Steps => while clock.step().is_some() {},
            End::CancelInOrder => timeouts.iter().for_each(cancel),
            End::CancelAtRandom => {
                let mut order: Vec<_> = (0..timeouts.len()).collect();
                order.sort_by_key(|id| mixed(*id as u64));
                order.into_iter().for_each(|id| cancel(&timeouts[id]));
            }
            End::CancelBut(nth) => {
                let cancelled = (0..).zip(timeouts).filter(|(id, _)| id % nth != 0);
                cancelled.for_each(|(_, timeout)| cancel(timeout));
                leap(timer, clock);
            }
            End::Move => {
                for round in 1..4 {
                    for (id, timeout) in (0..).zip(timeouts) {
                        let delay = millis(mixed(id * round) % 100_000);
                        assert!(match id % 3 {
                            0 => timeout.reschedule(delay),
                            1 => timeout.touch(delay),
                            _ => timeout.reschedule(delay) && timeout.replace(id).is_ok(),
                        });
                    }
                }
                leap(timer, clock);
            }
            End::Shutdown => {
                let pending = timer.len();
                assert_eq!(timer.shutdown().len(), pending);
            }
            End::Drop => {} // Which its life ends with.
        }
    }
}

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
            let entry = |id| TimerEntry::after(millis(HOUR + id * apart), id);
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
