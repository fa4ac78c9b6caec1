//! A connection: sends back what it reads, and what it is told to send.

use super::Due;
use mio::net::TcpStream;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;
use tickwheel::CancelOnDrop;

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Nothing is read while something is unsent: so this stays small.
    unsent: Vec<u8>,
    idle: CancelOnDrop<Due>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, idle: CancelOnDrop<Due>) -> Self {
        Connection { stream, unsent: Vec::new(), idle }
    }

    /// Sends something when [`echo`](Self::echo) is called next.
    pub(super) fn send(&mut self, text: &[u8]) {
        self.unsent.extend_from_slice(text);
    }

    /// Reads and sends until the socket would block. What is read puts the idle timeout off.
    /// Returns whether the connection is still open.
    pub(super) fn echo(&mut self, idle: Duration) -> bool {
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
