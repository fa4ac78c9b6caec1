//! The systems: what expires, and where it is served.

use crate::service::Service;
use demos::ledger::{Ledger, Request};
use std::cell::Cell;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Task, Timer, TimerEntry, Worker};

/// How many may be pending: what the service can do in a second.
pub(crate) const MAX_PENDING: usize = 20_000;
/// How many may be queued for the worker: what the service can do in a tenth of a second.
const QUEUE: usize = 2_000;
/// Later than that is late, for a recovery: other programs make timers late as well.
const LATE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    TimerInPlace,
    TimerOnWorker,
    PurgatoryInPlace,
    PurgatoryOnWorker,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] =
        [Kind::TimerInPlace, Kind::TimerOnWorker, Kind::PurgatoryInPlace, Kind::PurgatoryOnWorker];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::TimerInPlace => "timer, in place",
            Kind::TimerOnWorker => "timer, worker",
            Kind::PurgatoryInPlace => "purgatory, in place",
            Kind::PurgatoryOnWorker => "purgatory, worker",
        }
    }

    /// Returns how many can be ahead of one that is due: in place all that may be pending.
    pub(crate) fn most_ahead(self) -> usize {
        if self.has_worker() { QUEUE } else { MAX_PENDING }
    }

    fn has_worker(self) -> bool {
        matches!(self, Kind::TimerOnWorker | Kind::PurgatoryOnWorker)
    }
}

thread_local! {
    /// Whether this thread runs a task that the worker has refused.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// What happens to a request that has expired.
pub(crate) struct Expiry {
    pub(crate) ledger: Ledger,
    service: Service,
    start: Instant,
    /// Requests that came here before their deadline.
    pub(crate) early: AtomicU64,
    /// Requests that the worker refused.
    pub(crate) shed: AtomicU64,
    /// When the last one was served late, in nanoseconds since the start.
    last_late: AtomicU64,
}

impl Expiry {
    fn expire(&self, request: Request, deadline: Instant) {
        self.early.fetch_add(u64::from(Instant::now() < deadline), Relaxed);
        if REFUSED.get() {
            self.shed.fetch_add(1, Relaxed);
            self.ledger.settle(request);
            return;
        }
        self.service.serve();
        self.ledger.expire(request);
        if deadline.elapsed() > LATE {
            self.last_late.store(self.start.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Returns how long after `time` the last request was served late.
    pub(crate) fn late_after(&self, time: Instant) -> Duration {
        let last = self.start + Duration::from_nanos(self.last_late.load(Relaxed));
        last.saturating_duration_since(time)
    }
}

/// A request in a purgatory: nothing completes it, its time runs out.
pub(crate) struct Waits {
    request: Request,
    deadline: Instant,
    expiry: Arc<Expiry>,
}

impl DelayedOperation for Waits {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {
        self.expiry.expire(self.request, self.deadline);
    }
}

pub(crate) struct System {
    kind: Kind,
    pub(crate) timer: Timer,
    purgatory: Purgatory<u32, Waits>,
    pub(crate) expiry: Arc<Expiry>,
}

impl System {
    pub(crate) fn new(kind: Kind, slots: u32) -> Result<Self, Box<dyn Error>> {
        let expiry = Expiry {
            ledger: Ledger::new(slots),
            service: Service::new(),
            start: Instant::now(),
            early: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            last_late: AtomicU64::new(0),
        };
        let builder = Timer::builder().name("overload").max_pending(MAX_PENDING);
        let timer = if kind.has_worker() {
            let worker = Worker::bounded("worker", QUEUE, Task::run)?;
            let refused = |task: Task| {
                REFUSED.set(true);
                task.run();
                REFUSED.set(false);
            };
            builder.executor(worker).on_refused(refused).start()?
        } else {
            builder.start()?
        };
        Ok(System { kind, purgatory: Purgatory::new(&timer), timer, expiry: Arc::new(expiry) })
    }

    /// Adds a request. Returns whether there was room.
    pub(crate) fn add(&self, request: Request, deadline: Instant) -> bool {
        let expiry = Arc::clone(&self.expiry);
        let added = match self.kind {
            Kind::TimerInPlace | Kind::TimerOnWorker => {
                let task = move || expiry.expire(request, deadline);
                self.timer.add(TimerEntry::at(deadline, task)).is_ok()
            }
            Kind::PurgatoryInPlace | Kind::PurgatoryOnWorker => {
                let key = request.number() as u32 / 4;
                let operation = Waits { request, deadline, expiry };
                self.purgatory.try_complete_else_watch(operation, deadline, &[key]).is_ok()
            }
        };
        if !added {
            self.expiry.ledger.settle(request);
        }
        added
    }

    /// Waits until all has expired, or `patience` is over, and ends the system. What the ledger has
    /// as pending then was lost.
    pub(crate) fn end(self, patience: Duration) -> Arc<Expiry> {
        let start = Instant::now();
        while !self.timer.is_empty() && start.elapsed() < patience {
            thread::sleep(Duration::from_millis(10));
        }
        let System { expiry, timer, purgatory, .. } = self;
        drop(purgatory.shutdown());
        drop(timer.shutdown());
        // A worker finishes its queue when the last clone of the timer drops it.
        drop((purgatory, timer));
        expiry
    }
}
