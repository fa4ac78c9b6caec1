//! Series of runs: when the next one is due, and what becomes of those that were missed.

use crate::entry::{Due, Outcome};
use crate::when::When;
use std::time::{Duration, SystemTime};

/// What becomes of runs whose time has passed when the next one is called, as after an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// One run, late, makes up for all of them.
    #[default]
    Once,
    /// All of them are left out: see [`Series::skips`].
    Skip,
    /// Each is made up for, one after the other.
    All,
}

/// A series of runs of one timer, equally far apart. Their times follow from that of the first one
/// alone, however late each is and however long it takes. A [touch](crate::Durable::touch) or a
/// [requeue](crate::Durable::requeue) begins it anew: the times that follow are counted from the
/// moment at which it is due then.
///
/// For a calendar's times compute the next one, and answer [`Outcome::Again`].
///
/// ```
/// use std::time::Duration;
/// use tickwheel_durable2::{Due, Missed, Outcome, Series};
///
/// async fn report(due: Due) -> Outcome {
///     let daily = Series::every(Duration::from_secs(86_400)).missed(Missed::Skip);
///     let daily = daily.jitter(Duration::from_secs(600));
///     if !daily.skips(&due) {
///         // Here it is done.
///     }
///     daily.next(due)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    period: Duration,
    missed: Missed,
    jitter: Duration,
}

impl Series {
    /// Returns a series with this period, at least a microsecond, that makes up for missed runs
    /// [once](Missed::Once).
    #[must_use]
    pub fn every(period: Duration) -> Self {
        let period = period.max(Duration::from_micros(1));
        Series {
            period,
            missed: Missed::Once,
            jitter: Duration::ZERO,
        }
    }

    /// Sets what becomes of runs that were missed.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets up to how much later than its time each run is called, at random: less than the period.
    /// The times of the series stay. For the first run schedule it at [`When::Spread`].
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns whether the handler should do nothing this time, but answer with the
    /// [next](Self::next) one: the run was missed, by a period or more, and those are left out.
    pub fn skips(&self, due: &Due) -> bool {
        self.missed == Missed::Skip && self.passed(due) > 0
    }

    /// Answers that the timer is due again at the time of the next run, with the same payload.
    pub fn next(&self, due: Due) -> Outcome {
        let passed = if self.missed == Missed::All {
            0
        } else {
            self.passed(&due)
        };
        let micros = self.period.as_micros().saturating_mul(passed + 1);
        let later = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let next = SystemTime::from(due.planned.plus(later));
        Outcome::Again(When::Spread(next, self.jitter), due.payload)
    }

    /// Counts the times of later runs that have passed when this one was claimed.
    fn passed(&self, due: &Due) -> u128 {
        let late = due.at.plus(due.late_by).since(due.planned);
        late.as_micros() / self.period.as_micros()
    }
}
