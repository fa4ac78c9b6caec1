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

    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Starts again; a buffer that grew large is not kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 16);
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.simple("OK");
    }

    /// A short text that we wrote ourselves.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: its code, and what it says.
    pub fn error(&mut self, text: &str) {
        // What clients sent may be part of it, and must not end the line.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.line(b'-', text.as_bytes());
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// How many of something there are.
    pub fn count(&mut self, count: usize) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A text of several lines, for people.
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

    /// Nothing.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array of so many.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// The head of a map of so many pairs.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', 2 * pairs),
            Protocol::Resp3 => self.length(b'%', pairs),
        }
    }

    /// The head of what nobody has asked for just now.
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
