//! Who wants to know which keys have expired: `__keyevent@0__:expired`.

use crate::reply::{Protocol, Reply};
use parking_lot::{Mutex, RwLock};
use std::mem;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::warn;

/// The one channel on which something happens.
pub const EXPIRED: &[u8] = b"__keyevent@0__:expired";

/// The subscribers. Those who publish never wait for one.
#[derive(Debug)]
pub struct Events {
    subscribers: RwLock<Vec<Arc<Outbox>>>,
    max_backlog: usize,
}

impl Events {
    /// Creates events. A subscriber may have `max_backlog` bytes of messages that it has not taken
    /// yet.
    pub fn new(max_backlog: usize) -> Self {
        Events { subscribers: RwLock::default(), max_backlog }
    }

    /// Tells all subscribers that a key has expired.
    pub fn publish_expired(&self, key: &[u8]) {
        for outbox in &*self.subscribers.read() {
            outbox.push(key, self.max_backlog);
        }
    }

    /// Adds a new subscriber, which is told in this protocol.
    pub fn subscribe(self: &Arc<Self>, protocol: Protocol) -> Subscription {
        let outbox = Arc::new(Outbox {
            backlog: Mutex::default(),
            ready: Notify::new(),
            overflow: Notify::new(),
            protocol,
        });
        self.subscribers.write().push(Arc::clone(&outbox));
        Subscription { events: Arc::clone(self), outbox }
    }

    /// Returns how many subscribers there are.
    pub fn subscribers(&self) -> usize {
        self.subscribers.read().len()
    }
}

/// Messages that a subscriber has not taken yet.
#[derive(Debug)]
struct Outbox {
    backlog: Mutex<Backlog>,
    ready: Notify,
    overflow: Notify,
    protocol: Protocol,
}

#[derive(Debug, Default)]
struct Backlog {
    messages: Vec<u8>,
    /// It grew too long, and some are lost.
    overflown: bool,
}

impl Outbox {
    fn push(&self, key: &[u8], max_backlog: usize) {
        let mut backlog = self.backlog.lock();
        if backlog.messages.len() >= max_backlog && !backlog.overflown {
            backlog.overflown = true;
            warn!("a subscriber is too slow, and is disconnected");
            self.overflow.notify_one();
        }
        if !backlog.overflown {
            let messages = mem::take(&mut backlog.messages);
            let mut reply = Reply::new(messages, self.protocol);
            reply.push(3);
            reply.bulk(b"message");
            reply.bulk(EXPIRED);
            reply.bulk(key);
            backlog.messages = reply.into_bytes();
        }
        drop(backlog);
        // Costs a wake-up only if the subscriber waits.
        self.ready.notify_one();
    }
}

/// A subscriber's end. To drop it ends it.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    outbox: Arc<Outbox>,
}

impl Subscription {
    /// Returns the messages since the last call, as soon as there are some.
    pub async fn messages(&self) -> Vec<u8> {
        loop {
            let messages = mem::take(&mut self.outbox.backlog.lock().messages);
            if !messages.is_empty() {
                return messages;
            }
            self.outbox.ready.notified().await;
        }
    }

    /// Waits until messages are lost, because the subscriber is too slow.
    pub async fn overflow(&self) {
        self.outbox.overflow.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.events.subscribers.write();
        subscribers.retain(|outbox| !Arc::ptr_eq(outbox, &self.outbox));
    }
}
