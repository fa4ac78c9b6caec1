//! How the server's clock was set.

use crate::node::now;
use crate::server::{Server, connect};
use std::sync::atomic::{AtomicI64, Ordering};

/// By how much the server's clock is ahead, in microseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Returns what the server's clock shows; a moment more or less while it is being set.
pub(crate) fn server_now() -> i64 {
    now() + AHEAD.load(Ordering::Relaxed)
}

/// For how long before a fire it may have been claimed: by the clock of then.
const CLAIMED: i64 = 20_000_000;

/// When this machine's clock showed what, from when on the server's was ahead by how much; both in
/// microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(Vec<(i64, i64)>);

impl Settings {
    /// Sets the server's clock ahead of this machine's, or behind it: replaces the one function
    /// that all of the store's time comes from.
    pub(crate) async fn set(
        &mut self,
        server: &Server,
        ahead: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
            $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {ahead} $$"
        );
        // From before the first of them shows it.
        self.0.push((now(), ahead));
        connect(&server.config()).await?.batch_execute(&sql).await?;
        AHEAD.store(ahead, Ordering::Relaxed);
        Ok(())
    }

    /// Has another server's clock show what the present one's does.
    pub(crate) async fn keep(&mut self, server: &Server) -> Result<(), tokio_postgres::Error> {
        self.set(server, AHEAD.load(Ordering::Relaxed)).await
    }

    /// Returns the most that it can have shown when what fired then was claimed.
    pub(crate) fn at_most(&self, at: i64) -> i64 {
        let before = self.0.iter().rfind(|(from, _)| *from <= at - CLAIMED);
        let before = before.map_or(0, |(_, ahead)| *ahead);
        let recent = self
            .0
            .iter()
            .filter(|(from, _)| (at - CLAIMED..=at).contains(from));
        at + recent.map(|(_, ahead)| *ahead).fold(before, i64::max)
    }
}
