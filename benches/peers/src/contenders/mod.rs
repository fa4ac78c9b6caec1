//! The contenders: tickwheel's single-threaded core, and the others by kind.

mod crates;
mod keys;
#[cfg(feature = "queue")]
mod queue;
mod services;
mod slab_list;
mod sleepers;
mod tickwheel;

pub use crates::{HashWheel, Nexus, Queue, TokioDelayQueue};
pub use keys::{KeyedTimer, MapAlone, QueueAndMap, SleepingTasks};
#[cfg(feature = "queue")]
pub use queue::{KeyedQueue, OnSystemClock};
pub use services::{BTree, DrivenQueue, Heap, LazyHeap, OrderedMap};
pub use slab_list::SlabList;
pub use sleepers::{Compio, FuturesTimer, Pingora, TokioSleep};
pub use tickwheel::Tickwheel;

use crate::work::Contender;
use ::tickwheel::{LocalTimer, TimerKey};

pub struct Local(LocalTimer<u64>);

impl Contender for Local {
    type Deadline = u64;
    type Handle = TimerKey;

    fn new() -> Self {
        Local(LocalTimer::new())
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&mut self, deadline: u64, task: u64) -> TimerKey {
        self.0.add(deadline, task)
    }

    fn cancel(&mut self, handle: TimerKey) -> bool {
        self.0.cancel(handle).is_some()
    }

    fn touch(&mut self, handle: &TimerKey, deadline: u64) -> Option<()> {
        self.0.reschedule(*handle, deadline).then_some(())
    }

    fn expire_all(&mut self, last_ms: u64) -> (u64, u64) {
        let mut count = 0;
        let mut sum = 0;
        for now in 1..=last_ms {
            count += self.0.advance(now, |task| sum += task) as u64;
        }
        (count, sum)
    }
}
