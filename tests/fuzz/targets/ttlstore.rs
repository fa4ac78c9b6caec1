//! What arrives on a connection of ttlstore: its requests do not depend on the pieces they come in.
#![no_main]

#[path = "../../../examples/ttlstore/src/line.rs"]
mod line;
#[path = "../../../examples/ttlstore/src/request.rs"]
#[allow(dead_code, reason = "the server uses more of it")]
mod request;

use request::{Limits, Parser};

/// Small, so that the fuzzer exceeds them.
const LIMITS: Limits = Limits { max_frame: 500, max_args: 10 };

/// What was read: the words of the requests, and why there are no more.
#[derive(Debug, PartialEq)]
struct Read {
    requests: Vec<Vec<Vec<u8>>>,
    error: Option<String>,
}

/// Reads requests from bytes that arrive so many at a time.
fn read(bytes: &[u8], size: usize) -> Read {
    let mut parser = Parser::new(LIMITS);
    let (mut requests, mut used, mut arrived) = (Vec::new(), 0, 0);
    loop {
        match parser.parse(&bytes[used..arrived]) {
            Ok(Some(length)) => {
                let args = parser.args(&bytes[used..arrived]);
                requests.push(args.from(0).map(<[u8]>::to_vec).collect());
                used += length;
            }
            Ok(None) if arrived == bytes.len() => return Read { requests, error: None },
            Ok(None) => arrived = (arrived + size).min(bytes.len()),
            Err(error) => return Read { requests, error: Some(error.to_string()) },
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let in_pieces = read(bytes, usize::from(*size).max(1));
    assert_eq!(in_pieces, read(bytes, bytes.len().max(1)), "the pieces make a difference");
    assert!(in_pieces.requests.iter().all(|words| words.concat().len() <= LIMITS.max_frame));
});
