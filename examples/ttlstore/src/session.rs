//! A connection: requests in, replies and messages out.

use crate::client::Client;
use crate::command;
use crate::request::Parser;
use crate::shared::{Seat, Shared};
use bytes::{Buf, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::debug;

/// How much is read at a time.
const READ: usize = 16 * 1024;
/// Replies are written as soon as they are so many bytes, also before the requests are used up.
const WRITE: usize = 64 * 1024;

/// Serves a connection until either side ends it.
///
/// # Errors
/// If the connection breaks.
pub async fn serve(mut stream: TcpStream, shared: &Shared, seat: &Seat) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut client = Client::new(seat.client_id());
    let mut parser = Parser::new(shared.bounds.request);
    let mut input = BytesMut::new();
    debug!(client = client.id, "connected");
    while !client.closing {
        input.reserve(READ);
        tokio::select! {
            read = stream.read_buf(&mut input) => {
                if read? == 0 {
                    break;
                }
                answer(&mut stream, shared, &mut client, &mut parser, &mut input).await?;
            }
            messages = client.messages() => write(&mut stream, &client, &messages).await?,
        }
    }
    debug!(client = client.id, "disconnected");
    Ok(())
}

/// Runs all requests that are complete.
async fn answer(
    stream: &mut TcpStream,
    shared: &Shared,
    client: &mut Client,
    parser: &mut Parser,
    input: &mut BytesMut,
) -> io::Result<()> {
    let mut now = shared.now();
    let mut used = 0;
    while !client.closing {
        let request = &input[used..];
        match parser.parse(request) {
            Ok(None) => break,
            Ok(Some(length)) => {
                command::run(shared, client, parser.args(request), now);
                used += length;
            }
            Err(malformed) => {
                debug!(client = client.id, "{malformed}");
                client.reply.error(&malformed.to_string());
                client.closing = true;
            }
        }
        if client.reply.bytes().len() >= WRITE {
            write(stream, client, client.reply.bytes()).await?;
            client.reply.clear();
            now = shared.now();
        }
    }
    if used == input.len() && used > WRITE {
        *input = BytesMut::new(); // After a large request, which need not keep its memory.
    } else {
        input.advance(used);
    }
    write(stream, client, client.reply.bytes()).await?;
    client.reply.clear();
    Ok(())
}

/// Waits for a client that is slow to read, but not while its messages pile up.
async fn write(stream: &mut TcpStream, client: &Client, bytes: &[u8]) -> io::Result<()> {
    tokio::select! {
        biased;
        written = stream.write_all(bytes) => written,
        () = client.overflow() => Err(io::ErrorKind::TimedOut.into()),
    }
}
