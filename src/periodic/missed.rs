//! The policy for missed ticks.

use std::time::{Duration, Instant};

/// What a periodic timer does about runs whose time has passed: because a run took longer than the
/// period, because nothing drove the timer, or because the machine slept. `Burst` and `Skip` keep
/// the phase, `Delay` does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTick {
    /// Runs them all, one right after another, until it has caught up.
    Burst,
    /// Skips them, and continues with the next one that is due now or later: each run is a multiple
    /// of the period after the start.
    #[default]
    Skip,
    /// Counts the period from the moment at which each run begins, even if it was only a little
    /// late: runs are never closer together than a period. So there is no phase: a run that is
    /// late, by a tick or by its jitter, makes all later ones late by as much. No run is missed or
    /// skipped.
    Delay,
}

impl MissedTick {
    /// Returns the run after the one that was due at `due` and began at `began`, given that it is
    /// `now`. The period is not zero.
    pub(crate) fn next(
        self,
        due: Instant,
        began: Instant,
        now: Instant,
        period: Duration,
    ) -> Option<Instant> {
        let next = due.checked_add(period)?;
        match self {
            MissedTick::Delay => began.max(due).checked_add(period),
            MissedTick::Burst => Some(next),
            MissedTick::Skip if next >= now => Some(next),
            MissedTick::Skip => {
                let late = now.saturating_duration_since(due).as_nanos();
                let missed = Duration::from_nanos((late % period.as_nanos()).try_into().ok()?);
                if missed.is_zero() { Some(now) } else { now.checked_add(period - missed) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_run_is_as_the_policy_says() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let next = |policy: MissedTick, late_ms: u64| {
            let late = start + Duration::from_millis(late_ms);
            let next = policy.next(start, late, late, second);
            next.expect("it is soon").duration_since(start).as_millis()
        };
        for policy in [MissedTick::Burst, MissedTick::Skip] {
            assert_eq!((next(policy, 0), next(policy, 999)), (1000, 1000));
        }
        assert_eq!((next(MissedTick::Delay, 0), next(MissedTick::Delay, 999)), (1000, 1999));
        let late = |policy| [1000, 1500, 2000, 2001].map(|late_ms| next(policy, late_ms));
        assert_eq!(late(MissedTick::Burst), [1000, 1000, 1000, 1000]);
        assert_eq!(late(MissedTick::Skip), [1000, 2000, 2000, 3000]);
        assert_eq!(late(MissedTick::Delay), [2000, 2500, 3000, 3001]);
    }
}
