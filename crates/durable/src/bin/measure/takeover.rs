//! How late timers are whose node has died.

use crate::server::Server;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Due, Durable, Entry, Outcome, StoreTime};

pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// How many nodes die.
pub(crate) const DEATHS: u64 = 5;

/// Has nodes die, each at another moment between two renewals of its lease; returns how late the
/// latest timer was.
pub(crate) async fn measure(server: &Server) -> Result<Duration, Box<dyn Error>> {
    let latest = Arc::new(AtomicU64::new(0));
    let timer = Timer::builder().start()?;
    let start = async |namespace: &str| {
        let latest = Arc::clone(&latest);
        let handler = move |due: Due| {
            let late = StoreTime::from(SystemTime::now()).since(due.at).as_micros() as u64;
            latest.fetch_max(late, Ordering::Relaxed); // Read when all have ended.
            async { Outcome::Done }
        };
        let node = Durable::postgres(server.config()).namespace(namespace).lease(LEASE);
        node.start(&timer, handler).await
    };
    for death in 0..DEATHS {
        let namespace = format!("takeover {death}");
        let (first, second) = (start(&namespace).await?, start(&namespace).await?);
        while slots(&first) != 512 || slots(&second) != 512 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // One each 10 ms, before the death and after it.
        let entries = (0..500).map(|n| Entry::unkeyed(Duration::from_millis(10 * n), []));
        second.schedule_many(entries.collect()).await?;
        let renewals = LEASE / 3;
        tokio::time::sleep(renewals + renewals / DEATHS as u32 * death as u32).await;
        drop(first); // As in a crash: it hands nothing over.
        let now = SystemTime::now();
        let range = now - Duration::from_secs(60)..now + Duration::from_secs(60);
        while second.histogram(range.clone(), 1).await? != [0] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        second.drain().await;
    }
    Ok(Duration::from_micros(latest.load(Ordering::Relaxed)))
}

fn slots(node: &Durable<Postgres>) -> u64 {
    node.stats().slots
}
