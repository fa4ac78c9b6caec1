//! Requests: an array of strings, or a line of words typed by hand.

use crate::line;
use std::fmt;
use std::ops::Range;

/// The longest line: a length, or an inline request.
const MAX_LINE: usize = 64 * 1024;

/// How large a request may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes, all told.
    pub max_frame: usize,
    /// Words.
    pub max_args: usize,
}

/// What no client may send; the connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERR Protocol error: {}", self.0)
    }
}

fn malformed<T>(text: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(text.into()))
}

/// The words of a request.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    input: &'a [u8],
    words: &'a [Range<usize>],
}

impl<'a> Args<'a> {
    /// Returns how many words there are, the command's name included.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether the line was empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns a word, if there are so many.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.words.get(index).map(|word| &self.input[word.clone()])
    }

    /// Returns the words from this one on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let input = self.input;
        self.words.iter().skip(index).map(move |word| &input[word.clone()])
    }

    /// Returns a copy, for later.
    pub fn to_request(&self) -> Request {
        let end = self.words.last().map_or(0, |word| word.end);
        Request { input: self.input[..end].into(), words: self.words.into() }
    }
}

/// A request that is kept.
#[derive(Debug)]
pub struct Request {
    input: Box<[u8]>,
    words: Box<[Range<usize>]>,
}

impl Request {
    /// Returns its words.
    pub fn args(&self) -> Args<'_> {
        Args { input: &self.input, words: &self.words }
    }

    /// Returns how many bytes it takes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.input.len() + size_of_val(&*self.words)
    }
}

/// Reads requests that arrive in pieces. It remembers what it has seen of the present one, so that
/// a large request in small pieces is not read over and over.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    words: Vec<Range<usize>>,
    /// What the words of a line are, without quotes and escapes, if the request is a line.
    unquoted: Vec<u8>,
    is_line: bool,
    /// How many words are still to come, once that is known.
    missing: Option<usize>,
    /// The length of the word at `at`, once that is known.
    length: Option<usize>,
    /// How much of the request was read.
    at: usize,
}

impl Parser {
    /// Creates a parser that has read nothing yet.
    pub fn new(limits: Limits) -> Self {
        let (words, unquoted) = (Vec::new(), Vec::new());
        Parser { limits, words, unquoted, is_line: false, missing: None, length: None, at: 0 }
    }

    /// Reads on in `input`, which begins where the present request does. Returns how long that is,
    /// once it is complete; its words are [`args`](Self::args).
    ///
    /// # Errors
    /// [`Malformed`]; then there is no use in going on.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        if self.at == 0 {
            self.words.clear();
            self.is_line = false;
        }
        let complete = match input.first() {
            None => false,
            Some(b'*') => self.array(input)?,
            Some(_) => self.inline(input)?,
        };
        if !complete {
            // Also what is still to come of it must fit.
            if self.at + self.length.unwrap_or(0) > self.limits.max_frame {
                return malformed("request too large");
            }
            return Ok(None);
        }
        let length = self.at;
        (self.missing, self.length, self.at) = (None, None, 0);
        if length > self.limits.max_frame {
            return malformed("request too large");
        }
        Ok(Some(length))
    }

    /// Returns the words of the request that was completed just now.
    pub fn args<'a>(&'a self, input: &'a [u8]) -> Args<'a> {
        Args { input: if self.is_line { &self.unquoted } else { input }, words: &self.words }
    }

    fn array(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => {
                let Some(line) = self.line(input, "too big mbulk count string")? else {
                    return Ok(false);
                };
                match number(&line[1..]) {
                    // An empty request is none, and not answered.
                    Some(i64::MIN..=0) => 0,
                    Some(count) if count as usize <= self.limits.max_args => count as usize,
                    _ => return malformed("invalid multibulk length"),
                }
            }
        };
        while missing > 0 {
            self.missing = Some(missing);
            if !self.word(input)? {
                return Ok(false);
            }
            missing -= 1;
        }
        Ok(true)
    }

    fn word(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(line) = self.line(input, "too big bulk count string")? else {
                    return Ok(false);
                };
                match line {
                    [b'$', digits @ ..] => match number(digits) {
                        Some(length @ 0..) if length as usize <= self.limits.max_frame => {
                            length as usize
                        }
                        _ => return malformed("invalid bulk length"),
                    },
                    other => {
                        let got = other.first().map_or(' ', |byte| char::from(*byte));
                        return malformed(format!("expected '$', got '{got}'"));
                    }
                }
            }
        };
        // With the end of the line, whatever that is: as Redis reads it.
        if input.len() < self.at + length + 2 {
            self.length = Some(length);
            return Ok(false);
        }
        self.length = None;
        self.words.push(self.at..self.at + length);
        self.at += length + 2;
        Ok(true)
    }

    fn inline(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let Some(end) = find_newline(input) else {
            return if input.len() > MAX_LINE {
                malformed("too big inline request")
            } else {
                Ok(false)
            };
        };
        self.is_line = true;
        self.unquoted.clear();
        if !line::split(&input[..end], &mut self.unquoted, &mut self.words) {
            return malformed("unbalanced quotes in request");
        }
        self.at = end + 1;
        Ok(true)
    }

    /// Returns the line at `at`, if all of it is there.
    fn line<'a>(&mut self, input: &'a [u8], too_long: &str) -> Result<Option<&'a [u8]>, Malformed> {
        let rest = &input[self.at..];
        let Some(end) = find_newline(rest) else {
            return if rest.len() > MAX_LINE { malformed(too_long) } else { Ok(None) };
        };
        self.at += end + 1;
        Ok(Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end])))
    }
}

/// Returns where the line ends, unless it is longer than one may be.
fn find_newline(input: &[u8]) -> Option<usize> {
    input.iter().take(MAX_LINE).position(|byte| *byte == b'\n')
}

/// Parses an integer as Redis reads it: no plus sign, no leading zeros, no blanks.
pub fn number(digits: &[u8]) -> Option<i64> {
    let plain = matches!(digits, b"0" | [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..]);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}
