//! The connections: what each holds, what all may hold, and who listens to which channels.

use crate::glob;
use crate::reply::Reply;
use crate::server::Limits;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::sync::Notify;

/// What a connection counts for at least, and each of its subscriptions beside its name.
const OVERHEAD: usize = 1024;
const NAME: usize = 64;

/// A connection, as others see it.
#[derive(Default)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) resp3: Cell<bool>,
    /// Replies and messages that its task has not written yet.
    pub(crate) out: RefCell<Vec<u8>>,
    /// There is something to write.
    pub(crate) wake: Notify,
    /// It has to end.
    pub(crate) cut: Notify,
    /// Channels and patterns to which it listens.
    names: [RefCell<BTreeSet<Vec<u8>>>; 2],
    /// What those names take.
    named: Cell<usize>,
    /// Bytes that its task holds.
    pub(crate) inside: Cell<usize>,
    /// What was counted of it.
    counted: Cell<usize>,
}

/// Whether the name of a subscription is a channel's or a pattern.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Channel,
    Pattern,
}

/// All connections.
pub(crate) struct Peers {
    open: RefCell<BTreeMap<u64, Rc<Peer>>>,
    listeners: RefCell<BTreeMap<u64, Rc<Peer>>>,
    limits: Limits,
    /// Bytes that they hold.
    pub(crate) held: Cell<usize>,
    joined: Cell<u64>,
    pub(crate) cut: Cell<u64>,
}

impl Peer {
    /// Returns to how many channels and patterns it listens.
    pub(crate) fn subscriptions(&self) -> usize {
        self.names.iter().map(|names| names.borrow().len()).sum()
    }

    /// Returns the channels or the patterns.
    pub(crate) fn names(&self, kind: Kind) -> Vec<Vec<u8>> {
        self.names[kind as usize].borrow().iter().cloned().collect()
    }

    fn held(&self) -> usize {
        OVERHEAD + self.inside.get() + self.named.get() + self.out.borrow().capacity()
    }
}

impl Peers {
    pub(crate) fn new(limits: Limits) -> Self {
        Peers {
            open: RefCell::default(),
            listeners: RefCell::default(),
            limits,
            held: Cell::new(0),
            joined: Cell::new(0),
            cut: Cell::new(0),
        }
    }

    /// Adds a connection, unless there are too many.
    pub(crate) fn join(&self) -> Option<Rc<Peer>> {
        if self.len() >= self.limits.max_clients {
            return None;
        }
        let id = self.joined.get() + 1;
        self.joined.set(id);
        let peer = Rc::new(Peer { id, ..Peer::default() });
        self.open.borrow_mut().insert(id, Rc::clone(&peer));
        Some(peer)
    }

    /// Removes a connection. It counts no more.
    pub(crate) fn leave(&self, peer: &Peer) {
        if self.open.borrow_mut().remove(&peer.id).is_some() {
            self.held.set(self.held.get() - peer.counted.get());
        }
        self.listeners.borrow_mut().remove(&peer.id);
    }

    /// Counts anew what all hold, after one of them holds more or less. While it is too much, cuts
    /// off whoever holds most.
    pub(crate) fn count(&self, peer: &Peer) {
        if !self.open.borrow().contains_key(&peer.id) {
            return;
        }
        let held = peer.held();
        self.held.set(self.held.get() - peer.counted.replace(held) + held);
        while self.held.get() > self.limits.max_client_memory {
            let most = self.open.borrow().values().max_by_key(|peer| peer.counted.get()).cloned();
            most.into_iter().for_each(|most| self.cut_off(&most));
        }
    }

    fn cut_off(&self, peer: &Peer) {
        self.leave(peer);
        self.cut.set(self.cut.get() + 1);
        peer.cut.notify_one();
    }

    /// Adds a subscription, or takes it away.
    pub(crate) fn subscribe(&self, peer: &Rc<Peer>, kind: Kind, name: &[u8], on: bool) {
        let (mut names, bytes) = (peer.names[kind as usize].borrow_mut(), name.len() + NAME);
        if on && names.insert(name.to_vec()) {
            peer.named.set(peer.named.get() + bytes);
        } else if !on && names.remove(name) {
            peer.named.set(peer.named.get() - bytes);
        }
        drop(names);
        if peer.subscriptions() > 0 {
            self.listeners.borrow_mut().insert(peer.id, Rc::clone(peer));
        } else {
            self.listeners.borrow_mut().remove(&peer.id);
        }
        self.count(peer);
    }

    /// Sends a message to all who listen to the channel. Returns how many messages that were.
    pub(crate) fn publish(&self, channel: &[u8], message: &[u8]) -> usize {
        let mut count = 0;
        let listeners: Vec<_> = self.listeners.borrow().values().cloned().collect();
        for peer in listeners {
            let (out, before) = (peer.out.take(), count);
            let mut told = Reply::new(out, peer.resp3.get(), self.limits.max_client_memory);
            let mut tell = |words: &[&[u8]]| {
                told.push(words.len());
                words.iter().for_each(|word| told.bulk(word));
                count += 1;
            };
            if peer.names[Kind::Channel as usize].borrow().contains(channel) {
                tell(&[b"message", channel, message]);
            }
            for pattern in &*peer.names[Kind::Pattern as usize].borrow() {
                if glob::matches(pattern, channel) {
                    tell(&[b"pmessage", pattern, channel, message]);
                }
            }
            peer.out.replace(told.bytes);
            if told.is_overflown {
                self.cut_off(&peer);
            } else if count > before {
                peer.wake.notify_one();
                self.count(&peer);
            }
        }
        count
    }

    /// Returns how many connections there are.
    pub(crate) fn len(&self) -> usize {
        self.open.borrow().len()
    }
}
