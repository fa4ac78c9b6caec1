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

/// How long before its handler began a timer may have been claimed, in microseconds.
const CLAIMED: i64 = 20_000_000;

/// The settings of the server's clock: from when on by this machine's clock, and by how much the
/// server's clock is ahead; both in microseconds.
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

    /// Returns the latest time that the server's clock can have shown when a timer was claimed
    /// whose handler began at `at`, by this machine's clock; both in microseconds.
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
