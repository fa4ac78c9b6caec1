//! Requests and responses over TCP with a time limit each, after Dubbo's `DefaultFuture`.
//!
//! The table of a connection's outstanding calls is a [`KeyedTimer`]: to take a call out of it, for
//! a response, a cancel or the end of the connection, and to let it expire are one step each, so
//! every call ends exactly once.

use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// A client: a connection, and the table of its outstanding calls.
pub struct Client {
    calls: KeyedTimer<u64, Call>,
    requests: mpsc::UnboundedSender<Request>,
    next_id: AtomicU64,
    /// The task that reads and writes: it ends, and closes the connection, with the client.
    _connection: JoinSet<()>,
}

/// Why a call has no response. One that was not sent will never be: it may be tried elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The time was up.
    Timeout { sent: bool },
    /// The connection has ended.
    Closed { sent: bool },
    /// The timer is full or was shut down; nothing was sent.
    Refused,
}

/// A call that is outstanding.
struct Call {
    request: Request,
    outcome: oneshot::Sender<Result<Vec<u8>, CallError>>,
}

/// A request as it waits to be sent. The code that takes it decides: the writer, which sends it, or
/// the end of its call, with which it is gone.
#[derive(Clone)]
struct Request(Arc<Mutex<Option<Vec<u8>>>>);

impl Client {
    /// Connects. `on_late` is called with the number of each response to a call that has ended
    /// already.
    pub async fn connect(
        server: SocketAddr,
        timer: &Timer,
        on_late: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let timed_out = |_, call: Call| call.fail(|sent| CallError::Timeout { sent });
        let calls = KeyedTimer::new(timer, timed_out);
        let (requests, unsent) = mpsc::unbounded_channel();
        let mut connection = JoinSet::new();
        let table = calls.clone();
        connection.spawn(async move {
            tokio::select! {
                _ = receive(reader, &table, on_late) => {}
                _ = send(writer, unsent) => {}
            }
            // The queue is closed by now: a call that comes too late for this sees that.
            for (_, call) in table.cancel_all() {
                call.fail(|sent| CallError::Closed { sent });
            }
        });
        Ok(Client {
            calls,
            requests,
            next_id: AtomicU64::new(0),
            _connection: connection,
        })
    }

    /// Sends a request and waits for its response, at most for `timeout`. Dropping the future
    /// cancels the call. After a shutdown of the timer no call times out: an outstanding call then
    /// waits for its response, or for the end of the connection.
    ///
    /// # Errors
    /// [`CallError`], which says whether the request was sent.
    ///
    /// # Panics
    /// If the body is longer than 16 MiB.
    pub async fn call(&self, body: &[u8], timeout: Duration) -> Result<Vec<u8>, CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = Request(Arc::new(Mutex::new(Some(encode(id, body)))));
        let (outcome, response) = oneshot::channel();
        let call = Call {
            request: request.clone(),
            outcome,
        };
        let added = self.calls.add(id, timeout, call);
        added.map_err(|_| CallError::Refused)?;
        let outstanding = Outstanding {
            calls: &self.calls,
            id,
        };
        if self.requests.send(request).is_err() {
            outstanding.end(|sent| CallError::Closed { sent });
        }
        response
            .await
            .expect("whoever takes a call out of the table tells how it ended")
    }

    /// Returns how many calls have not ended.
    pub fn outstanding(&self) -> usize {
        self.calls.len()
    }
}

async fn receive(
    reader: OwnedReadHalf,
    calls: &KeyedTimer<u64, Call>,
    on_late: impl Fn(u64),
) -> io::Result<()> {
    let mut reader = BufReader::new(reader);
    loop {
        let (id, body) = read_frame(&mut reader).await?;
        match calls.cancel(&id) {
            Some(call) => _ = call.outcome.send(Ok(body)),
            None => on_late(id),
        }
    }
}

async fn send(
    mut writer: OwnedWriteHalf,
    mut unsent: mpsc::UnboundedReceiver<Request>,
) -> io::Result<()> {
    while let Some(request) = unsent.recv().await {
        let frame = request.0.lock().take();
        if let Some(frame) = frame {
            writer.write_all(&frame).await?;
        }
    }
    Ok(())
}

impl Call {
    fn fail(self, error: fn(bool) -> CallError) {
        let sent = self.request.0.lock().take().is_none();
        let _ = self.outcome.send(Err(error(sent))); // Nobody hears of a cancel.
    }
}

/// A call as its caller has it.
struct Outstanding<'a> {
    calls: &'a KeyedTimer<u64, Call>,
    id: u64,
}

impl Outstanding<'_> {
    fn end(&self, error: fn(bool) -> CallError) {
        if let Some(call) = self.calls.cancel(&self.id) {
            call.fail(error);
        }
    }
}

/// The caller waits no longer: if the call has not ended, that is a cancel.
impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.end(|sent| CallError::Closed { sent });
    }
}

/// So that a broken peer can't ask for all the memory there is.
const MAX_BODY: u32 = 16 << 20;

/// Returns the frame of a request or response: the number of the request, and the body.
///
/// # Panics
/// If the body is longer than 16 MiB.
pub fn encode(id: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len())
        .ok()
        .filter(|length| *length <= MAX_BODY);
    let length = length.expect("a body of at most 16 MiB");
    [&id.to_be_bytes()[..], &length.to_be_bytes(), body].concat()
}

/// Reads the next request or response: its number and its body.
pub async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<(u64, Vec<u8>)> {
    let id = reader.read_u64().await?;
    let length = reader.read_u32().await?;
    if length > MAX_BODY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    reader.read_exact(&mut body).await?;
    Ok((id, body))
}
