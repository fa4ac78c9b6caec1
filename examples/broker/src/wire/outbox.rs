//! What goes out on a connection.

use super::frame::FrameError;
use super::pace::Pace;
use std::io;
use tickwheel::Timer;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Writes a frame, to a client that may be slow but must read.
pub async fn write(
    writer: &mut (impl AsyncWrite + Unpin),
    frame: &[u8],
    timer: &Timer,
) -> Result<(), FrameError> {
    let pace = Pace::new(timer, frame.len());
    let mut left = frame;
    while !left.is_empty() {
        let written = pace.step(writer.write(left)).await?;
        match written.map_err(FrameError::Broken)? {
            0 => return Err(FrameError::Broken(io::ErrorKind::WriteZero.into())),
            length => left = &left[length..],
        }
    }
    Ok(())
}
