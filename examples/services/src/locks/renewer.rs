//! The thread that renews locks: Redis may be slow, and the timer does not wait for it.

use crate::locks::redis_link::{RENEW, RedisLink};
use crate::locks::{Counts, LockId};
use redis::{RedisResult, Script};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;
use tickwheel::lease::{LeaseStore, Renewal};

type Batch = Vec<Renewal<LockId>>;

/// What the watchdog of the leases sees: hands batches on.
pub(crate) struct Store {
    batches: Sender<Batch>,
    lost: Box<dyn Fn(&str) + Send + Sync>,
}

pub(crate) struct Renewer {
    link: RedisLink,
    lease: Duration,
    renew: Script,
    counters: Arc<Counters>,
}

#[derive(Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    renewed: AtomicU64,
    failed: AtomicU64,
}

impl Store {
    pub(crate) fn new(batches: Sender<Batch>, lost: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Store { batches, lost: Box::new(lost) }
    }
}

impl LeaseStore<LockId> for Store {
    fn renew(&self, batch: Batch) {
        // Without a renewer the batch is dropped, and so has failed.
        let _ = self.batches.send(batch);
    }

    fn lost(&self, lock: LockId) {
        (self.lost)(&lock.name);
    }
}

impl Renewer {
    /// Starts the thread. It ends when nobody sends batches any more.
    pub(crate) fn start(
        link: RedisLink,
        lease: Duration,
        counters: Arc<Counters>,
    ) -> Sender<Batch> {
        let (sender, batches) = channel();
        let renewer = Renewer { link, lease, renew: Script::new(RENEW), counters };
        thread::spawn(move || renewer.run(&batches));
        sender
    }

    fn run(&self, batches: &Receiver<Batch>) {
        for batch in batches {
            match self.renew(&batch) {
                Ok(renewed) => self.answer(batch, &renewed),
                Err(_) => {
                    self.fail(batch);
                    // What waits behind it would run into the same, one after the other.
                    batches.try_iter().for_each(|batch| self.fail(batch));
                }
            }
        }
    }

    /// Renews the locks. Returns which of them were renewed.
    fn renew(&self, batch: &[Renewal<LockId>]) -> RedisResult<Vec<bool>> {
        let mut renew = self.renew.arg(self.lease.as_millis() as u64);
        for renewal in batch {
            renew.key(&*renewal.key().name).arg(&*renewal.key().token);
        }
        Counters::add(&self.counters.calls, 1);
        self.link.call(|connection| renew.invoke(connection))
    }

    fn answer(&self, batch: Batch, renewed: &[bool]) {
        for (renewal, renewed) in batch.into_iter().zip(renewed) {
            if *renewed {
                Counters::add(&self.counters.renewed, 1);
                renewal.renewed();
            } else {
                renewal.gone();
            }
        }
    }

    /// Answers that it is unknown whether they were renewed: the leases try again.
    fn fail(&self, batch: Batch) {
        Counters::add(&self.counters.failed, batch.len() as u64);
        batch.into_iter().for_each(Renewal::failed);
    }
}

impl Counters {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { calls, renewed, failed } = self;
        Counts { calls: read(calls), renewed: read(renewed), failed: read(failed) }
    }
}
