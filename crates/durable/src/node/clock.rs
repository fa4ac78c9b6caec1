//! The store's clock, as far as it is known here.

use crate::store::StoreTime;
use crate::sync::{Mutex, lock};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use tickwheel::Timer;

/// Bounds for what the store's clock shows, by the timer's own clock and one answer of the store.
pub(crate) struct StoreClock {
    timer: Timer,
    sample: Mutex<Sample>,
}

/// The store's clock showed `shown` at some moment between `asked` and `answered`.
#[derive(Clone, Copy)]
struct Sample {
    asked: Instant,
    answered: Instant,
    shown: StoreTime,
}

/// For how long a sample may be kept because it was answered faster than later ones: two clocks
/// drift apart by a millisecond in this time.
const FRESH: Duration = Duration::from_secs(10);
/// By how much two samples may contradict each other before a clock must have been set.
const DRIFT: Duration = Duration::from_millis(5);

impl StoreClock {
    pub(crate) fn new(timer: Timer) -> Self {
        let now = timer.now();
        let sample = Sample {
            asked: now,
            answered: now,
            shown: StoreTime::MIN,
        };
        StoreClock {
            timer,
            sample: Mutex::new(sample),
        }
    }

    /// Notes what the store's clock showed after `asked` and before now, if that is better to know
    /// than what is known.
    pub(crate) fn observe(&self, asked: Instant, shown: StoreTime) {
        let sample = Sample {
            asked,
            answered: self.timer.now(),
            shown,
        };
        let mut known = lock(&self.sample);
        let width = |sample: &Sample| sample.answered.saturating_duration_since(sample.asked);
        let old = sample.answered.saturating_duration_since(known.answered) > FRESH;
        // Both cannot be right unless one of the clocks was set between.
        let latest = known
            .shown
            .plus(sample.answered.saturating_duration_since(known.asked));
        let earliest = known
            .shown
            .plus(sample.asked.saturating_duration_since(known.answered));
        let was_set = shown > latest.plus(DRIFT) || shown.plus(DRIFT) < earliest;
        if old || was_set || known.shown == StoreTime::MIN || width(&sample) <= width(&known) {
            *known = sample;
        }
    }

    /// Returns the latest moment that the store's clock may show: for delays that must not be cut.
    pub(crate) fn latest(&self) -> StoreTime {
        let known = *lock(&self.sample);
        known
            .shown
            .plus(self.timer.now().saturating_duration_since(known.asked))
    }

    /// Returns the earliest moment that it may show.
    pub(crate) fn earliest(&self) -> StoreTime {
        let known = *lock(&self.sample);
        known
            .shown
            .plus(self.timer.now().saturating_duration_since(known.answered))
    }

    /// Returns bounds for what it shows.
    pub(crate) fn now(&self) -> RangeInclusive<StoreTime> {
        self.earliest()..=self.latest()
    }

    /// Returns when the store's clock will surely have come to `due`; what has passed is now.
    pub(crate) fn instant_of(&self, due: StoreTime) -> Instant {
        let known = *lock(&self.sample);
        // Near timers only; whatever is too far to add lies beyond each window.
        known
            .answered
            .checked_add(due.since(known.shown))
            .unwrap_or(known.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickwheel::ManualClock;

    #[test]
    fn bounds_hold_whatever_the_answer_took_and_narrow_with_a_faster_one() {
        let clock = ManualClock::new();
        let timer: Timer = Timer::builder()
            .clock(clock.clone())
            .build()
            .expect("it is right");
        let store = StoreClock::new(timer.clone());
        let at = |seconds| StoreTime::MIN.plus(Duration::from_secs(seconds));
        let asked = timer.now();
        clock.advance(Duration::from_secs(4));
        store.observe(asked, at(1_000)); // It showed this at some moment of the four seconds.
        assert_eq!((store.earliest(), store.latest()), (at(1_000), at(1_004)));
        let asked = timer.now();
        clock.advance(Duration::from_secs(1));
        store.observe(asked, at(1_002));
        assert_eq!((store.earliest(), store.latest()), (at(1_002), at(1_003)));
        assert_eq!(
            store.instant_of(at(1_007)),
            timer.now() + Duration::from_secs(5)
        );
        let asked = timer.now();
        clock.advance(Duration::from_secs(2));
        store.observe(asked, at(1_005)); // A slow answer tells nothing new;
        assert_eq!((store.earliest(), store.latest()), (at(1_004), at(1_005)));
        clock.advance(FRESH);
        store.observe(asked, at(1_014)); // but an old one is given up for it.
        assert_eq!((store.earliest(), store.latest()), (at(1_014), at(1_026)));
        for (set, took) in [(5, 1), (2_000, 2), (7, 3)] {
            let asked = timer.now();
            clock.advance(Duration::from_secs(took));
            // A clock that was set is believed at once, however slow the answer.
            store.observe(asked, at(set));
            assert_eq!(
                (store.earliest(), store.latest()),
                (at(set), at(set + took))
            );
        }
    }
}
