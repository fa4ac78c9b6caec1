//! Delays: when the next held record of each partition is to be delivered.

use crate::log::{Partition, TopicPartition};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::{Timer, TimerEntry};
use tickwheel_prometheus::Metrics;

/// No record is held back for longer.
pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A partition has one timer, for the first of its held records.
pub struct Delays {
    timer: Timer,
    due: KeyedTimer<TopicPartition, Arc<Partition>>,
    /// What the system's clock and the timer's said at the same moment. If somebody sets the
    /// system's clock, that is not followed.
    epoch: Instant,
    epoch_ms: i64,
}

impl Delays {
    /// Creates the delays; `deliver` is called with a partition when a record of it is due.
    pub fn new(timer: &Timer, deliver: impl Fn(Arc<Partition>) + Send + Sync + 'static) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Rounded up, and before the other clock: so that nothing is too early.
        let epoch_ms = i64::try_from(since_1970.as_millis()).unwrap_or(0) + 1;
        Delays {
            timer: timer.clone(),
            due: KeyedTimer::new(timer, move |_, partition| deliver(partition)),
            epoch: timer.now() + MS.saturating_sub(sub_ms(since_1970)),
            epoch_ms,
        }
    }

    /// Returns the present in milliseconds since 1970, as headers have it.
    pub fn now(&self) -> i64 {
        match self.timer.now().checked_duration_since(self.epoch) {
            Some(since) => self.epoch_ms + i64::try_from(since.as_millis()).unwrap_or(0),
            None => self.epoch_ms - 1,
        }
    }

    /// Watches a partition that holds other records than before. At the limit of timers they are
    /// delivered with the next ones that are held.
    pub fn watch(&self, partition: &Arc<Partition>) {
        // First the entry, then the look: so the last one who looks has seen all.
        let entry = self.due.entry(partition.name.clone());
        let Some(first) = partition.first_held() else { return };
        let delay = u64::try_from(first - self.epoch_ms).unwrap_or(0);
        let deadline = self.epoch + Duration::from_millis(delay);
        match entry {
            Entry::Occupied(mut entry) => {
                entry.replace(Arc::clone(partition)); // Its topic may have been made anew.
                entry.reschedule_at(deadline);
            }
            Entry::Vacant(entry) => {
                let entry = entry.schedule(TimerEntry::at(deadline, Arc::clone(partition)));
                let _ = entry.inspect_err(|_| tracing::warn!(name = %partition.name, "no timer"));
            }
        }
    }

    /// Shows how many partitions have some.
    pub fn register(&self, metrics: &Metrics) {
        metrics.keyed_timer("delays", &self.due);
    }

    /// Returns how many partitions had some.
    pub fn shutdown(&self) -> usize {
        self.due.cancel_all().len()
    }
}

const MS: Duration = Duration::from_millis(1);

fn sub_ms(time: Duration) -> Duration {
    Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000))
}
