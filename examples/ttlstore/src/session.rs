//! A connection: requests in, replies and messages out.

use crate::client::Client;
use crate::command;
use crate::request::Parser;
use crate::seat::Place;
use crate::shared::Shared;
use bytes::{Buf, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::debug;

/// How much is read at a time.
const READ: usize = 16 * 1024;
/// Replies are written as soon as they are so many bytes, also before the requests are used up.
const WRITE: usize = 64 * 1024;
/// How long a client whose connection we end has to read the last reply.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves a connection until either side ends it.
///
/// # Errors
/// If the connection breaks, or is cut.
pub async fn serve(mut stream: TcpStream, shared: &Shared, place: &Place) -> io::Result<()> {
    stream.set_nodelay(true)?;
    debug!(client = place.seat.id, "connected");
    let mut session = Session {
        client: Client::new(place.seat.clone(), shared.bounds.max_reply),
        parser: Parser::new(shared.bounds.request),
        input: BytesMut::new(),
        shared,
        place,
    };
    let ended = session.run(&mut stream).await;
    session.client.transaction.unwatch(&shared.store);
    debug!(client = place.seat.id, "disconnected");
    ended?;
    if session.client.closing {
        // Whatever the client sends must be read: else the system drops what it was told.
        drop(session);
        stream.shutdown().await?;
        let (mut reader, mut nowhere) = (stream, tokio::io::sink());
        let rest = tokio::io::copy(&mut reader, &mut nowhere);
        // Whether it reads is the client's matter.
        let _ = shared.waits.timeout(FAREWELL, rest).await;
    }
    Ok(())
}

struct Session<'a> {
    client: Client,
    parser: Parser,
    input: BytesMut,
    shared: &'a Shared,
    place: &'a Place,
}

impl Session<'_> {
    async fn run(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while !self.client.closing {
            self.input.reserve(READ);
            tokio::select! {
                () = self.place.seat.is_cut() => return Err(io::ErrorKind::TimedOut.into()),
                read = stream.read_buf(&mut self.input) => {
                    if read? == 0 {
                        break;
                    }
                    self.answer(stream).await?;
                }
                expired = self.client.expired() => {
                    self.client.tell(expired);
                    self.write(stream).await?;
                }
            }
        }
        Ok(())
    }

    /// Runs all requests that are complete.
    async fn answer(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let mut now = self.shared.now();
        let mut used = 0;
        while !self.client.closing {
            let request = &self.input[used..];
            match self.parser.parse(request) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    command::run(self.shared, &mut self.client, self.parser.args(request), now);
                    used += length;
                }
                Err(malformed) => {
                    debug!(client = self.place.seat.id, "{malformed}");
                    self.client.reply.error(&malformed.to_string());
                    self.client.closing = true;
                }
            }
            if self.client.reply.bytes().len() >= WRITE {
                self.write(stream).await?;
                now = self.shared.now();
            }
        }
        if used == self.input.len() && used > WRITE {
            self.input = BytesMut::new(); // After a large request, which need not keep its memory.
        } else {
            self.input.advance(used);
        }
        self.client.show(now.instant);
        self.write(stream).await
    }

    /// Writes the replies. Waits for a client that is slow to read, but not for one that takes
    /// nothing.
    async fn write(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.hold();
        if self.client.reply.is_overflown() {
            self.place.cut_off("a reply is larger than one may be");
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut rest = self.client.reply.bytes();
        while !rest.is_empty() {
            match stream.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let writable = stream.writable();
                    let patience =
                        self.shared.waits.timeout(self.shared.bounds.max_stall, writable);
                    tokio::select! {
                        biased;
                        () = self.place.seat.is_cut() => return Err(io::ErrorKind::TimedOut.into()),
                        writable = patience => match writable {
                            Ok(writable) => writable?,
                            Err(_) => {
                                self.place.cut_off("it does not read its replies");
                                return Err(io::ErrorKind::TimedOut.into());
                            }
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.client.reply.clear();
        self.hold();
        Ok(())
    }

    fn hold(&self) {
        self.place.hold(self.input.capacity() + self.client.held());
    }
}
