//! A connection, as commands see it.

use crate::events::{EXPIRED, Events, Subscription};
use crate::reply::{Protocol, Reply};
use std::future;
use std::sync::Arc;

/// What a connection has told us, and the replies that it has not got yet.
#[derive(Debug, Default)]
pub struct Client {
    pub id: u64,
    pub name: Vec<u8>,
    pub reply: Reply,
    /// The connection ends after the reply.
    pub closing: bool,
    channels: Vec<Vec<u8>>,
    /// If `EXPIRED` is among the channels: nothing happens on others.
    subscription: Option<Subscription>,
}

impl Client {
    /// Creates the state of a new connection.
    pub fn new(id: u64) -> Self {
        Client { id, ..Client::default() }
    }

    /// Returns the channels to which it has subscribed.
    pub fn channels(&self) -> &[Vec<u8>] {
        &self.channels
    }

    /// Returns whether only a few commands make sense: in RESP2 messages could be mistaken for
    /// replies.
    pub fn is_listening_only(&self) -> bool {
        self.reply.protocol == Protocol::Resp2 && !self.channels.is_empty()
    }

    /// Sets the protocol from the next reply or message on.
    pub fn set_protocol(&mut self, protocol: Protocol, events: &Arc<Events>) {
        if self.reply.protocol != protocol && self.subscription.is_some() {
            self.subscription = Some(events.subscribe(protocol));
        }
        self.reply.protocol = protocol;
    }

    /// Adds a channel, once.
    pub fn subscribe(&mut self, channel: &[u8], events: &Arc<Events>) {
        if self.channels.iter().any(|known| known == channel) {
            return;
        }
        self.channels.push(channel.to_vec());
        if channel == EXPIRED {
            self.subscription = Some(events.subscribe(self.reply.protocol));
        }
    }

    /// Takes a channel away, if it is there.
    pub fn unsubscribe(&mut self, channel: &[u8]) {
        self.channels.retain(|known| known != channel);
        if channel == EXPIRED {
            self.subscription = None;
        }
    }

    /// Returns the next messages.
    pub async fn messages(&self) -> Vec<u8> {
        match &self.subscription {
            Some(subscription) => subscription.messages().await,
            None => future::pending().await,
        }
    }

    /// Waits until it is too slow for its messages.
    pub async fn overflow(&self) {
        match &self.subscription {
            Some(subscription) => subscription.overflow().await,
            None => future::pending().await,
        }
    }
}
