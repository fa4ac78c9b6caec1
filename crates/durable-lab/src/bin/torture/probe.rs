//! How late the machine is by itself: no timer on it can be sooner. Other programs use it as well.

use crate::node::now;
use crate::server::connect;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Config};

/// A look, and when that was: how much longer a sleep took than it should, and how long a commit
/// took that changes nothing. In microseconds.
pub(crate) struct Look {
    pub(crate) at: i64,
    pub(crate) slept: u64,
    pub(crate) committed: u64,
}

const PAUSE: Duration = Duration::from_millis(20);

/// Looks again and again, also after the server was down.
pub(crate) async fn run(config: Config, looks: Sender<Look>) {
    loop {
        if let Ok(client) = connect(&config).await {
            while let Ok(look) = look(&client).await {
                let _ = looks.send(look); // At the end nobody wants it.
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn look(client: &Client) -> Result<Look, tokio_postgres::Error> {
    let (begun, at) = (Instant::now(), now());
    tokio::time::sleep(PAUSE).await;
    let slept = begun.elapsed().saturating_sub(PAUSE).as_micros() as u64;
    let begun = Instant::now();
    client
        .batch_execute("SELECT pg_logical_emit_message(true, '', '')")
        .await?;
    Ok(Look {
        at,
        slept,
        committed: begun.elapsed().as_micros() as u64,
    })
}
