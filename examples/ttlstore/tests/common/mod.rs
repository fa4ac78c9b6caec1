//! A server on a thread of this process, and clients of it.

#![allow(dead_code)] // Each test uses a part of it.

use redis::{Connection, ConnectionLike, Value};
use std::future;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{Executor, Inline, ManualClock, Task, Timer};
use tickwheel_services::PATIENCE;
use tickwheel_ttlstore::{Config, Limits, run};

pub const LIMITS: Limits = Limits {
    max_clients: 100,
    max_request: 1 << 20,
    max_client_memory: 32 << 20,
    max_memory: 1 << 30,
};

/// Serves until the process ends.
pub struct Server {
    pub url: String,
    pub timer: Timer,
    pub clock: ManualClock,
}

impl Server {
    /// Starts a server in virtual time.
    pub fn manual(limits: Limits) -> Self {
        Self::manual_on(Inline, limits)
    }

    /// Starts one whose keys expire on this executor.
    pub fn manual_on(executor: impl Executor<Task>, limits: Limits) -> Self {
        let clock = ManualClock::new();
        let builder = Timer::builder().clock(clock.clone()).executor(executor);
        Self::start(builder.build().expect("a timer"), clock, limits)
    }

    /// Starts a server in real time.
    pub fn real() -> Self {
        let timer = Timer::builder().start().expect("a timer");
        Self::start(timer, ManualClock::new(), LIMITS)
    }

    fn start(timer: Timer, clock: ManualClock, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = url(listener.local_addr().expect("an address").port());
        let config = Config {
            listener,
            stats: None,
            limits,
        };
        let keys = timer.clone();
        thread::spawn(move || run(config, &keys, future::pending()));
        Server { url, timer, clock }
    }

    /// Lets time pass, and what is due expire.
    pub fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        self.timer.advance_clock(Duration::ZERO);
    }

    pub fn client(&self) -> Connection {
        connect(&self.url, 2)
    }

    pub fn raw(&self) -> Raw {
        let stream =
            TcpStream::connect(self.url.trim_start_matches("redis://")).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Raw(stream)
    }

    /// Returns a number that INFO tells.
    pub fn info(&self, name: &str) -> usize {
        info(&mut self.client(), name)
    }

    /// Waits until INFO tells this number.
    pub fn wait(&self, name: &str, number: usize) {
        let start = Instant::now();
        while self.info(name) != number {
            assert!(start.elapsed() < PATIENCE, "{name} is {}", self.info(name));
        }
    }
}

pub fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

pub fn connect(url: &str, protocol: u8) -> Connection {
    let url = format!("{url}?protocol=resp{protocol}");
    let client = redis::Client::open(url).expect("an address");
    client.get_connection().expect("a server")
}

/// Sends a command, as one would type it, and returns the reply as text.
pub fn told(client: &mut Connection, line: &str) -> String {
    text(&client.req_packed_command(&encoded(line)).expect("a reply"))
}

/// Returns the bytes that a client sends for a command.
pub fn encoded(line: &str) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    line.split(' ').for_each(|word| _ = command.arg(word));
    command.get_packed_command()
}

/// Returns a number that INFO tells.
pub fn info(client: &mut Connection, name: &str) -> usize {
    let text = told(client, "info");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.parse().ok())
        .expect("a number of this name")
}

fn text(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Okay => "OK".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::SimpleString(text) => text.clone(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::ServerError(error) => {
            format!("{} {}", error.code(), error.details().unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

/// A client that sends and reads bytes.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("it is sent");
    }

    /// Sends lines, and reads this text.
    pub fn hears(&mut self, sent: &str, wanted: &str) {
        self.send(sent);
        let mut read = vec![0; wanted.len()];
        let ended = self.0.read_exact(&mut read);
        assert_eq!(
            String::from_utf8_lossy(&read),
            wanted,
            "{ended:?} after {sent}"
        );
    }

    /// Reads until the server ends the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let ended = self.0.read_to_end(&mut rest);
        // It may end by a reset, if something was not read.
        assert!(
            !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "it goes on"
        );
        rest
    }
}
