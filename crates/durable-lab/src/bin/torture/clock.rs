//! How the servers' clock was set, and what that has to do with lateness.

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
    /// Sets the servers' clocks ahead of this machine's, or behind it: replaces the one function
    /// that all of the store's time comes from.
    pub(crate) async fn set(
        &mut self,
        servers: &[Server; 2],
        ahead: i64,
    ) -> Result<(), tokio_postgres::Error> {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
            $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {ahead} $$"
        );
        // From before the first of them shows it.
        self.0.push((now(), ahead));
        for server in servers {
            connect(&server.config()).await?.batch_execute(&sql).await?;
        }
        AHEAD.store(ahead, Ordering::Relaxed);
        Ok(())
    }

    /// Returns since when, by this machine's clock, the server's had shown `due` or more at `at`:
    /// when a timer that fired then could fire first, however the clock has leapt since.
    pub(crate) fn reached(&self, due: i64, at: i64) -> i64 {
        let mut end = at;
        let settings = self.0.iter().rev().chain([&(i64::MIN, 0)]);
        for (from, ahead) in settings.skip_while(|(from, _)| *from > at) {
            if end + ahead < due {
                break; // Not at the end of this setting: it came with the next one.
            }
            if due - ahead >= *from {
                return due - ahead;
            }
            end = *from;
        }
        end
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaps_of_the_clock_have_to_do_with_lateness() {
        let settings = Settings(vec![(1_000, 600), (2_000, -600)]);
        assert_eq!(settings.reached(900, 950), 900, "before all leaps");
        assert_eq!(
            settings.reached(900, 1_100),
            900,
            "it was due before the leap already"
        );
        assert_eq!(
            settings.reached(1_500, 1_100),
            1_000,
            "the leap made it due"
        );
        assert_eq!(
            settings.reached(1_900, 1_400),
            1_300,
            "time made it due after the leap"
        );
        // It had come once, and came again after the clock was set back.
        assert_eq!(settings.reached(1_900, 2_700), 2_500);
        assert_eq!(
            settings.reached(1_900, 2_100),
            2_100,
            "early: at_most tells"
        );
    }
}
