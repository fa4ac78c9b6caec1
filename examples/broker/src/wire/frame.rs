//! Frames: a length in four bytes, and so many bytes.

use super::pace::{Pace, in_time};
use crate::budget::{Budget, FREE, Room};
use bytes::{Buf, Bytes, BytesMut};
use std::fmt;
use std::io;
use std::time::Duration;
use tickwheel::Timer;
use tokio::io::{AsyncRead, AsyncReadExt};

/// For how long a connection may say nothing: as Kafka's `connections.max.idle.ms`.
const IDLE: Duration = Duration::from_secs(600);
/// How much is read ahead, also while a request waits for its answer.
const AHEAD: usize = 16 << 10;

/// What comes in on a connection.
pub struct Inbox<R> {
    reader: R,
    /// What was read ahead.
    buffer: BytesMut,
    max_frame: usize,
}

/// A frame, without its length.
pub struct Frame {
    pub bytes: Bytes,
    /// What it takes of the budget, unless it is small.
    pub room: Option<Room>,
}

/// Why there is no further frame.
#[derive(Debug)]
pub enum FrameError {
    /// It claims a length that is negative, or over the limit.
    Length(i32),
    /// Nothing came, or went, for too long, or too little of it.
    Silent,
    /// The connection was closed in the middle of a frame, or broke.
    Broken(io::Error),
    /// As many timers wait as may.
    Full,
}

impl<R: AsyncRead + Unpin> Inbox<R> {
    pub fn new(reader: R, max_frame: usize) -> Self {
        Inbox { reader, buffer: BytesMut::new(), max_frame }
    }

    /// Reads the next frame. Returns `None` if the connection was closed between two frames.
    pub async fn next(
        &mut self,
        timer: &Timer,
        budget: &Budget,
    ) -> Result<Option<Frame>, FrameError> {
        if self.buffer.is_empty() && !in_time(timer, IDLE, self.fill()).await?? {
            return Ok(None);
        }
        let pace = Pace::new(timer, 0);
        let claimed = loop {
            if let Some(claimed) = self.buffer.first_chunk() {
                break i32::from_be_bytes(*claimed);
            }
            if !pace.step(self.fill()).await?? {
                return Err(FrameError::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        };
        let length = usize::try_from(claimed).ok().filter(|length| *length <= self.max_frame);
        let length = length.ok_or(FrameError::Length(claimed))?;
        self.buffer.advance(4);
        // Before it is read: so who sends more than there is room for is slowed down.
        let room = if length > FREE { budget.take(length).await } else { None };
        let bytes = self.body(length, &Pace::new(timer, length)).await?;
        Ok(Some(Frame { bytes, room }))
    }

    async fn body(&mut self, length: usize, pace: &Pace<'_>) -> Result<Bytes, FrameError> {
        let ahead = length.min(self.buffer.len());
        // The system gives memory as it is written to: a claim alone takes none.
        let mut body = BytesMut::with_capacity(length);
        body.extend_from_slice(&self.buffer[..ahead]);
        self.buffer.advance(ahead);
        while body.len() < length {
            let mut rest = (&mut self.reader).take((length - body.len()) as u64);
            if pace.step(rest.read_buf(&mut body)).await?.map_err(FrameError::Broken)? == 0 {
                return Err(FrameError::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(body.freeze())
    }

    /// Waits until the client has gone. Reads ahead to see it, but not without end.
    pub async fn closed(&mut self) {
        while self.buffer.len() < AHEAD {
            if !self.fill().await.unwrap_or(false) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Reads ahead what is there. Whether there will be more.
    async fn fill(&mut self) -> Result<bool, FrameError> {
        let space = AHEAD - self.buffer.len();
        self.buffer.reserve(space);
        let read = (&mut self.reader).take(space as u64).read_buf(&mut self.buffer).await;
        read.map(|length| length > 0).map_err(FrameError::Broken)
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Length(length) => write!(f, "a frame that claims {length} bytes"),
            FrameError::Silent => f.write_str("silence, or too slow"),
            FrameError::Broken(error) => write!(f, "broken: {error}"),
            FrameError::Full => f.write_str("as many timers wait as may"),
        }
    }
}
