//! What a command answers, in RESP2 or RESP3.

use std::fmt::Display;
use std::io::Write;

/// Replies, one after the other.
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) resp3: bool,
    max: usize,
    /// It had to be longer than it may be: what it has is of no use.
    pub(crate) is_overflown: bool,
}

impl Reply {
    /// Creates a reply that goes on after `bytes`, and has at most `max` of them.
    pub(crate) fn new(bytes: Vec<u8>, resp3: bool, max: usize) -> Self {
        Reply { bytes, resp3, max, is_overflown: false }
    }

    pub(crate) fn ok(&mut self) {
        self.simple("OK");
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.line('+', text);
    }

    /// Writes an error; its text has no line breaks then.
    pub(crate) fn error(&mut self, text: &str) {
        self.line('-', text.replace(['\r', '\n'], " "));
    }

    pub(crate) fn integer(&mut self, number: impl Display) {
        self.line(':', number);
    }

    pub(crate) fn bulk(&mut self, word: impl AsRef<[u8]>) {
        let word = word.as_ref();
        if self.bytes.len() + word.len() > self.max {
            self.is_overflown = true;
            return;
        }
        self.line('$', word.len());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Begins an array of so many replies.
    pub(crate) fn array(&mut self, length: usize) {
        self.line('*', length);
    }

    /// Begins a map of so many pairs.
    pub(crate) fn map(&mut self, length: usize) {
        if self.resp3 { self.line('%', length) } else { self.line('*', 2 * length) }
    }

    /// Begins a message, which answers no command.
    pub(crate) fn push(&mut self, length: usize) {
        self.line(if self.resp3 { '>' } else { '*' }, length);
    }

    /// Appends other replies.
    pub(crate) fn append(&mut self, other: Reply) {
        self.is_overflown |= other.is_overflown;
        self.bytes.extend(other.bytes);
    }

    fn line(&mut self, kind: char, text: impl Display) {
        write!(self.bytes, "{kind}{text}\r\n").expect("a vector takes everything");
    }
}
