//! The load: what the threads do to the timer, and to the keys and operations on it.

use crate::Options;
use crate::faults::{Faulty, planted};
use crate::ledger::{End, Ledger, Request};
use crate::random::Random;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{Cancelled, DelayedOperation, Pending, Purgatory};
use tickwheel::{Cancel, SharedClosure, Task, Timeout, Timer, TimerEntry};

/// Operations that share a key.
const SHARING: u32 = 8;

thread_local! {
    /// How the tasks end that this thread runs.
    static HOW: Cell<End> = const { Cell::new(End::Expired) };
}

/// Ends a task that came back: only the task itself knows its request.
fn run_as(end: End, task: Task) {
    HOW.set(end);
    task.run();
    HOW.set(End::Expired);
}

pub(crate) struct Load {
    ledger: Arc<Ledger>,
    pub(crate) timer: Timer,
    pub(crate) keyed: KeyedTimer<u32, Request>,
    purgatory: Purgatory<u32, Operation>,
    expire: SharedClosure,
}

pub(crate) struct Operation {
    ledger: Arc<Ledger>,
    request: Request,
    holds: bool,
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        self.holds = self.ledger.holds(self.request);
        if self.holds && self.request % 61 == 0 {
            self.ledger.end(self.request, End::Completed);
            planted();
        }
        self.holds
    }

    fn on_complete(&mut self) {
        self.ledger.end(self.request, if self.holds { End::Completed } else { End::Expired });
    }

    fn on_cancellation(&mut self) {
        self.ledger.end(self.request, End::Cancelled);
    }
}

impl Load {
    pub(crate) fn new(options: &Options, ledger: &Arc<Ledger>) -> Self {
        let tick = Duration::from_nanos(options.tick_ns);
        let builder = Timer::builder().name("endurance").tick(tick).wheel_size(64);
        let builder = builder.executor(Faulty::default()).on_refused(Task::run);
        let timer = builder.start().expect("a thread can be started");
        let (expired, of_key) = (Arc::clone(ledger), Arc::clone(ledger));
        let expire = move |request: Request| {
            let end = HOW.get();
            expired.end(request, end);
            if matches!(end, End::Expired) && request % 61 == 0 {
                planted();
            }
        };
        Load {
            ledger: Arc::clone(ledger),
            keyed: KeyedTimer::new(&timer, move |_, request| of_key.end(request, End::Expired)),
            purgatory: Purgatory::new(&timer),
            timer,
            expire: Arc::new(expire),
        }
    }

    /// Ends everything, and checks what is left. Nobody works any more.
    pub(crate) fn end(&self) {
        for (_, request) in self.keyed.cancel_all() {
            self.ledger.end(request, End::Returned);
        }
        for operation in self.purgatory.shutdown() {
            self.ledger.end(operation.request, End::Returned);
        }
        self.timer
            .shutdown()
            .into_iter()
            .for_each(|entry| run_as(End::Returned, entry.into_task()));
        self.timer.assert_invariants();
        self.keyed.assert_invariants();
        self.purgatory.assert_invariants();
    }
}

enum Handle {
    Nothing,
    Timer(Timeout),
    Key,
    Operation(Pending<u32, Operation>),
}

/// One thread of the load, with the handles of its slots.
pub(crate) struct Worker<'a> {
    load: &'a Load,
    random: Random,
    first: u32,
    pending: Vec<(Request, Handle)>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(load: &'a Load, thread: u32) -> Self {
        let slots = load.ledger.slots_of(thread);
        let first = slots.start;
        let pending = slots.map(|_| (0, Handle::Nothing)).collect();
        Worker { load, random: Random(u64::from(thread) * 7919 + 1), first, pending }
    }

    /// Visits one slot after the other, at random, until it is told to stop.
    pub(crate) fn work(mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let place = self.random.below(self.pending.len() as u64) as usize;
            if !self.load.ledger.is_open(self.first + place as u32) {
                self.add(place);
            } else {
                match self.random.below(8) {
                    0 => self.cancel(place),
                    1 => self.trigger(place),
                    2..4 => self.move_it(place),
                    _ => {}
                }
            }
        }
    }

    /// Returns a deadline: most are near, some overdue, and a few of them far away.
    fn deadline(&mut self) -> Instant {
        let now = Instant::now();
        match self.random.below(32) {
            0 => now,
            1 => now + Duration::from_secs(self.random.below(1 << 22)),
            _ => now + Duration::from_nanos(self.random.below(150_000_000)),
        }
    }

    fn add(&mut self, place: usize) {
        let (slot, deadline) = (self.first + place as u32, self.deadline());
        let Load { ledger, timer, keyed, purgatory, expire } = self.load;
        let request = ledger.open(slot, deadline);
        let handle = match self.random.below(4) {
            0..2 => {
                let task = Task::shared(Arc::clone(expire), request);
                Handle::Timer(timer.add(TimerEntry::at(deadline, task)).expect("no limit"))
            }
            2 => {
                let replaced = keyed.schedule(slot, TimerEntry::at(deadline, request));
                assert!(replaced.expect("no limit").is_none(), "the key was free");
                Handle::Key
            }
            _ => {
                let operation = Operation { ledger: Arc::clone(ledger), request, holds: false };
                let keys = [slot / SHARING, u32::MAX - slot % 64];
                let watch = purgatory.try_complete_else_watch(operation, deadline, &keys);
                watch.expect("no limit").pending().map_or(Handle::Nothing, Handle::Operation)
            }
        };
        self.pending[place] = (request, handle);
    }

    fn cancel(&mut self, place: usize) {
        let (request, handle) = &self.pending[place];
        let ledger = &self.load.ledger;
        match handle {
            Handle::Nothing => {}
            Handle::Timer(timeout) => {
                if let Cancel::Cancelled(task) = timeout.cancel() {
                    run_as(End::Cancelled, task);
                    assert!(!ledger.is_open(*request as u32), "that was another timer's task");
                }
            }
            Handle::Key => {
                if let Some(cancelled) = self.load.keyed.cancel(&(*request as u32)) {
                    assert_eq!(cancelled, *request);
                    ledger.end(cancelled, End::Cancelled);
                }
            }
            Handle::Operation(pending) => {
                if let Cancelled::Returned(operation) = pending.cancel() {
                    ledger.end(operation.request, End::Cancelled);
                }
            }
        }
    }

    /// Makes an operation's condition true, and triggers one of its keys.
    fn trigger(&mut self, place: usize) {
        let (request, handle) = &self.pending[place];
        if matches!(handle, Handle::Operation(_)) {
            self.load.ledger.fulfil(*request);
            self.load.purgatory.check_and_complete(&(*request as u32 / SHARING));
        }
    }

    fn move_it(&mut self, place: usize) {
        let deadline = self.deadline();
        let (request, handle) = &self.pending[place];
        let ledger = &self.load.ledger;
        let reschedule = || match handle {
            Handle::Timer(timeout) => timeout.reschedule_at(deadline),
            _ => self.load.keyed.reschedule_at(&(*request as u32), deadline),
        };
        if matches!(handle, Handle::Timer(_) | Handle::Key) {
            ledger.moving(*request, deadline);
            if reschedule() {
                ledger.moved(*request, deadline);
            }
        }
    }
}
