//! What the server does while handlers run, and while nothing is due.

use crate::server::connect;
use crate::{Answer, drain, entry, lates, row, start, start_nodes, start_server, until, wal};
use std::fs;
use std::time::{Duration, Instant};
use tickwheel_durable::{Durable, Entry};

pub(crate) async fn running(handlers: u32) -> Answer<()> {
    let server = start_server()?;
    let node = Durable::postgres(server.config()).max_in_flight(handlers);
    let node = start(node, &lates()).await?;
    let entries = (0..handlers).map(|n| Entry::keyed(n.to_string(), Duration::ZERO, [60; 100]));
    node.schedule_many(entries.collect()).await?;
    until(|| node.stats().in_flight >= handlers.into()).await?;
    let begun = Instant::now();
    let before = wal(&server).await?;
    tokio::time::sleep(Duration::from_secs(50)).await;
    let written = (wal(&server).await? - before) as f64;
    let rate = written / begun.elapsed().as_secs_f64();
    row(
        &format!("WAL while {handlers} handlers run for a minute, bytes/s"),
        rate,
    );
    Ok(())
}

pub(crate) async fn idle(far: u64, seconds: u64) -> Answer<()> {
    for (nodes, far) in [(0, 0), (1, 0), (1, far)] {
        let server = start_server()?;
        // Without a node: what the server uses by itself.
        let nodes = start_nodes(&server, nodes, &lates()).await?;
        let week = Duration::from_secs(7 * 86_400);
        for first in (0..far).step_by(10_000) {
            let numbers = first..far.min(first + 10_000);
            nodes[0]
                .schedule_many(numbers.map(|n| entry(n, true, week)).collect())
                .await?;
        }
        let client = connect(&server.config()).await?;
        client.batch_execute("VACUUM ANALYZE").await?;
        client.batch_execute("CHECKPOINT").await?;
        let file = "SELECT pg_read_file('postmaster.pid')";
        let file: String = client.query_one(file, &[]).await?.get(0);
        let parent = file.lines().next().unwrap_or_default().parse()?;
        drop(client);
        // Until the node and the server have come to rest.
        tokio::time::sleep(Duration::from_secs(15)).await;
        let begun = Instant::now();
        let before = processor(parent)?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let used = processor(parent)? - before;
        let rate = used.as_secs_f64() * 1e6 / begun.elapsed().as_secs_f64();
        row(
            &format!(
                "idle, {} nodes and {far} far timers: the server's processor, us/s",
                nodes.len()
            ),
            rate,
        );
        drain(nodes).await;
    }
    Ok(())
}

/// How long a tick of `/proc/PID/stat` is: the same on all of Linux's usual machines.
const TICK: Duration = Duration::from_millis(10);

/// Returns the time of the processor that a server has used, given its first process: in
/// nanoseconds of the processes that are there, and in ticks of those that have ended.
fn processor(parent: u64) -> Answer<Duration> {
    let mut used = Duration::ZERO;
    for process in fs::read_dir("/proc")? {
        let process = process?.path();
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        // After the name, which is in parentheses and may be anything.
        let Some((before, after)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields = after.split(' ').map(|field| field.parse().unwrap_or(0));
        let fields: Vec<u64> = fields.collect();
        let is_server = before.starts_with(&format!("{parent} "));
        // State, parent.
        if !is_server && fields.get(1) != Some(&parent) {
            continue;
        }
        let own = fs::read_to_string(process.join("schedstat")).unwrap_or_default();
        let own = own.split(' ').next().and_then(|own| own.parse().ok());
        used += Duration::from_nanos(own.unwrap_or_default());
        if is_server {
            // Of children that have ended, user and system.
            let ticks: u64 = fields.iter().skip(13).take(2).sum();
            used += TICK * u32::try_from(ticks)?;
        }
    }
    Ok(used)
}
