//! RESP, in its versions 2 and 3: requests, an array of strings or a line of words as one types it;
//! and what a command answers.

use bytes::{Buf, BytesMut};
use std::fmt::Display;
use std::io::Write;
use std::mem;

/// The words of a request.
pub(crate) type Request = Vec<Vec<u8>>;

/// What no client may send; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

const UNBALANCED: Malformed = Malformed("unbalanced quotes in request");

/// The longest line: a length, or a request that was typed.
const MAX_LINE: usize = 64 * 1024;
const MAX_WORDS: i64 = 64 * 1024;
/// What a word counts for beside its bytes: its place, and what an allocator takes at least.
const OVERHEAD: usize = size_of::<Vec<u8>>() + 32;

/// Returns how many bytes a request takes.
pub(crate) fn size(request: &Request) -> usize {
    let empty = (request.capacity() - request.len()) * size_of::<Vec<u8>>();
    OVERHEAD
        + empty
        + request
            .iter()
            .map(|word| word.capacity() + OVERHEAD)
            .sum::<usize>()
}

/// Returns the number that a word is: exactly as it would be written.
pub(crate) fn number(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    text.parse()
        .ok()
        .filter(|number: &i64| number.to_string() == text)
}

/// Reads requests that arrive in pieces. Each word is taken out as soon as it is complete, so
/// nothing is read twice. (The crate `redis-protocol` 6.0 begins anew with each piece, and reads
/// nested arrays by recursion: half a megabyte of them ends the process.)
#[derive(Debug)]
pub(crate) struct Parser {
    max_bytes: usize,
    words: Request,
    missing: usize,
    bytes: usize,
}

impl Parser {
    /// Creates a parser of requests that take at most `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Parser {
            max_bytes,
            words: Vec::new(),
            missing: 0,
            bytes: 0,
        }
    }

    /// Returns how many bytes the request takes that is not complete yet.
    pub(crate) fn held(&self) -> usize {
        self.bytes
    }

    /// Takes the next request out of `input`, if it is complete; it may have no words.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Request>, Malformed> {
        if self.missing == 0 {
            let Some((line, end)) = line(input)? else {
                return Ok(None);
            };
            let Some(digits) = line.strip_prefix(b"*") else {
                let request = words(line)?;
                input.advance(end);
                return Ok(Some(request));
            };
            let words = number(digits).filter(|words| *words <= MAX_WORDS);
            let words = words.ok_or(Malformed("invalid multibulk length"))?;
            self.missing = usize::try_from(words).unwrap_or(0);
            input.advance(end);
        }
        while self.missing > 0 {
            let Some(word) = self.word(input)? else {
                return Ok(None);
            };
            self.words.push(word);
            self.missing -= 1;
        }
        self.bytes = 0;
        Ok(Some(mem::take(&mut self.words)))
    }

    /// Takes a word out of `input`, if it is complete.
    fn word(&mut self, input: &mut BytesMut) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((line, start)) = line(input)? else {
            return Ok(None);
        };
        let digits = line.strip_prefix(b"$").ok_or(Malformed("expected '$'"))?;
        let length = number(digits).and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or(Malformed("invalid bulk length"))?;
        if length.saturating_add(OVERHEAD) > self.max_bytes - self.bytes {
            return Err(Malformed("the request is too large"));
        }
        if input.len() < start + length + 2 {
            return Ok(None);
        }
        self.bytes += length + OVERHEAD;
        let word = input[start..start + length].to_vec();
        input.advance(start + length + 2);
        Ok(Some(word))
    }
}

/// Returns the first line, if it is complete, and where what follows it begins.
fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    match input.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = &input[..end];
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1)))
        }
        None if input.len() >= MAX_LINE => Err(Malformed("too big inline request")),
        None => Ok(None),
    }
}

/// Splits a line as Redis does: a word, or a part of it, may stand in quotes.
fn words(line: &[u8]) -> Result<Request, Malformed> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let (word, after) = word(rest)?;
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Ok(words)
}

/// Takes the first word out of a line that begins with one, and returns what follows.
fn word(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), Malformed> {
    let mut word = Vec::new();
    let mut open = None;
    loop {
        let (byte, length) = match (open, rest) {
            (None, []) => return Ok((word, rest)),
            (None, [space, ..]) if space.is_ascii_whitespace() => return Ok((word, rest)),
            (None, [quote @ (b'"' | b'\''), inside @ ..]) => {
                open = Some(*quote);
                rest = inside;
                continue;
            }
            (Some(quote), [close, after @ ..]) if *close == quote => {
                let ends = after.first().is_none_or(u8::is_ascii_whitespace);
                return if ends {
                    Ok((word, after))
                } else {
                    Err(UNBALANCED)
                };
            }
            (Some(_), []) => return Err(UNBALANCED),
            (Some(b'"'), [b'\\', escaped @ ..]) => unescaped(escaped),
            (Some(b'\''), [b'\\', b'\'', ..]) => (b'\'', 2),
            (_, [byte, ..]) => (*byte, 1),
        };
        word.push(byte);
        rest = &rest[length..];
    }
}

/// Returns the byte that stands for what follows a `\`, and the length of both.
fn unescaped(escaped: &[u8]) -> (u8, usize) {
    let hex = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0) as u8;
    match *escaped {
        [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
            (hex(high) * 16 + hex(low), 4)
        }
        [b'n', ..] => (b'\n', 2),
        [b'r', ..] => (b'\r', 2),
        [b't', ..] => (b'\t', 2),
        [b'b', ..] => (8, 2),
        [b'a', ..] => (7, 2),
        [byte, ..] => (byte, 2),
        [] => (b'\\', 1),
    }
}

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
        Reply {
            bytes,
            resp3,
            max,
            is_overflown: false,
        }
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
        self.bytes
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Begins an array of so many replies.
    pub(crate) fn array(&mut self, length: usize) {
        self.line('*', length);
    }

    /// Begins a map of so many pairs.
    pub(crate) fn map(&mut self, length: usize) {
        if self.resp3 {
            self.line('%', length)
        } else {
            self.line('*', 2 * length)
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    /// Reads what comes in these pieces.
    fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Request>, Option<Malformed>) {
        let mut parser = Parser::new(300);
        let mut input = BytesMut::new();
        let mut requests = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match parser.next(&mut input) {
                    Ok(Some(request)) => requests.push(request),
                    Ok(None) => break,
                    Err(malformed) => return (requests, Some(malformed)),
                }
            }
        }
        (requests, None)
    }

    quickcheck! {
        fn pieces_do_not_matter(pairs: Vec<(String, String)>, garbage: Vec<u8>, size: u8) -> bool {
            let mut sent = Vec::new();
            for (one, other) in &pairs {
                sent.extend(format!("*2\r\n${}\r\n{one}\r\n", one.len()).bytes());
                sent.extend(format!("${}\r\n{other}\r\n", other.len()).bytes());
            }
            sent.extend(garbage);
            read(sent.chunks(usize::from(size) + 1)) == read([&sent[..]].into_iter())
        }
    }

    #[test]
    fn requests_and_what_is_none() {
        let cases: [(&str, &[&[&str]], &str); 7] = [
            ("*2\r\n$3\r\nget\r\n$2\r\n\r\n\r\n", &[&["get", "\r\n"]], ""),
            (
                " set  k\tv\r\n\n*0\n*-1\r\n",
                &[&["set", "k", "v"], &[], &[], &[]],
                "",
            ),
            ("*1\n$1\na\r\nb\n*1\r\n$1\r\n", &[&["a"], &["b"]], ""),
            (
                "\"a b\" 'it\\'s' \"\\x41\\n\\\"\" \"\" a'b'\n",
                &[&["a b", "it's", "A\n\"", "", "ab"]],
                "",
            ),
            ("get \"a\nget 'a'b\n", &[], "unbalanced quotes in request"),
            ("*1\r\n$-1\r\n", &[], "invalid bulk length"),
            ("*1\r\n$01\r\n", &[], "invalid bulk length"),
        ];
        for (sent, requests, error) in cases {
            let (read, malformed) = read([sent.as_bytes()].into_iter());
            let words = |words: &&[&str]| words.iter().map(|it| it.as_bytes().to_vec()).collect();
            assert_eq!(
                read,
                requests.iter().map(words).collect::<Vec<Request>>(),
                "{sent:?}"
            );
            assert_eq!(
                malformed.map_or("", |malformed| malformed.0),
                error,
                "{sent:?}"
            );
        }
    }
}
