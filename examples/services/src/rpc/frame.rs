//! A frame: a request or a response on the wire, the number of the request before it.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// So that a broken peer can't ask for all the memory there is.
const MAX_BODY: u32 = 16 << 20;

/// Returns the frame of a request or response.
///
/// # Panics
/// If the body is longer than 16 MiB.
pub(crate) fn encode(id: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_BODY);
    let length = length.expect("a body of at most 16 MiB");
    [&id.to_be_bytes()[..], &length.to_be_bytes(), body].concat()
}

/// Reads the next request or response: its number and its body.
pub async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<(u64, Vec<u8>)> {
    let id = reader.read_u64().await?;
    let length = reader.read_u32().await?;
    if length > MAX_BODY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    reader.read_exact(&mut body).await?;
    Ok((id, body))
}
