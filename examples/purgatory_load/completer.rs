//! The completion thread: ends requests when their latency has passed.
//!
//! The original polls a `DelayQueue` of requests; here a second timer is the queue, advanced by the
//! completion thread itself.

use crate::ledger::{Ledger, Request};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tickwheel::purgatory::{Pending, Purgatory};
use tickwheel::{Batch, BuildError, Executor, Timer};

/// How long the thread waits at most before it looks whether it is to stop: as the original.
const POLL: Duration = Duration::from_millis(100);

/// How to complete a request that is due.
pub(crate) enum Due {
    Trigger(Ready, u32),
    Force(Pending<u32, Request>),
}

/// A request whose condition holds now.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) id: u32,
    /// Its deadline in milliseconds of the ledger, rounded down.
    pub(crate) deadline: u32,
}

/// What a tick brought.
#[derive(Default)]
struct Tick {
    /// Keys to trigger, each once.
    keys: Vec<u32>,
    requests: Vec<Ready>,
}

struct Dirty {
    /// Which keys are in this tick's list already.
    is_dirty: Box<[bool]>,
    tick: Tick,
}

/// The timer's executor. It runs on the completion thread, so its lock is never waited for.
struct Completions {
    ledger: &'static Ledger,
    dirty: Arc<Mutex<Dirty>>,
}

impl Executor<Due> for Completions {
    fn execute(&self, due: Due) -> Result<(), Due> {
        self.complete(due, &mut lock(&self.dirty));
        Ok(())
    }

    fn execute_batch(&self, batch: &mut Batch<'_, Due>) {
        let mut dirty = lock(&self.dirty);
        batch.for_each(|due| self.complete(due, &mut dirty));
    }
}

impl Completions {
    fn complete(&self, due: Due, dirty: &mut Dirty) {
        match due {
            Due::Force(pending) => {
                pending.force_complete();
            }
            Due::Trigger(ready, key) => {
                self.ledger.make_ready(ready.id);
                dirty.tick.requests.push(ready);
                if !mem::replace(&mut dirty.is_dirty[key as usize], true) {
                    dirty.tick.keys.push(key);
                }
            }
        }
    }
}

pub(crate) struct Completer {
    pub(crate) queue: Timer<Due>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Completer {
    pub(crate) fn start(
        purgatory: Purgatory<u32, Request>,
        ledger: &'static Ledger,
        key_space: u32,
    ) -> Result<Self, BuildError> {
        let is_dirty = (0..key_space).map(|_| false).collect();
        let dirty = Arc::new(Mutex::new(Dirty { is_dirty, tick: Tick::default() }));
        let completions = Completions { ledger, dirty: Arc::clone(&dirty) };
        let queue = Timer::builder().executor(completions).build()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (polled, stopped) = (queue.clone(), Arc::clone(&stop));
        let run = move || {
            let mut triggers = 0;
            let mut tick = Tick::default();
            while !stopped.load(Ordering::Relaxed) {
                polled.advance_clock(POLL);
                take(&dirty, &mut tick);
                triggers += tick.keys.len() as u64;
                trigger(&purgatory, ledger, &mut tick);
            }
            triggers
        };
        let builder = thread::Builder::new().name("completer".to_owned());
        Ok(Completer { queue, stop, thread: builder.spawn(run).map_err(BuildError::Thread)? })
    }

    /// Stops the thread. How many triggers that were; `None` if it has panicked.
    pub(crate) fn stop(self) -> Option<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

/// Takes what the tick has brought; `tick` is empty, its memory is used for the next one.
fn take(dirty: &Mutex<Dirty>, tick: &mut Tick) {
    let mut dirty = lock(dirty);
    mem::swap(tick, &mut dirty.tick);
    tick.keys.iter().for_each(|key| dirty.is_dirty[*key as usize] = false);
}

/// Triggers the keys. Not one for each request: a trigger checks every request of its key, so with
/// many of them that would take quadratic time. A broker triggers a partition likewise, once for a
/// batch of records that came in together.
fn trigger(purgatory: &Purgatory<u32, Request>, ledger: &Ledger, tick: &mut Tick) {
    for key in tick.keys.drain(..) {
        purgatory.check_and_complete(&key);
    }
    let now = ledger.now() / 1_000_000;
    for ready in tick.requests.drain(..) {
        if now < u64::from(ready.deadline) {
            ledger.note_trigger(ready.id);
        }
    }
}

fn lock(dirty: &Mutex<Dirty>) -> MutexGuard<'_, Dirty> {
    dirty.lock().unwrap_or_else(PoisonError::into_inner)
}
