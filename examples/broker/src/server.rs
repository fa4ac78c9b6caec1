//! The server: its connections, each with one request after the other, answered in their order.

use crate::wire::{Malformed, decode, encode};
use crate::{Broker, LONGEST_WAIT, Options, api_versions};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tickwheel::Timer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::ReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The largest request, in bytes: a batch of the largest size, and some more.
const MAX_FRAME: usize = 2 << 20;
/// For how long a frame may be on its way, in either direction.
const FRAME_TIME: Duration = Duration::from_secs(30);
/// How often a line says how it goes.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// For how long nothing is accepted when there were no file descriptors, and for how long, at the
/// end, clients may read what they are answered.
const PAUSE: Duration = Duration::from_millis(500);

pub struct Server {
    broker: Arc<Broker>,
    listener: TcpListener,
    timer: Timer,
    max_connections: usize,
    counts: Arc<Counts>,
}

/// What was counted so far.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: AtomicU64,
    /// Frames that were no requests of ours. Each closes its connection.
    pub malformed: AtomicU64,
    /// Connections that were one too many.
    pub refused: AtomicU64,
}

impl Server {
    /// Binds the port. Everything will wait on `timer`.
    pub async fn bind(options: &Options, timer: Timer) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let broker = Broker::new(options, listener.local_addr()?, &timer);
        let max_connections = options.max_connections;
        Ok(Server {
            broker,
            listener,
            timer,
            max_connections,
            counts: Arc::default(),
        })
    }

    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    pub fn address(&self) -> SocketAddr {
        self.broker.address
    }

    /// Serves until `end`, then answers what waits.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Server {
            broker,
            listener,
            timer,
            max_connections,
            counts,
        } = self;
        say(&format!("listening on {}", broker.address));
        let mut clients = JoinSet::new();
        let mut said = String::new();
        let mut next_report = timer.now() + REPORT_EVERY;
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) if clients.len() < max_connections => {
                        let counts = Arc::clone(&counts);
                        clients.spawn(serve(Arc::clone(&broker), timer.clone(), counts, stream));
                    }
                    Ok(_) => count(&counts.refused),
                    Err(_) => drop(timer.sleep(PAUSE).await),
                },
                Some(_) = clients.join_next() => {}
                _ = timer.sleep(next_report) => {
                    let report = format!("{}; {} waiting", counts, broker.waiting());
                    if report != said {
                        say(&format!("{} connections, {report}", clients.len()));
                        said = report;
                    }
                    next_report += REPORT_EVERY;
                }
            }
        }
        say(&format!("end: {}", broker.waiting()));
        broker.shutdown();
        let _ = timer
            .timeout(PAUSE, async {
                while clients.join_next().await.is_some() {}
            })
            .await;
    }
}

/// Serves a connection until it ends: because the client has gone, is silent, too slow, or not
/// understood.
async fn serve(
    broker: Arc<Broker>,
    timer: Timer,
    counts: Arc<Counts>,
    mut stream: TcpStream,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    loop {
        if timer
            .timeout(LONGEST_WAIT, reader.fill_buf())
            .await
            .ok()?
            .ok()?
            .is_empty()
        {
            return None;
        }
        let frame = timer
            .timeout(FRAME_TIME, read_frame(&mut reader))
            .await
            .ok()?
            .ok()?;
        let answer = match frame.ok_or(Malformed::Other).and_then(decode) {
            Ok(request) => {
                count(&counts.requests);
                let version = request.version;
                let correlation_id = request.correlation_id;
                let body = tokio::select! {
                    biased; // What is answered at once is answered also to who has gone.
                    body = broker.answer(request) => body,
                    () = has_gone(&mut reader) => return None,
                };
                let Some(body) = body else { continue };
                encode(version, correlation_id, &body)?
            }
            Err(malformed) => {
                let Malformed::Versions { correlation_id } = malformed else {
                    count(&counts.malformed);
                    return None;
                };
                let code = ResponseError::UnsupportedVersion.code();
                encode(
                    0,
                    correlation_id,
                    &api_versions().with_error_code(code).into(),
                )?
            }
        };
        timer
            .timeout(FRAME_TIME, writer.write_all(&answer))
            .await
            .ok()?
            .ok()?;
    }
}

/// Reads a frame. Returns `None` if it claims a length that none may have.
async fn read_frame(reader: &mut BufReader<ReadHalf<'_>>) -> io::Result<Option<Bytes>> {
    let length = usize::try_from(reader.read_i32().await?);
    let Some(length) = length.ok().filter(|length| *length <= MAX_FRAME) else {
        return Ok(None);
    };
    let mut frame = vec![0; length];
    reader.read_exact(&mut frame).await?;
    Ok(Some(frame.into()))
}

/// Waits until the client has gone. One that has sent its next request already is not seen going.
async fn has_gone(reader: &mut BufReader<ReadHalf<'_>>) {
    if reader.fill_buf().await.is_ok_and(|ahead| !ahead.is_empty()) {
        std::future::pending().await
    }
}

/// Prints a line, whether somebody reads it or not.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = count(&self.requests);
        let malformed = count(&self.malformed);
        let refused = count(&self.refused);
        write!(
            f,
            "{requests} requests, {malformed} malformed, {refused} connections refused"
        )
    }
}
