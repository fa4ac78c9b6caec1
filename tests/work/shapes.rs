//! How very many timers may lie in the wheels, and how they may end.

use crate::{check, check_with, millis, timer};
use std::time::Duration;
use tickwheel::{ManualClock, Timeout, Timer, TimerEntry};

/// Where the timers lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// All in one bucket, near or far.
    Together(u64),
    /// Each so many milliseconds after the one before.
    Apart(u64),
    /// At random moments of so many milliseconds.
    Scattered(u64),
}

/// What becomes of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
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

pub(crate) const SHAPES: [Shape; 7] = [
    Shape::Together(1),
    Shape::Together(100),
    Shape::Together(HOUR),
    Shape::Apart(1),
    Shape::Apart(301),
    Shape::Scattered(500),
    Shape::Scattered(24 * HOUR),
];

pub(crate) const ENDS: [End; 9] = [
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
pub(crate) fn mixed(number: u64) -> u64 {
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
pub(crate) struct Life {
    pub(crate) wheel_size: usize,
    pub(crate) shape: Shape,
    pub(crate) end: End,
    pub(crate) size: u64,
}

impl Life {
    pub(crate) fn live(&self) {
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
            End::Steps => {
                while let Some(next) = timer.next_expiration() {
                    clock.advance_to(next);
                    timer.advance_clock(Duration::ZERO);
                }
            }
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
