//! A server in this process, on real sockets, and clients of it.

#![allow(dead_code)] // Each test uses a part of it.

use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, RedisResult, Value};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timer};
use tickwheel_ttlstore::memory::Policy;
use tickwheel_ttlstore::request::{Limits, Malformed, Parser};
use tickwheel_ttlstore::server;
use tickwheel_ttlstore::shared::{Bounds, Shared};
use tokio::runtime::Runtime;

/// Only a bug takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const BOUNDS: Bounds = Bounds {
    max_clients: 20,
    request: Limits { max_frame: 1 << 20, max_args: 1000 },
    max_reply: 16 << 20,
    max_backlog: 1 << 20,
    max_held: 64 << 20,
    max_stall: PATIENCE,
    max_memory: 0,
    policy: Policy::NoEviction,
};

/// Ends when it is dropped.
pub struct Server {
    pub shared: Arc<Shared>,
    pub address: SocketAddr,
    _runtime: Runtime,
}

impl Server {
    pub fn start(timer: Timer, bounds: Bounds) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_io()
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let listener = server::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        drop(entered);
        let address = listener.local_addr().expect("an address");
        let shared = Shared::new(timer, Timer::builder().start().expect("a timer"), bounds);
        runtime.spawn(server::run(listener, Arc::clone(&shared)));
        Server { shared, address, _runtime: runtime }
    }

    /// Starts a store with a reaper, on the real clock.
    pub fn real() -> Self {
        Self::start(Timer::builder().start().expect("a timer"), BOUNDS)
    }

    /// Starts a store in virtual time, which passes only by `pass`.
    pub fn manual() -> (Self, ManualClock) {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().expect("a timer");
        (Self::start(timer, BOUNDS), clock)
    }

    pub fn client(&self) -> Connection {
        connect(self.address.port(), 2)
    }

    pub fn raw(&self) -> Raw {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Raw(stream)
    }
}

pub fn connect(port: u16, protocol: u8) -> Connection {
    let address = ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
    let info = address.into_connection_info().expect("an address");
    let protocol =
        if protocol == 3 { redis::ProtocolVersion::RESP3 } else { redis::ProtocolVersion::RESP2 };
    let settings = info.redis_settings().clone().set_protocol(protocol);
    let client = Client::open(info.set_redis_settings(settings)).expect("an address");
    client.get_connection().expect("a server")
}

/// Sends a command, as one would type it.
pub fn ask(client: &mut Connection, line: &str) -> RedisResult<Value> {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client)
}

/// Returns the same as text: a reply, or an error.
pub fn told(client: &mut Connection, line: &str) -> String {
    match ask(client, line) {
        Ok(Value::Nil) => "nil".to_owned(),
        Ok(Value::Okay) => "OK".to_owned(),
        Ok(Value::Int(number)) => number.to_string(),
        Ok(Value::SimpleString(text)) => text,
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => {
            format!("{} {}", error.code().unwrap_or("?"), error.detail().unwrap_or_default())
        }
    }
}

/// A connection that may say anything.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn send(&mut self, bytes: &[u8]) {
        // The server may have closed it already.
        let _ = self.0.write_all(bytes);
    }

    /// Reads exactly this.
    pub fn expect(&mut self, wanted: &str) {
        let mut got = vec![0; wanted.len()];
        let read = self.0.read_exact(&mut got);
        assert_eq!(String::from_utf8_lossy(&got), wanted, "{read:?}");
    }

    /// Reads the two messages that a key's end makes for a subscriber to the channel and to
    /// `__key*:expired`. Returns the key.
    pub fn event(&mut self) -> String {
        self.expect("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:expired\r\n");
        let key = self.bulk();
        self.expect("*4\r\n$8\r\npmessage\r\n$14\r\n__key*:expired\r\n");
        self.expect("$22\r\n__keyevent@0__:expired\r\n");
        assert_eq!(self.bulk(), key);
        key
    }

    /// Reads a bulk of less than ten bytes.
    fn bulk(&mut self) -> String {
        let mut head = [0; 4];
        self.0.read_exact(&mut head).expect("a length");
        let mut word = vec![0; usize::from(head[1] - b'0') + 2];
        self.0.read_exact(&mut word).expect("a word");
        String::from_utf8_lossy(&word[..word.len() - 2]).into_owned()
    }

    /// Reads all that comes until the server closes the connection.
    pub fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.0.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => rest.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the connection stays open: {error}"),
            }
        }
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Returns the requests that the parser sees in what comes in these pieces, up to the first that is
/// malformed.
pub fn parsed(limits: Limits, pieces: &[&[u8]]) -> Vec<Result<Vec<Vec<u8>>, Malformed>> {
    let (mut parser, mut input, mut used, mut seen) =
        (Parser::new(limits), Vec::new(), 0, Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match parser.parse(&input[used..]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let words = parser.args(&input[used..]).from(0);
                    seen.push(Ok(words.map(<[u8]>::to_vec).collect()));
                    used += length;
                }
                Err(malformed) => {
                    seen.push(Err(malformed));
                    return seen;
                }
            }
        }
    }
    seen
}

/// Waits for what must come.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
