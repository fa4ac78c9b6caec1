//! Who wants to know which keys have expired: `__keyevent@0__:expired`.
//!
//! Those who publish put the key into a queue, whoever listens. The herald, a task of the server's,
//! takes what has gathered there and gives it to each subscriber: as one batch, which all of them
//! share. A subscriber writes its messages itself.

use crate::seat::{Seat, Seats};
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// The one channel on which something happens.
pub const EXPIRED: &[u8] = b"__keyevent@0__:expired";

/// Keys in a batch: so that no subscriber writes too much at a time.
const BATCH: usize = 256;
/// What a key counts for beside its bytes, in batches and backlogs.
const OVERHEAD: usize = 64;

/// What was published, and the subscribers.
#[derive(Debug)]
pub struct Events {
    published: Mutex<Published>,
    ready: Notify,
    subscribers: RwLock<Vec<Arc<Outbox>>>,
    /// Their number, for those who publish.
    listening: AtomicUsize,
    handed: AtomicU64,
    max_backlog: usize,
    seats: Arc<Seats>,
}

/// What the herald has not taken yet.
#[derive(Debug, Default)]
struct Published {
    /// Keys that were ever published.
    count: u64,
    batches: VecDeque<Batch>,
    bytes: usize,
    /// The herald lies behind, and some are lost.
    is_lost: bool,
}

/// Keys that have expired, one after the other.
#[derive(Debug)]
pub struct Batch {
    /// The number of the first.
    first: u64,
    keys: Vec<u8>,
    ends: Vec<usize>,
}

impl Batch {
    /// Returns the keys from number `since` on.
    pub(crate) fn since(&self, since: u64) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let keys = starts.zip(&self.ends).map(|(start, end)| &self.keys[start..*end]);
        keys.skip(usize::try_from(since.saturating_sub(self.first)).unwrap_or(usize::MAX))
    }

    fn size(&self) -> usize {
        self.keys.len() + OVERHEAD * self.ends.len()
    }
}

impl Events {
    /// Creates the events. Each subscriber, and the herald, may have `max_backlog` bytes of keys
    /// before it.
    pub fn new(max_backlog: usize, seats: Arc<Seats>) -> Self {
        Events {
            published: Mutex::default(),
            ready: Notify::new(),
            subscribers: RwLock::default(),
            listening: AtomicUsize::new(0),
            handed: AtomicU64::new(0),
            max_backlog,
            seats,
        }
    }

    /// Tells that a key has expired. Takes the same time however many listen.
    pub fn publish_expired(&self, key: &[u8]) {
        if self.listening.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut published = self.published.lock();
        let was_empty = published.batches.is_empty();
        published.push(key, self.max_backlog);
        drop(published);
        if was_empty {
            self.ready.notify_one();
        }
    }

    /// Hands on what is published, for ever.
    pub async fn run(&self) {
        loop {
            self.ready.notified().await;
            while self.hand_on() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Gives a batch to each subscriber. Returns whether there was one.
    pub fn hand_on(&self) -> bool {
        let mut published = self.published.lock();
        let Some(batch) = published.batches.pop_front() else { return false };
        published.bytes -= batch.size();
        let is_lost = mem::take(&mut published.is_lost);
        drop(published);
        let (batch, subscribers) = (Arc::new(batch), self.subscribers.read());
        for outbox in &*subscribers {
            self.handed.fetch_add(1, Ordering::Relaxed);
            if is_lost || !outbox.push(&batch, self.max_backlog) {
                self.seats.cut_off(&outbox.seat, "it is too slow for the events");
            }
        }
        true
    }

    /// Adds a subscriber; when it lies too far behind, its connection is cut.
    pub fn subscribe(self: &Arc<Self>, seat: &Arc<Seat>) -> Subscription {
        self.listening.fetch_add(1, Ordering::Relaxed);
        let (backlog, ready) = (Mutex::default(), Notify::new());
        let since = self.published.lock().count;
        let outbox = Arc::new(Outbox { since, backlog, ready, seat: Arc::clone(seat) });
        self.subscribers.write().push(Arc::clone(&outbox));
        Subscription { events: Arc::clone(self), outbox }
    }

    /// Returns how many subscribers there are.
    pub fn subscribers(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    /// Returns how often a batch was given to a subscriber.
    pub fn handed(&self) -> u64 {
        self.handed.load(Ordering::Relaxed)
    }
}

impl Published {
    fn push(&mut self, key: &[u8], max_backlog: usize) {
        let number = self.count;
        self.count += 1;
        if self.bytes >= max_backlog {
            self.is_lost = true;
            return;
        }
        self.bytes += key.len() + OVERHEAD;
        let is_full = |batch: &Batch| batch.ends.len() >= BATCH || batch.keys.len() >= BATCH * 64;
        if self.batches.back().is_none_or(is_full) {
            self.batches.push_back(Batch { first: number, keys: Vec::new(), ends: Vec::new() });
        }
        if let Some(batch) = self.batches.back_mut() {
            batch.keys.extend_from_slice(key);
            batch.ends.push(batch.keys.len());
        }
    }
}

/// Batches that a subscriber has not taken yet.
#[derive(Debug)]
struct Outbox {
    /// The number of the first key that it is told.
    since: u64,
    backlog: Mutex<Backlog>,
    ready: Notify,
    seat: Arc<Seat>,
}

#[derive(Debug, Default)]
struct Backlog {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
}

impl Backlog {
    fn pop(&mut self) -> Option<Arc<Batch>> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.size();
        Some(batch)
    }
}

impl Outbox {
    /// Returns whether there was room.
    fn push(&self, batch: &Arc<Batch>, max_backlog: usize) -> bool {
        let mut backlog = self.backlog.lock();
        if backlog.bytes >= max_backlog {
            return false;
        }
        backlog.bytes += batch.size();
        backlog.batches.push_back(Arc::clone(batch));
        drop(backlog);
        // Costs a wake-up only if the subscriber waits.
        self.ready.notify_one();
        true
    }
}

/// A subscriber's end. To drop it ends it.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    outbox: Arc<Outbox>,
}

impl Subscription {
    /// Returns the next keys, and the number of the first that counts, as soon as there are some.
    pub async fn next(&self) -> (Arc<Batch>, u64) {
        loop {
            let batch = self.outbox.backlog.lock().pop();
            if let Some(batch) = batch {
                return (batch, self.outbox.since);
            }
            self.outbox.ready.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.events.subscribers.write();
        subscribers.retain(|outbox| !Arc::ptr_eq(outbox, &self.outbox));
        drop(subscribers);
        self.events.listening.fetch_sub(1, Ordering::Relaxed);
    }
}
