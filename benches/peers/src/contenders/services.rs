//! What services write themselves: a queue that knows no lock and no thread, an ordered map or a
//! heap whose cancelled entries stay until they are due; and that behind a mutex, with a thread
//! that drives it.

use crate::threads::{Driven, Expiring, Shared};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Timers by deadline.
pub trait DeadlineQueue: Default + Send + 'static {
    type Handle: Send;

    fn add(&mut self, deadline: u64, task: u64) -> Self::Handle;

    fn cancel(&mut self, handle: Self::Handle) -> bool;

    /// Returns the deadline of the first entry, which may have been cancelled.
    fn first(&self) -> Option<u64>;

    /// Takes the first entry out if it is due, with its task if it was not cancelled. Returns
    /// whether it was due.
    fn pop(&mut self, now: u64, expired: impl FnOnce(u64)) -> bool;
}

/// Behind a mutex.
pub type BTree = Locked<OrderedMap>;

#[derive(Default)]
pub struct OrderedMap {
    map: BTreeMap<(u64, u64), u64>,
    next: u64,
}

impl DeadlineQueue for OrderedMap {
    type Handle = (u64, u64);

    fn add(&mut self, deadline: u64, task: u64) -> (u64, u64) {
        self.next += 1;
        let key = (deadline, self.next);
        self.map.insert(key, task);
        key
    }

    fn cancel(&mut self, key: (u64, u64)) -> bool {
        self.map.remove(&key).is_some()
    }

    fn first(&self) -> Option<u64> {
        self.map.first_key_value().map(|(key, _)| key.0)
    }

    fn pop(&mut self, now: u64, expired: impl FnOnce(u64)) -> bool {
        let Some(first) = self.map.first_entry().filter(|first| first.key().0 <= now) else {
            return false;
        };
        expired(first.remove());
        true
    }
}

/// Behind a mutex.
pub type LazyHeap = Locked<Heap>;

#[derive(Default)]
pub struct Heap {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    slots: Vec<(u32, Option<u64>)>,
    vacant: Vec<u32>,
}

impl Heap {
    fn take(&mut self, index: u32, generation: u32) -> Option<u64> {
        let slot = &mut self.slots[index as usize];
        if slot.0 != generation {
            return None;
        }
        slot.0 = generation.wrapping_add(1);
        self.vacant.push(index);
        slot.1.take()
    }
}

impl DeadlineQueue for Heap {
    type Handle = (u32, u32);

    fn add(&mut self, deadline: u64, task: u64) -> (u32, u32) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(task);
        let generation = slot.0;
        self.heap.push(Reverse((deadline, index, generation)));
        (index, generation)
    }

    fn cancel(&mut self, (index, generation): (u32, u32)) -> bool {
        self.take(index, generation).is_some()
    }

    fn first(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(top)| top.0)
    }

    fn pop(&mut self, now: u64, expired: impl FnOnce(u64)) -> bool {
        if self.first().is_none_or(|first| first > now) {
            return false;
        }
        if let Some(Reverse((_, index, generation))) = self.heap.pop() {
            self.take(index, generation).map(expired);
        }
        true
    }
}

#[derive(Default)]
pub struct Locked<Q>(Mutex<Q>);

impl<Q: DeadlineQueue> Shared for Locked<Q> {
    type Deadline = u64;
    type Handle = Q::Handle;

    fn new() -> Self {
        Self::default()
    }

    fn deadline(&self, at_ms: u64) -> u64 {
        at_ms
    }

    fn add(&self, deadline: u64, task: u64) -> Q::Handle {
        self.0.lock().expect("no panic").add(deadline, task)
    }

    fn cancel(&self, handle: Q::Handle) -> bool {
        self.0.lock().expect("no panic").cancel(handle)
    }
}

impl<Q: DeadlineQueue> Expiring for Locked<Q> {
    fn expire_all(&self, last_ms: u64) -> (u64, u64) {
        let mut count = 0;
        let mut sum = 0;
        for now in 1..=last_ms {
            let mut queue = self.0.lock().expect("no panic");
            while queue.pop(now, |task| {
                count += 1;
                sum += task;
            }) {}
        }
        (count, sum)
    }
}

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
        let state = Mutex::default();
        let changed = Condvar::new();
        let inner = Arc::new(Inner {
            origin,
            state,
            changed,
        });
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
