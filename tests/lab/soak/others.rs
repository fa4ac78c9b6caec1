//! Shapes of structures that are built on timers, and of whole timers.

use crate::idle::Idle;
use crate::{HOUR, MS, Measured, REPEATS, SPARE, bounds, in_use, scaled};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Timer, TimerEntry};

pub(crate) fn timer() -> Timer {
    Timer::builder().shards(1).clock(ManualClock::new()).build().expect("the options are valid")
}

/// Returns the memory that a keyed timer, or a purgatory, keeps: a chunk of 8 KiB of each slab of
/// each shard, of which there are 32 for each core.
pub(crate) fn spare() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    SPARE + 32 * cores.next_power_of_two() * (32 << 10)
}

/// Completes others when it is completed. Their callbacks are postponed until its own has returned.
#[derive(Default)]
struct Completes(Vec<Pending<usize, Completes>>);

impl DelayedOperation for Completes {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {
        self.0.drain(..).for_each(|other| assert!(other.force_complete()));
    }
}

/// Measures what is left of something that ends with all that was on it, again and again.
fn vanishing(shape: &'static str, bound: usize, again: impl Fn()) -> Measured {
    let mut bytes = Vec::with_capacity(REPEATS);
    let before = in_use();
    for _ in 0..REPEATS {
        again();
        bytes.push(in_use().saturating_sub(before));
    }
    Measured { shape, bound, spare: SPARE, live: 0, bytes, references: 0, fresh: 0 }
}

/// Completes very many operations in a callback, and drops all.
pub(crate) fn postponed() -> Measured {
    vanishing("postponed", bounds::POSTPONED, || {
        let purgatory = Purgatory::new(&timer());
        let watch = |operation| {
            let watch = purgatory.try_complete_else_watch(operation, HOUR, &[0]);
            watch.expect("there is no limit").pending().expect("it waits")
        };
        let others: Vec<_> = (0..scaled(1 << 20)).map(|_| watch(Completes::default())).collect();
        assert!(watch(Completes(others)).force_complete());
        assert_eq!(purgatory.delayed(), 0);
    })
}

/// Makes, uses and drops timers, and what is built on them. Some have a reaper.
pub(crate) fn made_and_dropped() -> Measured {
    vanishing("made and dropped", bounds::MADE_AND_DROPPED, || {
        for nth in 0..scaled(1 << 13) {
            let builder = Timer::builder().shards(4);
            let timer = if nth % 16 == 0 { builder.start() } else { builder.build() };
            let timer = timer.expect("the options are valid");
            let keyed = KeyedTimer::new(&timer, |_, ()| ());
            let purgatory = Purgatory::new(&timer);
            for key in 0..20_u32 {
                let delay = MS * (key % 4) * 100_000;
                assert!(timer.add(TimerEntry::after(delay, || ())).is_ok());
                assert!(keyed.schedule(key, TimerEntry::after(delay, ())).is_ok());
                let watch = purgatory.try_complete_else_watch(Idle, delay, &[key, 99]);
                drop(watch.expect("there is no limit"));
            }
            timer.advance_clock(Duration::ZERO);
            drop((nth % 2 == 0).then(|| timer.shutdown()));
        }
    })
}
