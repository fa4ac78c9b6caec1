//! The connections: each reads requests, has them run, and writes what they and others say; what it
//! holds, what all may hold, and who listens to which channels.

use crate::resp::{Malformed, Parser, Reply, Request, size};
use crate::{Limits, Server, command};
use bytes::BytesMut;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Room for what is read next.
const PIECE: usize = 4 * 1024;
/// More than this is written before the next request is run, and not kept for later ones.
const FLUSH: usize = 64 * 1024;

/// A connection, as its commands see it.
pub(crate) struct Session {
    pub(crate) server: Rc<Server>,
    pub(crate) peer: Rc<Peer>,
    pub(crate) transaction: Option<Transaction>,
    /// It ends after the reply.
    pub(crate) is_closing: bool,
    input: BytesMut,
    parser: Parser,
}

/// What MULTI has queued.
#[derive(Default)]
pub(crate) struct Transaction {
    pub(crate) queue: Vec<Request>,
    /// A command was refused, and so EXEC will be.
    pub(crate) has_failed: bool,
    bytes: usize,
}

impl Transaction {
    pub(crate) fn push(&mut self, request: Request) {
        self.bytes += size(&request);
        self.queue.push(request);
    }
}

/// Serves a connection until it ends, or is cut off.
pub(crate) async fn serve(server: Rc<Server>, peer: Rc<Peer>, stream: TcpStream) {
    let session = Session {
        server: Rc::clone(&server),
        peer: Rc::clone(&peer),
        transaction: None,
        is_closing: false,
        input: BytesMut::new(),
        parser: Parser::new(server.limits.max_request),
    };
    tokio::select! {
        () = peer.cut.notified() => {}
        // What went wrong is the client's affair.
        _ = session.run(stream) => {}
    }
    server.peers.leave(&peer);
}

impl Session {
    /// Returns whether only few commands make sense: in RESP2, messages could be taken for replies.
    pub(crate) fn listens_only(&self) -> bool {
        self.peer.subscriptions() > 0 && !self.peer.resp3.get()
    }

    async fn run(mut self, mut stream: TcpStream) -> io::Result<()> {
        while !self.is_closing {
            self.input.reserve(PIECE);
            self.count(0);
            tokio::select! {
                read = stream.read_buf(&mut self.input) => if read? == 0 { return Ok(()) },
                () = self.peer.wake.notified() => {}
            }
            while !self.is_closing {
                match self.parser.next(&mut self.input) {
                    Ok(Some(request)) => command::run(&mut self, request),
                    Ok(None) => break,
                    Err(Malformed(what)) => {
                        let error = format!("-ERR Protocol error: {what}\r\n");
                        self.peer.out.borrow_mut().extend(error.into_bytes());
                        self.is_closing = true;
                    }
                }
                if self.peer.out.borrow().len() > FLUSH {
                    self.write(&mut stream).await?;
                }
            }
            self.write(&mut stream).await?;
            if self.input.is_empty() && self.input.capacity() > FLUSH {
                self.input = BytesMut::new();
            }
        }
        stream.shutdown().await
    }

    /// Writes all that there is to write. While the client does not read, nothing else is read
    /// from it.
    async fn write(&self, stream: &mut TcpStream) -> io::Result<()> {
        loop {
            let out = self.peer.out.take();
            if out.is_empty() {
                return Ok(());
            }
            self.count(out.capacity());
            stream.write_all(&out).await?;
        }
    }

    /// Counts what the connection holds: of it, `out` is being written.
    fn count(&self, out: usize) {
        let queue = self.transaction.as_ref().map_or(0, |transaction| {
            transaction.bytes + transaction.queue.capacity() * size_of::<Request>()
        });
        self.peer
            .inside
            .set(out + self.input.capacity() + self.parser.held() + queue);
        self.server.peers.count(&self.peer);
    }
}

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
        let peer = Rc::new(Peer {
            id,
            ..Peer::default()
        });
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
        self.held
            .set(self.held.get() - peer.counted.replace(held) + held);
        while self.held.get() > self.limits.max_client_memory {
            let most = self
                .open
                .borrow()
                .values()
                .max_by_key(|peer| peer.counted.get())
                .cloned();
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
        let mut names = peer.names[kind as usize].borrow_mut();
        let bytes = name.len() + NAME;
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
            let out = peer.out.take();
            let before = count;
            let mut told = Reply::new(out, peer.resp3.get(), self.limits.max_client_memory);
            let mut tell = |words: &[&[u8]]| {
                told.push(words.len());
                words.iter().for_each(|word| told.bulk(word));
                count += 1;
            };
            if peer.names[Kind::Channel as usize]
                .borrow()
                .contains(channel)
            {
                tell(&[b"message", channel, message]);
            }
            for pattern in &*peer.names[Kind::Pattern as usize].borrow() {
                if matches(pattern, channel) {
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

/// Returns whether a name matches a pattern of SCAN or PSUBSCRIBE, in time proportional to the
/// product of their lengths: `*`, `?`, `[a-z]`, `[^a]`, and `\` before what is literal.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut at = 0;
    let mut position = 0;
    // What follows the last `*`, and how much of the name that has taken: only that is tried anew.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, position));
        } else if position == name.len() && at == pattern.len() {
            return true;
        } else if let Some(length) = name
            .get(position)
            .and_then(|byte| element(&pattern[at..], *byte))
        {
            at += length;
            position += 1;
        } else {
            match star {
                Some((after, taken)) if taken < name.len() => {
                    at = after;
                    position = taken + 1;
                    star = Some((at, position));
                }
                _ => return false,
            }
        }
    }
}

/// Returns the length of the pattern's first element, if it matches the byte.
fn element(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => class_of(class, byte).map(|length| length + 1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Returns the length of a class, `]` included, if the byte is in it. A class that is not closed
/// ends with the pattern.
fn class_of(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        let (first, last, length) = match class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => (literal, literal, 2),
            [first, b'-', last, ..] => (first.min(last), first.max(last), 3),
            [literal, ..] => (literal, literal, 1),
        };
        found |= (first..=last).contains(&byte);
        at += length;
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::matches;

    /// What matches, `tests/differential.rs` compares with a redis-server.
    #[test]
    fn a_pattern_of_many_stars_takes_no_ages() {
        assert!(!matches(("a*".repeat(500) + "c").as_bytes(), &[b'a'; 1000]));
    }
}
