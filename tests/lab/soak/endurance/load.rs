//! The load: what threads do to the timer, and to the keys and operations on it; and its faults.

use demos::ledger::{End, Ledger, Request};
use fastrand::Rng;
use std::cell::Cell;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{self, DelayedOperation, Pending, Purgatory};
use tickwheel::{Cancel, Executor, SharedClosure, Task, Timeout, Timer, TimerEntry};

/// Operations that share a key.
const SHARING: u32 = 8;
const PLANTED: &str = "planted";

/// Panics in a way that is not reported.
fn planted() -> ! {
    panic::panic_any(PLANTED)
}

/// From now on a panic that nobody planted ends the process, even where the library contains it.
pub(crate) fn report_unplanted_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref() != Some(&PLANTED) {
            report(info);
            std::process::abort();
        }
    }));
}

/// Refuses one in 101, panics after one in 997, and hangs for a moment before one in 9,973.
#[derive(Default)]
struct Faulty(AtomicU64);

impl Executor<Task> for Faulty {
    fn execute(&self, task: Task) -> Result<(), Task> {
        let number = self.0.fetch_add(1, Relaxed) + 1;
        if number % 101 == 0 {
            return Err(task);
        }
        if number % 9_973 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        task.run();
        if number % 997 == 0 {
            planted();
        }
        Ok(())
    }
}

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

pub(crate) struct Operation {
    ledger: &'static Ledger,
    request: Request,
    condition: Arc<AtomicBool>,
    holds: bool,
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        self.holds = self.condition.load(SeqCst);
        if self.holds && u64::from(self.request) % 61 == 0 {
            self.ledger.end(self.request, End::Completed);
            planted();
        }
        self.holds
    }

    fn on_complete(&mut self) {
        self.ledger.end(
            self.request,
            if self.holds {
                End::Completed
            } else {
                End::Expired
            },
        );
    }

    fn on_cancellation(&mut self) {
        self.ledger.end(self.request, End::Cancelled);
    }
}

/// The timer, and the keys and operations on it.
pub(crate) struct Load {
    pub(crate) ledger: &'static Ledger,
    pub(crate) timer: Timer,
    keyed: KeyedTimer<u32, Request>,
    purgatory: Purgatory<u32, Operation>,
    expire: SharedClosure,
}

impl Load {
    pub(crate) fn new(tick: Duration, ledger: &'static Ledger) -> Self {
        let builder = Timer::builder().name("endurance").tick(tick).wheel_size(64);
        let builder = builder.executor(Faulty::default()).on_refused(Task::run);
        let timer = builder.start().expect("a thread can be started");
        let expire = move |request: u64| {
            let end = HOW.get();
            ledger.end(request.into(), end);
            if end == End::Expired && request % 61 == 0 {
                planted();
            }
        };
        let of_key = move |_, request| _ = ledger.end(request, End::Expired);
        let keyed = KeyedTimer::new(&timer, of_key);
        let purgatory = Purgatory::new(&timer);
        Load {
            ledger,
            keyed,
            purgatory,
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
        for entry in self.timer.shutdown() {
            run_as(End::Returned, entry.into_task());
        }
        self.timer.assert_invariants();
        self.keyed.assert_invariants();
        self.purgatory.assert_invariants();
    }
}

enum Handle {
    Nothing,
    Timer(Timeout),
    Key,
    Operation(Pending<u32, Operation>, Arc<AtomicBool>),
}

/// One thread of the load, with the handles of its slots.
pub(crate) struct Worker<'a> {
    load: &'a Load,
    random: Rng,
    first: u32,
    pending: Vec<(Request, Handle)>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(load: &'a Load, first: u32, slots: u32) -> Self {
        let pending = (0..slots)
            .map(|_| (Request::from(0), Handle::Nothing))
            .collect();
        Worker {
            load,
            random: Rng::with_seed(first.into()),
            first,
            pending,
        }
    }

    /// Visits one slot after the other, at random, until it is told to stop.
    pub(crate) fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let place = self.random.usize(..self.pending.len());
            let deadline = self.deadline();
            let slot = self.first + place as u32;
            if let Some(request) = self.load.ledger.enter(slot as usize, deadline) {
                self.pending[place] = (request, self.add(slot, request, deadline));
                continue;
            }
            match self.random.u8(..8) {
                0 => self.cancel(place),
                1 => self.trigger(place),
                2..4 => self.move_it(place, deadline),
                _ => {}
            }
        }
    }

    /// Cancels what has not ended yet, and lets go of every handle.
    pub(crate) fn cancel_all(&mut self) {
        for place in 0..self.pending.len() {
            self.cancel(place);
            self.pending[place].1 = Handle::Nothing;
        }
    }

    /// Returns a deadline: most are near, some overdue, and a few of them far away.
    fn deadline(&mut self) -> Instant {
        let now = Instant::now();
        match self.random.u8(..32) {
            0 => now,
            1 => now + Duration::from_secs(self.random.u64(..1 << 22)),
            _ => now + Duration::from_nanos(self.random.u64(..150_000_000)),
        }
    }

    fn add(&mut self, slot: u32, request: Request, deadline: Instant) -> Handle {
        let Load {
            ledger,
            timer,
            keyed,
            purgatory,
            expire,
        } = self.load;
        match self.random.u8(..4) {
            0..2 => {
                let task = Task::shared(Arc::clone(expire), request.into());
                Handle::Timer(timer.add(TimerEntry::at(deadline, task)).expect("no limit"))
            }
            2 => {
                let replaced = keyed.add(slot, deadline, request);
                assert!(replaced.expect("no limit").is_none(), "the key was free");
                Handle::Key
            }
            _ => {
                let condition = Arc::new(AtomicBool::new(false));
                let fulfil = Arc::clone(&condition);
                let operation = Operation {
                    ledger,
                    request,
                    condition,
                    holds: false,
                };
                let keys = [slot / SHARING, u32::MAX - slot % 64];
                let watch = purgatory.try_complete_else_watch(operation, deadline, &keys);
                let pending = watch.expect("no limit").pending();
                pending.map_or(Handle::Nothing, |pending| {
                    Handle::Operation(pending, fulfil)
                })
            }
        }
    }

    fn cancel(&mut self, place: usize) {
        let (request, handle) = &self.pending[place];
        let Load { ledger, keyed, .. } = self.load;
        match handle {
            Handle::Nothing => {}
            Handle::Timer(timeout) => {
                if let Cancel::Cancelled(task) = timeout.cancel() {
                    run_as(End::Cancelled, task);
                }
            }
            Handle::Key => {
                if let Some(cancelled) = keyed.cancel(&request.slot) {
                    ledger.end(cancelled, End::Cancelled);
                }
            }
            Handle::Operation(pending, _) => {
                if let purgatory::Cancel::Cancelled(operation) = pending.cancel() {
                    ledger.end(operation.request, End::Cancelled);
                }
            }
        }
    }

    /// Makes an operation's condition true, and triggers one of its keys.
    fn trigger(&mut self, place: usize) {
        if let (request, Handle::Operation(_, condition)) = &self.pending[place] {
            condition.store(true, SeqCst);
            self.load
                .purgatory
                .check_and_complete(&(request.slot / SHARING));
        }
    }

    fn move_it(&mut self, place: usize, deadline: Instant) {
        let (request, handle) = &self.pending[place];
        if !matches!(handle, Handle::Timer(_) | Handle::Key) {
            return;
        }
        self.load.ledger.moving(*request, deadline);
        let is_moved = match handle {
            Handle::Timer(timeout) => timeout.reschedule(deadline),
            _ => self.load.keyed.reschedule(&request.slot, deadline),
        };
        if is_moved {
            self.load.ledger.moved(*request, deadline);
        }
    }
}
