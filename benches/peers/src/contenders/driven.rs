//! A queue behind a mutex, and a thread that drives it: the whole timer, as a service writes it.

use crate::contenders::queue::DeadlineQueue;
use crate::under_load::Driven;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What the thread takes out while it holds the lock: as much as tickwheel.
const BATCH: usize = 128;

pub struct DrivenQueue<Q> {
    inner: Arc<Inner<Q>>,
    thread: Option<JoinHandle<()>>,
}

struct Inner<Q> {
    /// Deadlines are nanoseconds from here on.
    origin: Instant,
    state: Mutex<State<Q>>,
    changed: Condvar,
}

#[derive(Default)]
struct State<Q> {
    queue: Q,
    /// The thread sleeps no longer; 0 while it is awake.
    asleep_until: u64,
    stopped: bool,
}

impl<Q: DeadlineQueue> Inner<Q> {
    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().expect("no panic")
    }

    /// Runs the thread until it is stopped.
    fn drive(&self, run: impl Fn(u64)) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut state = self.lock();
        while !state.stopped {
            let now = self.origin.elapsed().as_nanos() as u64;
            let is_due = |_: &usize| state.queue.pop(now, |task| batch.push(task));
            if (0..BATCH).take_while(is_due).count() == 0 {
                state = self.sleep(state, now);
                continue;
            }
            drop(state);
            batch.drain(..).for_each(&run);
            state = self.lock();
        }
    }

    /// Sleeps until the first entry is due, or an earlier one is added.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State<Q>>, now: u64) -> MutexGuard<'a, State<Q>> {
        let until = state.queue.first().unwrap_or(u64::MAX);
        state.asleep_until = until;
        let sleep = Duration::from_nanos(until - now);
        let (mut state, _) = self.changed.wait_timeout(state, sleep).expect("no panic");
        state.asleep_until = 0;
        state
    }
}

impl<Q: DeadlineQueue> Driven for DrivenQueue<Q> {
    type Handle = Q::Handle;

    fn start(origin: Instant, run: impl Fn(u64) + Send + Sync + 'static) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let inner = Arc::new(Inner { origin, state, changed });
        let driven = Arc::clone(&inner);
        let thread = Some(thread::spawn(move || driven.drive(run)));
        DrivenQueue { inner, thread }
    }

    fn add(&self, due: u64) -> Q::Handle {
        let mut state = self.inner.lock();
        let handle = state.queue.add(due, due);
        let is_first = due < state.asleep_until;
        if is_first {
            state.asleep_until = due; // Who adds a later one need not wake the thread again.
        }
        drop(state); // Or the thread would wake only to wait for the lock.
        if is_first {
            self.inner.changed.notify_one();
        }
        handle
    }

    fn cancel(&self, handle: Q::Handle) -> bool {
        self.inner.lock().queue.cancel(handle)
    }
}

impl<Q> Drop for DrivenQueue<Q> {
    fn drop(&mut self) {
        self.inner.state.lock().expect("no panic").stopped = true;
        self.inner.changed.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
