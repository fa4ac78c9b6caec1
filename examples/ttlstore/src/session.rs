//! A connection: reads requests, has them run, and writes what they and others say.

use crate::command;
use crate::peers::Peer;
use crate::request::{Malformed, Parser, Request, size};
use crate::server::Server;
use bytes::BytesMut;
use std::io;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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
        self.peer.inside.set(out + self.input.capacity() + self.parser.held() + queue);
        self.server.peers.count(&self.peer);
    }
}
