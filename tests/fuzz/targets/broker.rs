//! What arrives on a connection of the broker, in pieces: frames, and the requests in them.
#![no_main]

#[path = "../../../examples/broker/src/budget.rs"]
#[allow(dead_code, reason = "the broker uses more of it")]
mod budget;
#[path = "../../../examples/broker/src/wire/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the broker uses more of it")]
mod wire;

use bytes::Bytes;
use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use tickwheel::{ManualClock, Timer};
use tokio::io::{AsyncRead, ReadBuf};
use wire::{FrameError, Inbox, Request};

const MAX_FRAME: usize = 1 << 20;
/// What all frames may hold. No frame of the fuzzer is so long that it is counted.
const BUDGET: usize = 1 << 24;

static TIMER: LazyLock<Timer> =
    LazyLock::new(|| Timer::builder().clock(ManualClock::new()).build().expect("in range"));

/// Bytes that arrive so many at a time.
struct Pieces<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.size.min(self.bytes.len()).min(buffer.remaining());
        let (now, later) = self.bytes.split_at(length);
        buffer.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

/// Reads all frames. Returns them and why there are no more.
async fn read(bytes: &[u8], size: usize) -> (Vec<Bytes>, String) {
    let budget = budget::Budget::new(BUDGET);
    let mut inbox = Inbox::new(Pieces { bytes, size }, MAX_FRAME);
    let mut frames = Vec::new();
    loop {
        match inbox.next(&TIMER, &budget).await {
            Ok(Some(frame)) => {
                frames.push(frame.bytes.clone());
                // Whatever it is, it is read or refused.
                drop(Request::decode(frame));
            }
            Ok(None) => return (frames, String::new()),
            Err(error @ (FrameError::Length(_) | FrameError::Broken(_))) => {
                return (frames, error.to_string());
            }
            Err(error) => panic!("time stands still, and there is room: {error}"),
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    pollster::block_on(async {
        let in_pieces = read(bytes, usize::from(*size).max(1)).await;
        assert_eq!(in_pieces, read(bytes, usize::MAX).await, "the pieces make a difference");
    });
    assert!(TIMER.is_empty(), "a time limit is left");
});
