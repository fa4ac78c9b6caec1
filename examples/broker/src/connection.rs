//! Connections: one request after the other, answered in their order, as Kafka does.

use crate::answers::Answer;
use crate::broker::Broker;
use crate::budget::{FREE, Room};
use crate::wire::{FrameError, Inbox, Malformed, Request, encode_response, refuse_version, write};
use bytes::BytesMut;
use kafka_protocol::messages::ApiKey;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpStream;

/// What the heads of an answer take at most, mostly, in bytes: more is made room for.
const HEADS: usize = 4 << 10;

/// Serves a connection until it ends. Dropping this closes it.
pub(crate) async fn serve(broker: Arc<Broker>, mut stream: TcpStream, peer: SocketAddr) {
    let _ = stream.set_nodelay(true); // Fails only if it is closed: that will be seen.
    match requests(&broker, &mut stream).await {
        Ok(()) => tracing::debug!(%peer, "closed"),
        Err(error) => tracing::warn!(%peer, "closed: {error}"),
    }
}

async fn requests(broker: &Arc<Broker>, stream: &mut TcpStream) -> Result<(), Error> {
    let (reader, mut writer) = stream.split();
    let mut inbox = Inbox::new(reader, broker.limits.max_frame);
    let mut end = broker.end();
    loop {
        let frame = tokio::select! {
            biased; // At the end nothing more is begun.
            _ = end.wait_for(|is_over| *is_over) => return Ok(()),
            frame = inbox.next(&broker.timer, &broker.budget) => frame?,
        };
        let Some(frame) = frame else { return Ok(()) };
        let answer = match Request::decode(frame) {
            Ok(request) => tokio::select! {
                biased; // What is answered at once is answered also to who has gone.
                answer = answer(broker, request) => answer?,
                () = inbox.closed() => return Ok(()),
            },
            Err(malformed) => {
                broker.counters.malformed.fetch_add(1, Ordering::Relaxed);
                let frame = answer_malformed(broker, &malformed);
                Some(Outgoing::from(frame.ok_or_else(|| malformed.to_string())?))
            }
        };
        let Some(Outgoing { frame, throttle, _room }) = answer else { continue };
        write(&mut writer, &frame, &broker.timer).await?;
        if !throttle.is_zero() {
            // Also for clients that do not heed it.
            tokio::select! {
                _ = end.wait_for(|is_over| *is_over) => {}
                _ = broker.timer.sleep(throttle) => {}
            }
        }
        // Who sends one request after the other has to let the others have theirs in between.
        tokio::task::yield_now().await;
    }
}

/// An answer as it goes out.
struct Outgoing {
    frame: BytesMut,
    throttle: Duration,
    _room: Option<Room>,
}

impl From<BytesMut> for Outgoing {
    fn from(frame: BytesMut) -> Self {
        Outgoing { frame, throttle: Duration::ZERO, _room: None }
    }
}

/// Answers a request. Returns `None` if the client wants no answer.
async fn answer(broker: &Arc<Broker>, request: Request) -> Result<Option<Outgoing>, Error> {
    broker.counters.count(request.api);
    let (key, version, correlation) = (request.api.key, request.version, request.correlation_id);
    let Some(Answer { body, mut room, throttle }) = broker.answer(request).await else {
        return Ok(None);
    };
    let capacity = room.as_ref().map_or(0, |room| room.bytes() + HEADS);
    let frame = encode_response(key, version, correlation, &body, capacity);
    let frame = frame.map_err(|error| format!("an answer that can't be written: {error}"))?;
    if room.is_none() && frame.len() > FREE {
        let taken = broker.budget.try_take(frame.len());
        room = Some(taken.ok_or_else(|| format!("{key:?} whose answer there is no room for"))?);
    }
    Ok(Some(Outgoing { frame, throttle, _room: room }))
}

/// Answers a malformed request. A client that asks for the versions in a version that is too new is
/// told which there are. Any other client is not understood, and its connection is closed.
fn answer_malformed(broker: &Broker, malformed: &Malformed) -> Option<BytesMut> {
    match malformed {
        Malformed::Version { key: ApiKey::ApiVersions, correlation_id, .. } => {
            refuse_version(*correlation_id, broker.api_versions())
        }
        _ => None,
    }
}

/// Why a connection was closed.
#[derive(Debug)]
struct Error(String);

impl From<String> for Error {
    fn from(text: String) -> Self {
        Error(text)
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        Error(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
