//! How late timers were: the serialised form of a histogram.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The histogram of a timer's [`Lateness`](tickwheel::Lateness).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LatenessFigures {
    /// All times together, in nanoseconds.
    pub sum_ns: u64,
    /// The bars that are not empty, the shortest time first: the longest time that falls into each,
    /// in nanoseconds, and how many timers did.
    pub bars: Vec<(u64, u64)>,
}

impl LatenessFigures {
    pub(crate) fn new(sum: Duration, bars: impl Iterator<Item = (Duration, u64)>) -> Self {
        let bars = bars.map(|(up_to, count)| (nanos(up_to), count)).collect();
        LatenessFigures { sum_ns: nanos(sum), bars }
    }

    /// Returns how many timers were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.bars.iter().map(|(_, count)| count).sum()
    }

    /// Returns a time that the given share of the timers, from 0 to 1, did not exceed: the upper
    /// end of a bar, so up to twice too long. `None` if nothing was counted.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        let bar = self.bars.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        bar.map(|(up_to_ns, _)| Duration::from_nanos(*up_to_ns))
    }

    /// Returns what was counted since `former` was read.
    ///
    /// ```
    /// use tickwheel_prometheus::LatenessFigures;
    ///
    /// let former: LatenessFigures = serde_json::from_str(r#"{"sum_ns":9,"bars":[[7,2]]}"#)?;
    /// let now: LatenessFigures = serde_json::from_str(r#"{"sum_ns":19,"bars":[[7,2],[15,1]]}"#)?;
    /// assert_eq!((now.since(&former).count(), now.since(&former).sum_ns), (1, 10));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub fn since(&self, former: &Self) -> Self {
        let before = |up_to_ns| {
            let bar = former.bars.iter().find(|(other, _)| *other == up_to_ns);
            bar.map_or(0, |(_, count)| *count)
        };
        let new =
            |(up_to_ns, count): &(u64, u64)| (*up_to_ns, count.saturating_sub(before(*up_to_ns)));
        let bars = self.bars.iter().map(new).filter(|(_, count)| *count > 0).collect();
        LatenessFigures { sum_ns: self.sum_ns.saturating_sub(former.sum_ns), bars }
    }
}

/// Returns nanoseconds, which fit: a timer knows no time longer than 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
