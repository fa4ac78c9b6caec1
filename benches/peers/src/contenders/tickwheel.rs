//! tickwheel's thread-safe timer, through its public face, on a manual clock.

use crate::work::Contender;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::{Batch, Executor, ManualClock, Timeout, Timer, TimerEntry};

pub struct Tickwheel {
    clock: ManualClock,
    start: Instant,
    timer: Timer<u64>,
    expired: Arc<Expired>,
}

#[derive(Default)]
struct Expired {
    count: AtomicU64,
    sum: AtomicU64,
}

/// Counts what expires, a batch at a time, as a service would hand it on.
struct Count(Arc<Expired>);

impl Executor<u64> for Count {
    fn execute(&self, task: u64) -> Result<(), u64> {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.sum.fetch_add(task, Ordering::Relaxed);
        Ok(())
    }

    fn execute_batch(&self, batch: &mut Batch<'_, u64>) {
        self.0
            .count
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.0.sum.fetch_add(batch.sum::<u64>(), Ordering::Relaxed);
    }
}

/// Returns how many shards a timer has on the system's clock.
fn shards() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

impl Contender for Tickwheel {
    type Deadline = Instant;
    type Handle = Timeout<u64>;

    fn new() -> Self {
        let clock = ManualClock::new();
        let expired = Arc::new(Expired::default());
        let timer = Timer::builder()
            .clock(clock.clone())
            .shards(shards())
            .executor(Count(Arc::clone(&expired)))
            .build()
            .expect("the options are valid");
        Tickwheel {
            start: clock.now(),
            clock,
            timer,
            expired,
        }
    }

    fn deadline(&self, at_ms: u64) -> Instant {
        self.start + Duration::from_millis(at_ms)
    }

    fn add(&mut self, deadline: Instant, task: u64) -> Timeout<u64> {
        self.timer
            .add(TimerEntry::at(deadline, task))
            .expect("there is no limit")
    }

    fn cancel(&mut self, handle: Timeout<u64>) -> bool {
        handle.cancel().is_cancelled()
    }

    fn touch(&mut self, handle: &Timeout<u64>, deadline: Instant) -> Option<()> {
        handle.touch(deadline).then_some(())
    }

    /// Never inlined: `tickwheel-counts` finds it by its name.
    #[inline(never)]
    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        for _ in 0..last_ms {
            self.clock.advance(Duration::from_millis(1));
            self.timer.advance_clock(Duration::ZERO);
        }
        let Expired { count, sum } = &*self.expired;
        (count.load(Ordering::Relaxed), sum.load(Ordering::Relaxed))
    }
}
