//! Replies, as RESP2 and RESP3 write them.

use std::io::Write;

/// Which RESP a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Until a HELLO says otherwise.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Replies that are written into a buffer of a bounded size.
#[derive(Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    max: usize,
    is_overflown: bool,
    /// From the next reply on.
    pub protocol: Protocol,
}

impl Reply {
    /// Creates an empty buffer. It overflows when it should hold more than `max` bytes of bulks.
    pub fn new(protocol: Protocol, max: usize) -> Self {
        Reply { bytes: Vec::new(), max, is_overflown: false, protocol }
    }

    /// Creates an empty buffer like this one.
    pub fn like(&self) -> Self {
        Reply::new(self.protocol, self.max)
    }

    /// Appends what was written there.
    pub fn append(&mut self, other: &Reply) {
        self.is_overflown |= other.is_overflown;
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Returns what was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns how much memory that takes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns whether something is missing, because there was no room.
    pub fn is_overflown(&self) -> bool {
        self.is_overflown
    }

    /// Takes back what was written after the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// Starts again; a buffer that grew large is not kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 16);
    }

    /// Writes `+OK`.
    pub fn ok(&mut self) {
        self.simple("OK");
    }

    /// Writes a short text of our own.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error: its code and its text.
    pub fn error(&mut self, text: &str) {
        // What clients sent may be part of it, and must not end the line.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.line(b'-', text.as_bytes());
    }

    /// Writes an integer.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// Writes a count.
    pub fn count(&mut self, count: usize) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Writes bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.is_overflown || self.bytes.len().saturating_add(bytes.len()) > self.max {
            self.is_overflown = true; // The connection will be cut: nobody reads the rest.
            return;
        }
        self.bytes.reserve(bytes.len() + 32); // At once: to grow twice may take twice as much.
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a text of several lines, for people.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.length(b'=', text.len() + 4);
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes a null.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes that there is no array.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes the head of a set of so many elements.
    pub fn set(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', length),
            Protocol::Resp3 => self.length(b'~', length),
        }
    }

    /// Writes the head of an array of so many elements.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// Writes the head of a map of so many pairs.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', 2 * pairs),
            Protocol::Resp3 => self.length(b'%', pairs),
        }
    }

    /// Writes the head of a message that was not requested.
    pub fn push(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', length),
            Protocol::Resp3 => self.length(b'>', length),
        }
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.number(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.bytes.push(kind);
        if let digit @ 0..=9 = number {
            self.bytes.push(b'0' + digit as u8);
        } else {
            // Writing to a vector can't fail.
            let _ = write!(self.bytes, "{number}");
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
}
