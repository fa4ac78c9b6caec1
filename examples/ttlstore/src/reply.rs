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

/// Replies that are written into a buffer.
#[derive(Debug, Default)]
pub struct Reply {
    bytes: Vec<u8>,
    /// From the next reply on.
    pub protocol: Protocol,
}

impl Reply {
    /// Appends to what is there.
    pub fn new(bytes: Vec<u8>, protocol: Protocol) -> Self {
        Reply { bytes, protocol }
    }

    /// Returns what was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns what was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
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
