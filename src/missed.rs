//! What becomes of ticks that were missed.

use std::time::{Duration, Instant};

/// What a periodic timer does about runs whose time has passed when it comes to them: because a run
/// took longer than the period, or nobody drove the timer, or the machine slept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedTick {
    /// Runs them all, one right after the other, until it has caught up.
    Burst,
    /// Leaves them out, and goes on at the next one that is due now or later: each run is a
    /// multiple of the period after the start.
    #[default]
    Skip,
    /// Runs now, and counts the period from now on: runs are never closer together than a period.
    Delay,
}

impl MissedTick {
    /// The run after the one that was due at `due`, when it is `now`. The period is not zero.
    pub(crate) fn next(self, due: Instant, now: Instant, period: Duration) -> Option<Instant> {
        let next = due.checked_add(period)?;
        match self {
            MissedTick::Burst => Some(next),
            _ if next >= now => Some(next),
            MissedTick::Delay => now.checked_add(period),
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
            let next = policy.next(start, start + Duration::from_millis(late_ms), second);
            next.expect("it is soon").duration_since(start).as_millis()
        };
        for policy in [MissedTick::Burst, MissedTick::Skip, MissedTick::Delay] {
            assert_eq!((next(policy, 0), next(policy, 999)), (1000, 1000));
        }
        let late = |policy| [1000, 1500, 2000, 2001].map(|late_ms| next(policy, late_ms));
        assert_eq!(late(MissedTick::Burst), [1000, 1000, 1000, 1000]);
        assert_eq!(late(MissedTick::Skip), [1000, 2000, 2000, 3000]);
        assert_eq!(late(MissedTick::Delay), [1000, 2500, 3000, 3001]);
    }
}
