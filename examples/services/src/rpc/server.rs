//! The server: runs a handler for each request, and answers in whatever order they finish.

use super::frame::{encode, read_frame};
use std::io;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Serves until it is dropped: then all its connections are closed. A request for which the
/// handler has no response is never answered.
pub async fn serve<H, F>(listener: TcpListener, handler: H) -> io::Result<()>
where
    H: Fn(Vec<u8>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Option<Vec<u8>>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        connections.spawn(attend(stream, handler.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn attend<H, F>(stream: TcpStream, handler: H) -> io::Result<()>
where
    H: Fn(Vec<u8>) -> F,
    F: Future<Output = Option<Vec<u8>>> + Send + 'static,
{
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    let (responses, mut finished) = mpsc::unbounded_channel();
    let read = async {
        let mut reader = BufReader::new(reader);
        let mut handlers = JoinSet::new();
        loop {
            let (id, body) = read_frame(&mut reader).await?;
            let (handled, responses) = (handler(body), responses.clone());
            handlers.spawn(async move {
                if let Some(body) = handled.await {
                    let _ = responses.send(encode(id, &body));
                }
            });
            while handlers.try_join_next().is_some() {}
        }
    };
    let write = async {
        while let Some(frame) = finished.recv().await {
            writer.write_all(&frame).await?;
        }
        Ok(())
    };
    tokio::select! { result = read => result, result = write => result }
}
