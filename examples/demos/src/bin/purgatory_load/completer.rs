//! The completion thread: ends requests when their latency has passed.
//!
//! The original polls a `DelayQueue` of requests. Here they lie in plain lists, one for each
//! millisecond: no second timer runs beside the one that is measured.

use crate::ledger::{Ledger, Request};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tickwheel::purgatory::{Pending, Purgatory};

const MILLISECOND: u64 = 1_000_000;

/// How to complete a request that is due.
pub(crate) enum Due {
    Trigger(Ready, u32),
    Force(Pending<u32, Request>),
}

/// A request whose condition holds now.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) id: u32,
    /// Its deadline in milliseconds of the clock, rounded down.
    pub(crate) deadline: u32,
}

/// What is to be completed.
#[derive(Clone, Default)]
pub(crate) struct Queue(Arc<Mutex<Lists>>);

#[derive(Default)]
struct Lists {
    /// The millisecond of the clock at whose start the first list is due.
    first: u64,
    /// For this millisecond and those that follow.
    lists: VecDeque<Vec<Due>>,
}

impl Queue {
    /// Adds what is to be completed at `nanos` of the clock, or up to a millisecond later.
    pub(crate) fn add(&self, nanos: u64, due: Due) {
        let Lists { first, lists } = &mut *self.lock();
        // In the first one also what comes too late for its own.
        let place = nanos.div_ceil(MILLISECOND).saturating_sub(*first) as usize;
        if place >= lists.len() {
            lists.resize_with(place + 1, Vec::new);
        }
        lists[place].push(due);
    }

    /// Takes the first list, if its time has come.
    fn take(&self, now: u64) -> Option<Vec<Due>> {
        let Lists { first, lists } = &mut *self.lock();
        if *first * MILLISECOND > now {
            return None;
        }
        let list = lists.pop_front();
        *first = if list.is_some() { *first + 1 } else { now / MILLISECOND + 1 };
        list
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().lists.iter().map(Vec::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Completer {
    pub(crate) queue: Queue,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Completer {
    pub(crate) fn start(
        purgatory: Purgatory<u32, Request>,
        ledger: &'static Ledger,
        key_space: u32,
    ) -> io::Result<Self> {
        let queue = Queue::default();
        let stop = Arc::new(AtomicBool::new(false));
        let mut rounds = Rounds {
            purgatory,
            ledger,
            is_dirty: vec![false; key_space as usize].into(),
            keys: Vec::new(),
            ready: Vec::new(),
            triggers: 0,
        };
        let (polled, stopped) = (queue.clone(), Arc::clone(&stop));
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                let now = rounds.run(&polled);
                thread::sleep(Duration::from_nanos(MILLISECOND - now % MILLISECOND));
            }
            // What was overtaken may be in the queue yet, for so long at most.
            thread::sleep(Duration::from_nanos(MILLISECOND));
            rounds.run(&polled);
            rounds.triggers
        };
        let thread = thread::Builder::new().name("completer".to_owned()).spawn(run)?;
        Ok(Completer { queue, stop, thread })
    }

    /// Stops the thread. Returns how many triggers there were; `None` if it has panicked.
    pub(crate) fn stop(self) -> Option<u64> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().ok()
    }
}

/// What the thread does in each millisecond.
struct Rounds {
    purgatory: Purgatory<u32, Request>,
    ledger: &'static Ledger,
    /// Which keys are in this round's list already.
    is_dirty: Box<[bool]>,
    /// Keys to trigger, each once.
    keys: Vec<u32>,
    ready: Vec<Ready>,
    triggers: u64,
}

impl Rounds {
    /// Completes what is due. Returns what time it was when it was done.
    fn run(&mut self, queue: &Queue) -> u64 {
        let now = self.ledger.clock.look();
        let mut is_idle = true;
        while let Some(list) = queue.take(now) {
            is_idle &= list.is_empty();
            list.into_iter().for_each(|due| self.complete(due));
        }
        if is_idle { now } else { self.trigger() }
    }

    fn complete(&mut self, due: Due) {
        match due {
            Due::Force(pending) => {
                pending.force_complete();
            }
            Due::Trigger(ready, key) => {
                self.ledger.make_ready(ready.id);
                self.ready.push(ready);
                if !mem::replace(&mut self.is_dirty[key as usize], true) {
                    self.keys.push(key);
                }
            }
        }
    }

    /// Triggers the keys. Not one for each request: a trigger checks every request of its key, so
    /// where many wait on the same one that would take quadratic time. A broker does the
    /// same: it triggers a partition once for a batch of records that came in together.
    fn trigger(&mut self) -> u64 {
        self.triggers += self.keys.len() as u64;
        for key in self.keys.drain(..) {
            self.is_dirty[key as usize] = false;
            self.purgatory.check_and_complete(&key);
        }
        let now = self.ledger.clock.look();
        for ready in self.ready.drain(..) {
            if now / MILLISECOND < u64::from(ready.deadline) {
                self.ledger.note_trigger(ready.id);
            }
        }
        now
    }
}
