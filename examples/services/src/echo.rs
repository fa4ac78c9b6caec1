//! An echo server on one thread. mio's loop waits for sockets, and drives the timer beside that.

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Wake, Waker};
use std::time::Duration;
use tickwheel::{CancelOnDrop, Clock, Listener, Timer};

/// The tokens of connections begin after these two.
const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);

/// What the timer has the server do.
#[derive(Debug)]
pub enum Due {
    /// The connection of this number has been silent for too long.
    Idle(usize),
    /// All connections get this text.
    Announce(String),
}

/// What has happened to the connection of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Opened(usize),
    /// Its client has closed it.
    Closed(usize),
    /// It was idle, and the server has closed it.
    Idle(usize),
}

/// The server: see the [module](self).
#[derive(Debug)]
pub struct Echo {
    poll: Poll,
    socket: TcpListener,
    connections: HashMap<Token, Connection>,
    next_token: usize,
    idle: Duration,
    timer: Timer<Due>,
    listener: Listener,
    /// Ends the loop's wait, from any thread.
    waker: Waker,
    /// What has expired: the timer's executor and the loop are on the same thread.
    due: Receiver<Due>,
}

/// Ends a wait of mio's poll. If the system fails, the loop wakes up later.
struct EndsWait(mio::Waker);

impl Wake for EndsWait {
    fn wake(self: Arc<Self>) {
        let _ = self.0.wake();
    }
}

impl Echo {
    /// Listens at `address`. A connection may be silent for as long as `idle`.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: SocketAddr, idle: Duration, clock: impl Into<Clock>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut socket = TcpListener::bind(address)?;
        poll.registry().register(&mut socket, SOCKET, Interest::READABLE)?;
        let waker = Arc::new(EndsWait(mio::Waker::new(poll.registry(), WAKER)?)).into();
        let (sender, due) = channel();
        let timer = Timer::builder()
            .clock(clock)
            .executor(move |task| sender.send(task).map_err(|refused| refused.0))
            .build()?;
        let (connections, next_token) = (HashMap::new(), WAKER.0 + 1);
        let listener = timer.listener();
        Ok(Echo { poll, socket, connections, next_token, idle, timer, listener, waker, due })
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the timer. Other threads add to it what the server is to do; to shut it down ends
    /// the server.
    #[must_use]
    pub fn timer(&self) -> Timer<Due> {
        self.timer.clone()
    }

    /// Serves until the timer is shut down.
    ///
    /// # Errors
    /// The system's, when it can wait no more, or accept no connection.
    pub fn run(mut self, mut report: impl FnMut(Event)) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !self.timer.is_shutdown() {
            self.timer.advance_clock(Duration::ZERO);
            while let Ok(due) = self.due.try_recv() {
                self.expire(due, &mut report);
            }
            // After everything that adds timers; what others add from here on wakes the loop.
            let next = self.listener.next_expiration(&self.waker);
            let wait = next.map(|next| next.saturating_duration_since(self.timer.now()));
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                match event.token() {
                    SOCKET => self.accept(&mut report)?,
                    WAKER => {} // It has ended the wait, and that is all.
                    token => self.serve(token, &mut report),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, report: &mut impl FnMut(Event)) -> io::Result<()> {
        loop {
            let mut stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let token = Token(self.next_token);
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, token, both)?;
            // Refused only after a shutdown: then the server ends.
            let Ok(timeout) = self.timer.after(self.idle, Due::Idle(token.0)) else {
                return Ok(());
            };
            self.next_token += 1;
            self.connections.insert(token, Connection::new(stream, timeout.cancel_on_drop()));
            report(Event::Opened(token.0));
        }
    }

    fn serve(&mut self, token: Token, report: &mut impl FnMut(Event)) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if !connection.echo(self.idle) {
            self.connections.remove(&token); // Its timeout is cancelled.
            report(Event::Closed(token.0));
        }
    }

    fn expire(&mut self, due: Due, report: &mut impl FnMut(Event)) {
        match due {
            Due::Idle(number) => {
                if self.connections.remove(&Token(number)).is_some() {
                    report(Event::Idle(number));
                }
            }
            Due::Announce(text) => {
                let tokens: Vec<_> = self.connections.keys().copied().collect();
                for token in tokens {
                    if let Some(connection) = self.connections.get_mut(&token) {
                        connection.send(text.as_bytes());
                    }
                    self.serve(token, report);
                }
            }
        }
    }
}

/// A connection: sends back what it reads, and what it is told to send.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Nothing is read while something is unsent: so this stays small.
    unsent: Vec<u8>,
    idle: CancelOnDrop<Due>,
}

impl Connection {
    fn new(stream: TcpStream, idle: CancelOnDrop<Due>) -> Self {
        Connection { stream, unsent: Vec::new(), idle }
    }

    /// Sends something when [`echo`](Self::echo) is called next.
    fn send(&mut self, text: &[u8]) {
        self.unsent.extend_from_slice(text);
    }

    /// Reads and sends until the socket would block. What is read puts the idle timeout off.
    /// Returns whether the connection is still open.
    fn echo(&mut self, idle: Duration) -> bool {
        let mut buffer = [0; 4096];
        loop {
            let done = if self.unsent.is_empty() {
                self.stream.read(&mut buffer).inspect(|length| {
                    self.idle.timeout().touch(idle);
                    self.unsent.extend_from_slice(&buffer[..*length]);
                })
            } else {
                self.stream.write(&self.unsent).inspect(|length| {
                    self.unsent.drain(..*length);
                })
            };
            match done {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }
}
