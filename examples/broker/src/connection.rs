//! Connections: one request after the other, answered in their order, as Kafka does.

use crate::broker::Broker;
use crate::wire::{Inbox, Malformed, Request, encode_response, refuse_version};
use bytes::BytesMut;
use kafka_protocol::messages::ApiKey;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// For how long a client may leave an answer unread.
const WRITE: Duration = Duration::from_secs(30);

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
    loop {
        let frame = inbox.next(&broker.timer).await;
        let Some(frame) = frame.map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let answer = match Request::decode(frame) {
            Ok(request) => tokio::select! {
                biased; // What is answered at once is answered also to who has gone.
                answer = answer(broker, request) => answer?,
                () = inbox.closed() => return Ok(()),
            },
            Err(malformed) => {
                broker.counters.malformed.fetch_add(1, Ordering::Relaxed);
                Some(answer_malformed(broker, &malformed).ok_or_else(|| malformed.to_string())?)
            }
        };
        if let Some(answer) = answer {
            let written = broker.timer.timeout(WRITE, writer.write_all(&answer)).await;
            written.map_err(|_| "an answer that nobody reads".to_owned())??;
        }
    }
}

/// Returns the answer as a frame, or `None` if nobody wants one.
async fn answer(broker: &Arc<Broker>, request: Request) -> Result<Option<BytesMut>, Error> {
    broker.counters.count(request.api);
    let (key, version, correlation) = (request.api.key, request.version, request.correlation_id);
    let Some(body) = broker.answer(request).await else { return Ok(None) };
    let frame = encode_response(key, version, correlation, &body);
    Ok(Some(frame.map_err(|error| format!("an answer that can't be written: {error}"))?))
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

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error(error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
