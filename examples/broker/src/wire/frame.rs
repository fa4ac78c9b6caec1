//! Frames: a length in four bytes, and so many bytes.

use bytes::{Buf, Bytes, BytesMut};
use std::fmt;
use std::io;
use std::time::Duration;
use tickwheel::Timer;
use tokio::io::{AsyncRead, AsyncReadExt};

/// For how long a connection may say nothing: as Kafka's `connections.max.idle.ms`.
const IDLE: Duration = Duration::from_secs(600);
/// For how long a frame may be on its way, once it has begun.
const FRAME: Duration = Duration::from_secs(30);
/// How much is read ahead while a request waits for its answer.
const AHEAD: usize = 64 * 1024;

/// What comes in on a connection.
pub struct Inbox<R> {
    reader: R,
    /// Grows as bytes come in: a claim alone takes no memory.
    buffer: BytesMut,
    max_frame: usize,
}

/// Why there is no further frame.
#[derive(Debug)]
pub enum FrameError {
    /// It claims a length that is negative, or over the limit.
    Length(i32),
    /// Nothing came for too long, or half a frame and no more.
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

    /// Reads the next frame, without its length. Returns `None` if the connection was closed
    /// between two frames.
    pub async fn next(&mut self, timer: &Timer) -> Result<Option<Bytes>, FrameError> {
        if self.buffer.is_empty() && !in_time(timer, IDLE, self.fill()).await?? {
            return Ok(None);
        }
        in_time(timer, FRAME, self.frame()).await?.map(Some)
    }

    async fn frame(&mut self) -> Result<Bytes, FrameError> {
        loop {
            if let Some(claimed) = self.buffer.first_chunk().copied().map(i32::from_be_bytes) {
                let length = usize::try_from(claimed).map_err(|_| FrameError::Length(claimed))?;
                if length > self.max_frame {
                    return Err(FrameError::Length(claimed));
                }
                if self.buffer.len() >= 4 + length {
                    self.buffer.advance(4);
                    return Ok(self.buffer.split_to(length).freeze());
                }
            }
            if !self.fill().await? {
                return Err(FrameError::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
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

    /// Reads what is there. Returns whether there will be more.
    async fn fill(&mut self) -> Result<bool, FrameError> {
        let read = self.reader.read_buf(&mut self.buffer).await;
        read.map(|length| length > 0).map_err(FrameError::Broken)
    }
}

async fn in_time<T>(
    timer: &Timer,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, FrameError> {
    timer.timeout(limit, future).await.map_err(|error| match error {
        tickwheel::future::TimedError::Elapsed => FrameError::Silent,
        _ => FrameError::Full,
    })
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Length(length) => write!(f, "a frame that claims {length} bytes"),
            FrameError::Silent => f.write_str("silence"),
            FrameError::Broken(error) => write!(f, "broken: {error}"),
            FrameError::Full => f.write_str("as many timers wait as may"),
        }
    }
}
