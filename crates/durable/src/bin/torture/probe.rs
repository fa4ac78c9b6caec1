//! How late the machine is by itself: no timer on it can be sooner. Other programs use it as well.

use crate::node::now;
use crate::server::connect;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config};

/// A look, and when that was: how much longer a sleep took than it should, and how long a commit
/// took that changes nothing. In microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) at: i64,
    pub(crate) slept: u64,
    pub(crate) committed: u64,
}

const PAUSE: Duration = Duration::from_millis(20);

/// Looks again and again, until it is dropped.
pub(crate) struct Probe {
    looks: Arc<Mutex<Vec<Look>>>,
    /// Ended when this is dropped.
    _tasks: JoinSet<()>,
}

impl Probe {
    pub(crate) fn start(configs: [Config; 2]) -> Self {
        let looks = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for config in configs {
            tasks.spawn(look_on(config, Arc::clone(&looks)));
        }
        Probe { looks, _tasks: tasks }
    }

    pub(crate) fn looks(&self) -> Vec<Look> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn look_on(config: Config, looks: Arc<Mutex<Vec<Look>>>) {
    loop {
        // Again, after the server was down.
        if let Ok(client) = connect(&config).await {
            while let Ok(look) = look(&client).await {
                looks.lock().unwrap_or_else(PoisonError::into_inner).push(look);
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
    client.batch_execute("SELECT pg_logical_emit_message(true, '', '')").await?;
    Ok(Look { at, slept, committed: begun.elapsed().as_micros() as u64 })
}
