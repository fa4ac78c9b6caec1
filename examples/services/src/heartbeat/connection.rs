//! One end of a connection, with an idle timer in each direction.
//!
//! Each read and each write puts its direction's timeout off by `touch`, which writes one word.
//! Nobody ever looks through the connections for those that are idle.

use super::{Exchange, HEARTBEAT};
use parking_lot::Mutex;
use rustix::io::ioctl_fionread;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tickwheel::{CancelOnDrop, Timeout, TimerEntry};
use tokio::net::TcpStream;
use tokio::sync::SetOnce;

pub struct Connection {
    exchange: Arc<Exchange>,
    stream: TcpStream,
    idle_read: IdleTimer,
    idle_write: IdleTimer,
    /// Set when it was given up: for how long nothing had come.
    silence: SetOnce<Duration>,
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The other end has closed it, or died.
    Closed,
    /// Nothing came from the other end for so long.
    Silent(Duration),
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
    pub fn open(exchange: &Arc<Exchange>, stream: TcpStream) -> Arc<Self> {
        let _ = stream.set_nodelay(true); // Fails only if it is closed: that will be seen.
        let idle = |delay, on_idle| {
            let state = State { last_used: exchange.timer.now(), timeout: None };
            IdleTimer { delay, on_idle, state: Mutex::new(state) }
        };
        let connection = Arc::new(Connection {
            exchange: Arc::clone(exchange),
            stream,
            idle_read: idle(exchange.terms.idle_timeout, Connection::on_idle_read),
            idle_write: idle(exchange.terms.heartbeat, Connection::on_idle_write),
            silence: SetOnce::new(),
        });
        connection.put_off(&connection.idle_read);
        connection.put_off(&connection.idle_write);
        connection
    }

    /// Waits for bytes. Loses none if it is dropped while it waits.
    pub async fn read(self: &Arc<Self>, buffer: &mut [u8]) -> Result<usize, End> {
        tokio::select! {
            silence = self.silence.wait() => Err(End::Silent(*silence)),
            read = receive(&self.stream, buffer) => match read {
                Ok(0) | Err(_) => Err(End::Closed),
                Ok(length) => {
                    self.put_off(&self.idle_read);
                    Ok(length)
                }
            },
        }
    }

    /// Sends a byte, without waiting: so the timer's thread may call it, too.
    ///
    /// What does not fit into the socket is dropped, where a service would queue it. A heartbeat
    /// may be: there is enough on its way to the other end.
    pub fn send(self: &Arc<Self>, byte: u8) {
        self.put_off(&self.idle_write);
        // If it fails the reader is told as well.
        let _ = self.stream.try_write(&[byte]);
    }

    /// Tells the other end who it is talking to: to be called first.
    pub fn introduce(self: &Arc<Self>, connection: u32) {
        connection.to_be_bytes().into_iter().for_each(|byte| self.send(byte));
    }

    fn on_idle_write(self: &Arc<Self>) {
        self.send(HEARTBEAT);
        self.exchange.heartbeats.fetch_add(1, Ordering::Relaxed);
    }

    fn on_idle_read(self: &Arc<Self>) {
        let last_read = self.idle_read.state.lock().last_used;
        let silence = self.exchange.timer.now().duration_since(last_read);
        // What came as the time was up, or lies unread, is a sign of life: the one who is late is
        // this process.
        let has_unread = ioctl_fionread(&self.stream).is_ok_and(|unread| unread > 0);
        if silence < self.idle_read.delay || has_unread {
            self.put_off(&self.idle_read);
        } else {
            let _ = self.silence.set(silence);
        }
    }

    /// Handles a sign of life in one direction. Sets the timeout if there is none, or if it has
    /// expired.
    fn put_off(self: &Arc<Self>, idle: &IdleTimer) {
        let timer = &self.exchange.timer;
        let mut state = idle.state.lock();
        state.last_used = timer.now();
        let deadline = state.last_used + idle.delay;
        let pending = state.timeout.as_ref().map(CancelOnDrop::timeout);
        if pending.is_some_and(|timeout| timeout.touch_at(deadline)) {
            return;
        }
        let (connection, on_idle) = (Arc::downgrade(self), idle.on_idle);
        let task = move || {
            if let Some(connection) = connection.upgrade() {
                on_idle(&connection);
            }
        };
        // Refused only after the timer's shutdown: then nobody watches any more.
        let added = timer.add(TimerEntry::at(deadline, task)).ok();
        state.timeout = added.map(Timeout::cancel_on_drop);
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
