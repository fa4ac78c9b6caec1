//! The figures: what was read from everything that is registered, at one moment.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tickwheel::{Lateness, LevelSnapshot, Snapshot, Stats, purgatory};

/// What [`Metrics::figures`](crate::Metrics::figures) has read.
///
/// As JSON it is what `tickwheel-top` shows. It has the entries of each slot, which the metrics
/// leave out: a timer of four levels of 512 slots would be two thousand series of which each lives
/// for a slot's time, and whose history says nothing. Prometheus gets their sum for each level.
///
/// ```
/// use tickwheel::Timer;
/// use tickwheel_prometheus::{Figures, Metrics};
///
/// let timer = Timer::builder().name("sessions").start()?;
/// let metrics = Metrics::default();
/// metrics.timer(&timer);
/// let figures: Figures = serde_json::from_str(&metrics.json())?;
/// assert_eq!(figures.timers[0].name, "sessions");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// The timers, in the order in which they were registered.
    pub timers: Vec<TimerFigures>,
    /// The purgatories, in the same order.
    pub purgatories: Vec<PurgatoryFigures>,
    /// The keyed timers, and how many keys each has.
    pub keyed_timers: Vec<Count>,
    /// The sets of leases.
    pub leases: Vec<LeaseFigures>,
}

/// The figures of a timer: [`Stats`] and [`Snapshot`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TimerFigures {
    /// The name that it is shown under.
    pub name: String,
    /// [`Stats::added`].
    pub added: u64,
    /// [`Stats::cancelled`].
    pub cancelled: u64,
    /// [`Stats::rescheduled`].
    pub rescheduled: u64,
    /// [`Stats::expired`].
    pub expired: u64,
    /// [`Stats::refused`].
    pub refused: u64,
    /// [`Stats::dropped`].
    pub dropped: u64,
    /// [`Stats::panicked`].
    pub panicked: u64,
    /// [`Stats::pending`].
    pub pending: usize,
    /// [`Stats::returned`].
    pub returned: u64,
    /// [`Stats::cascaded`].
    pub cascaded: u64,
    /// [`Stats::wakeups`].
    pub wakeups: u64,
    /// [`Stats::lateness`].
    pub lateness: LatenessFigures,
    /// [`Snapshot::shards`].
    pub shards: usize,
    /// [`Snapshot::levels`].
    pub levels: Vec<LevelFigures>,
}

/// A level of a timer's wheels: [`LevelSnapshot`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LevelFigures {
    /// [`LevelSnapshot::level`].
    pub level: usize,
    /// [`LevelSnapshot::tick`], in nanoseconds.
    pub tick_ns: u64,
    /// [`LevelSnapshot::wheel_size`].
    pub wheel_size: usize,
    /// [`LevelSnapshot::armed_buckets`].
    pub armed_buckets: usize,
    /// [`LevelSnapshot::entries`].
    pub entries: usize,
    /// [`LevelSnapshot::next_expiration`], in nanoseconds.
    pub next_expiration_ns: Option<u64>,
    /// [`LevelSnapshot::slots`].
    pub slots: Vec<usize>,
}

/// Defines the figures that are those of some statistics, with a name.
macro_rules! figures {
    ($(#[$doc:meta])* $name:ident of $stats:ty {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct $name {
            /// The name that it is shown under.
            pub name: String,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            pub(crate) fn new(name: &str, stats: &$stats) -> Self {
                $name { name: name.to_owned(), $($field: stats.$field,)* }
            }
        }
    };
}

figures! {
    /// The figures of a purgatory: [`purgatory::Stats`].
    PurgatoryFigures of purgatory::Stats {
        /// [`purgatory::Stats::watched`].
        watched: usize,
        /// [`purgatory::Stats::delayed`].
        delayed: usize,
        /// [`purgatory::Stats::completed_at_once`].
        completed_at_once: u64,
        /// [`purgatory::Stats::completed_by_trigger`].
        completed_by_trigger: u64,
        /// [`purgatory::Stats::completed_by_force`].
        completed_by_force: u64,
        /// [`purgatory::Stats::expired`].
        expired: u64,
        /// [`purgatory::Stats::cancelled`].
        cancelled: u64,
        /// [`purgatory::Stats::panicked`].
        panicked: u64,
    }
}

figures! {
    /// The figures of a set of leases: [`tickwheel_leases::Stats`].
    LeaseFigures of tickwheel_leases::Stats {
        /// [`tickwheel_leases::Stats::held`].
        held: usize,
        /// [`tickwheel_leases::Stats::taken`].
        taken: u64,
        /// [`tickwheel_leases::Stats::renewed`].
        renewed: u64,
        /// [`tickwheel_leases::Stats::failed`].
        failed: u64,
        /// [`tickwheel_leases::Stats::released`].
        released: u64,
        /// [`tickwheel_leases::Stats::lost`].
        lost: u64,
    }
}

/// The number of the keys of a keyed timer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Count {
    /// The name that it is shown under.
    pub name: String,
    /// How many keys there are.
    pub count: usize,
}

impl TimerFigures {
    pub(crate) fn new(name: &str, stats: &Stats, snapshot: &Snapshot) -> Self {
        TimerFigures {
            name: name.to_owned(),
            added: stats.added,
            cancelled: stats.cancelled,
            rescheduled: stats.rescheduled,
            expired: stats.expired,
            refused: stats.refused,
            dropped: stats.dropped,
            panicked: stats.panicked,
            pending: stats.pending,
            returned: stats.returned,
            cascaded: stats.cascaded,
            wakeups: stats.wakeups,
            lateness: LatenessFigures::new(&stats.lateness),
            shards: snapshot.shards,
            levels: snapshot.levels.iter().map(LevelFigures::new).collect(),
        }
    }
}

impl LevelFigures {
    fn new(level: &LevelSnapshot) -> Self {
        LevelFigures {
            level: level.level,
            tick_ns: nanos(level.tick),
            wheel_size: level.wheel_size,
            armed_buckets: level.armed_buckets,
            entries: level.entries,
            next_expiration_ns: level.next_expiration.map(nanos),
            slots: level.slots.clone(),
        }
    }
}

/// The histogram of a [`Lateness`].
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
    pub(crate) fn new(lateness: &Lateness) -> Self {
        let bars = lateness
            .bars()
            .map(|(up_to, count)| (nanos(up_to), count))
            .collect();
        LatenessFigures {
            sum_ns: nanos(lateness.sum()),
            bars,
        }
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

    /// Returns what was counted since `former` was read. A count that went down counts as zero.
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
        let bars = self
            .bars
            .iter()
            .map(new)
            .filter(|(_, count)| *count > 0)
            .collect();
        LatenessFigures {
            sum_ns: self.sum_ns.saturating_sub(former.sum_ns),
            bars,
        }
    }
}

/// Returns nanoseconds, which fit: a timer knows no time longer than 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
