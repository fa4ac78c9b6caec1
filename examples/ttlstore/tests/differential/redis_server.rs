//! A redis-server of our own.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Ends when it is dropped.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    child: Child,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("this test needs redis-server: apt-get install redis-server");
        let server = RedisServer { port, child };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "redis-server does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
