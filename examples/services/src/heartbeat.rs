//! Heartbeats between many connections' two ends, after Dubbo's exchange client and server.
//!
//! A connection has an idle timer in each direction. Each read and each write puts its direction's
//! timeout off by `touch`, which writes one word. Nobody ever looks through the connections for
//! those that are idle.

use parking_lot::Mutex;
use socket2::SockRef;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::future::SleepError;
use tickwheel::{CancelOnDrop, Timeout, Timer, TimerEntry};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::SetOnce;

/// A byte that says nothing but that its sender is alive.
pub const HEARTBEAT: u8 = b'h';
/// A byte that is answered: it stands for requests.
pub const QUESTION: u8 = b'?';
pub const ANSWER: u8 = b'!';

/// What all connections of a process share.
#[derive(Clone)]
pub struct Exchange {
    pub timer: Timer,
    /// An end that has written nothing for so long sends a heartbeat.
    pub heartbeat: Duration,
    /// An end that has read nothing for so long gives the connection up.
    pub idle_timeout: Duration,
}

/// What becomes of a connection, as one of its ends sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Opened { connection: u32 },
    Closed { connection: u32, end: End },
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The other end has closed it, or died.
    Closed,
    /// Nothing came from the other end for so long.
    Silent(Duration),
}

pub struct Connection {
    timer: Timer,
    idle_read: IdleTimer,
    idle_write: IdleTimer,
    /// Set when it was given up: for how long nothing had come.
    silence: SetOnce<Duration>,
    /// The last field: when the other end sees it closed, the timeouts are gone.
    stream: TcpStream,
}

/// Calls `on_idle` when its direction has been idle for `delay`.
struct IdleTimer {
    delay: Duration,
    on_idle: fn(&Arc<Connection>),
    state: Mutex<State>,
}

struct State {
    last_used: Instant,
    /// Cancelled with the connection, so that nothing of it stays in the timer.
    timeout: Option<CancelOnDrop>,
}

impl Connection {
    /// Starts to watch a stream. To be opened counts as a sign of life.
    pub fn open(exchange: &Exchange, stream: TcpStream) -> Arc<Self> {
        let _ = stream.set_nodelay(true); // Fails only if it is closed: that will be seen.
        let idle = |delay, on_idle| {
            let state = State {
                last_used: exchange.timer.now(),
                timeout: None,
            };
            IdleTimer {
                delay,
                on_idle,
                state: Mutex::new(state),
            }
        };
        let connection = Arc::new(Connection {
            timer: exchange.timer.clone(),
            stream,
            idle_read: idle(exchange.idle_timeout, Connection::on_idle_read),
            idle_write: idle(exchange.heartbeat, |connection| {
                connection.send(&[HEARTBEAT])
            }),
            silence: SetOnce::new(),
        });
        connection.extend_idle(&connection.idle_read);
        connection.extend_idle(&connection.idle_write);
        connection
    }

    /// Waits for bytes. Loses none if it is dropped while it waits.
    pub async fn read(self: &Arc<Self>, buffer: &mut [u8]) -> Result<usize, End> {
        tokio::select! {
            silence = self.silence.wait() => Err(End::Silent(*silence)),
            read = receive(&self.stream, buffer) => match read {
                Ok(0) | Err(_) => Err(End::Closed),
                Ok(length) => {
                    self.extend_idle(&self.idle_read);
                    Ok(length)
                }
            },
        }
    }

    /// Sends a few bytes, without waiting: so the timer's thread may call it, too.
    ///
    /// What does not fit into the socket is dropped, where a service would queue it. A heartbeat
    /// may be: there is enough on its way to the other end.
    pub fn send(self: &Arc<Self>, bytes: &[u8]) {
        self.extend_idle(&self.idle_write);
        // If it fails the reader is told as well.
        let _ = self.stream.try_write(bytes);
    }

    fn on_idle_read(self: &Arc<Self>) {
        let last_read = self.idle_read.state.lock().last_used;
        let silence = self.timer.now().duration_since(last_read);
        // What came as the time was up, or lies unread, is a sign of life: the one who is late is
        // this process.
        let peeked = SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]);
        let has_unread = peeked.is_ok_and(|length| length > 0);
        if silence < self.idle_read.delay || has_unread {
            self.extend_idle(&self.idle_read);
        } else {
            let _ = self.silence.set(silence);
        }
    }

    /// Handles a sign of life in one direction. Sets the timeout if there is none, or if it has
    /// expired.
    fn extend_idle(self: &Arc<Self>, idle: &IdleTimer) {
        let mut state = idle.state.lock();
        state.last_used = self.timer.now();
        let deadline = state.last_used + idle.delay;
        if state
            .timeout
            .as_ref()
            .is_some_and(|timeout| timeout.touch(deadline))
        {
            return;
        }
        let connection = Arc::downgrade(self);
        let on_idle = idle.on_idle;
        let task = move || {
            if let Some(connection) = connection.upgrade() {
                on_idle(&connection);
            }
        };
        // Refused if the timer is full or was shut down: unwatched until the next sign of life.
        let added = self.timer.add(TimerEntry::at(deadline, task)).ok();
        state.timeout = added.map(Timeout::cancel_on_drop);
    }

    /// Answers questions, until the connection ends.
    async fn converse(self: &Arc<Self>) -> End {
        let mut buffer = [0; 1024];
        loop {
            match self.read(&mut buffer).await {
                Ok(length) if buffer[..length].contains(&QUESTION) => self.send(&[ANSWER]),
                Ok(_) => {}
                Err(end) => return end,
            }
        }
    }
}

async fn receive(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Accepts connections, attends to each, and closes those that fell silent. After a shutdown of the
/// timer it accepts them unwatched, and returns at the first accept that fails.
pub async fn serve(
    exchange: Exchange,
    listener: TcpListener,
    report: impl Fn(Event) + Clone + Send + 'static,
) -> Result<(), SleepError> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let stream = Connection::open(&exchange, stream);
                let report = report.clone();
                tokio::spawn(async move { attend(stream, report).await });
            }
            // Out of files, most likely: some will be closed.
            Err(_) => exchange.timer.sleep(exchange.heartbeat).await?,
        }
    }
}

async fn attend(stream: Arc<Connection>, report: impl Fn(Event)) -> Result<(), End> {
    let mut name = [0; 4];
    let mut length = 0;
    while length < name.len() {
        length += stream.read(&mut name[length..]).await?;
    }
    let connection = u32::from_be_bytes(name);
    report(Event::Opened { connection });
    let end = stream.converse().await;
    drop(stream); // Closes it, and cancels its timeouts.
    report(Event::Closed { connection, end });
    Ok(())
}

/// Keeps a connection to a server open: opens it again whenever it has ended. Returns when the
/// connection ends after a shutdown of the timer.
pub async fn keep_connected(
    exchange: Exchange,
    server: SocketAddr,
    connection: u32,
) -> Result<(), SleepError> {
    loop {
        let connecting = exchange
            .timer
            .timeout(exchange.idle_timeout, TcpStream::connect(server));
        if let Ok(Ok(stream)) = connecting.await {
            let stream = Connection::open(&exchange, stream);
            stream.send(&connection.to_be_bytes());
            stream.converse().await;
        }
        exchange.timer.sleep(exchange.heartbeat).await?;
    }
}
