//! A connection, as commands see it.

use crate::events::{Batch, EXPIRED, Events, Subscription};
use crate::glob;
use crate::reply::{Protocol, Reply};
use crate::seat::Seat;
use crate::transaction::Transaction;
use std::future;
use std::sync::Arc;
use std::time::Instant;

/// What a connection has told us, and the replies that it has not got yet.
#[derive(Debug)]
pub struct Client {
    pub seat: Arc<Seat>,
    pub reply: Reply,
    pub transaction: Transaction,
    /// Which replies it does not want.
    pub mute: Mute,
    /// The last command that it gave.
    pub(crate) last: &'static str,
    /// The connection ends after the reply.
    pub closing: bool,
    channels: Vec<Vec<u8>>,
    patterns: Vec<Vec<u8>>,
    /// If `EXPIRED` is among them: nothing happens on other channels.
    subscription: Option<Subscription>,
}

/// What CLIENT REPLY has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mute {
    /// All replies are wanted.
    #[default]
    Nothing,
    /// None is.
    All,
    /// The one to this command is not, nor is the next.
    ThisAndNext,
    /// The next one is not.
    Next,
}

impl Client {
    /// Creates the client of a new connection. A reply may have `max_reply` bytes.
    pub fn new(seat: Arc<Seat>, max_reply: usize) -> Self {
        Client {
            seat,
            reply: Reply::new(Protocol::Resp2, max_reply),
            transaction: Transaction::default(),
            mute: Mute::default(),
            last: "",
            closing: false,
            channels: Vec::new(),
            patterns: Vec::new(),
            subscription: None,
        }
    }

    /// Returns the channels to which it has subscribed.
    pub fn channels(&self) -> &[Vec<u8>] {
        &self.channels
    }

    /// Returns the patterns to which it has subscribed.
    pub fn patterns(&self) -> &[Vec<u8>] {
        &self.patterns
    }

    /// Returns to how many channels and patterns it has subscribed.
    pub fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Returns how much memory it takes: its replies, its transaction and its subscriptions.
    pub fn held(&self) -> usize {
        let names = self.channels.iter().chain(&self.patterns).map(Vec::capacity).sum::<usize>();
        self.reply.capacity() + self.transaction.bytes() + names
    }

    /// Returns whether only a few commands make sense: in RESP2 messages could be taken for
    /// replies.
    pub fn is_listening_only(&self) -> bool {
        self.reply.protocol == Protocol::Resp2 && self.subscriptions() > 0
    }

    /// Adds a channel or a pattern, once.
    pub fn subscribe(&mut self, name: &[u8], is_pattern: bool, events: &Arc<Events>) {
        let names = if is_pattern { &mut self.patterns } else { &mut self.channels };
        if !names.iter().any(|known| known == name) {
            names.push(name.to_vec());
        }
        if self.subscription.is_none() && self.listens() {
            self.subscription = Some(events.subscribe(&self.seat));
        }
    }

    /// Takes a channel or a pattern away, if it is there.
    pub fn unsubscribe(&mut self, name: &[u8], is_pattern: bool) {
        let names = if is_pattern { &mut self.patterns } else { &mut self.channels };
        names.retain(|known| known != name);
        if !self.listens() {
            self.subscription = None;
        }
    }

    fn listens(&self) -> bool {
        self.hears() || self.patterns.iter().any(|pattern| glob::matches(pattern, EXPIRED))
    }

    fn hears(&self) -> bool {
        self.channels.iter().any(|channel| channel == EXPIRED)
    }

    /// Returns the next keys that have expired, and the number of the first that counts.
    pub async fn expired(&self) -> (Arc<Batch>, u64) {
        match &self.subscription {
            Some(subscription) => subscription.next().await,
            None => future::pending().await,
        }
    }

    /// Writes the messages that tell of these keys.
    pub fn tell(&mut self, (batch, since): (Arc<Batch>, u64)) {
        let hears = self.hears();
        for key in batch.since(since) {
            if hears {
                self.reply.push(3);
                self.reply.bulk(b"message");
                self.reply.bulk(EXPIRED);
                self.reply.bulk(key);
            }
            for pattern in self.patterns.iter().filter(|it| glob::matches(it, EXPIRED)) {
                self.reply.push(4);
                self.reply.bulk(b"pmessage");
                self.reply.bulk(pattern);
                self.reply.bulk(EXPIRED);
                self.reply.bulk(key);
            }
        }
    }

    /// Shows others what it did last.
    pub(crate) fn show(&self, now: Instant) {
        let mut told = self.seat.told.lock();
        (told.active, told.command) = (Some(now), self.last);
        told.queued = self.transaction.queued();
    }

    /// Takes the reply to a command back, which began at `start`, if it is not wanted.
    pub(crate) fn drop_unwanted(&mut self, start: usize) {
        self.mute = match self.mute {
            Mute::Nothing => return,
            Mute::All => Mute::All,
            Mute::ThisAndNext => Mute::Next,
            Mute::Next => Mute::Nothing,
        };
        self.reply.truncate(start);
    }
}
