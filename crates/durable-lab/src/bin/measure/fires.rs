//! How many timers fire, and how late.

use crate::server::connect;
use crate::{
    Answer, Lates, done, drain, entry, lates, lock, ms, row, soon, start, start_nodes,
    start_server, until, wal,
};
use std::time::{Duration, Instant, SystemTime};
use tickwheel_durable::store::Store;
use tickwheel_durable::{Durable, Entry};
use tokio::task::JoinSet;

pub(crate) async fn fired(timers: u64) -> Answer<()> {
    for (how, count) in [("keyed", 1), ("keyed", 3), ("by id", 1)] {
        let server = start_server()?;
        let nodes = start_nodes(&server, count, &lates()).await?;
        let before = wal(&server).await?;
        let rate = fire(&nodes, timers, how == "keyed").await?;
        row(
            &format!("scheduled and fired/s, {how}, nodes: {count}"),
            rate,
        );
        let written = wal(&server).await? - before;
        let what = format!("WAL of a life, bytes, {how}, nodes: {count}");
        row(&what, written as f64 / timers as f64);
        drain(nodes).await;
    }
    let folder = tempfile::tempdir()?;
    let node = start(Durable::sqlite(folder.path().join("timers")), &lates()).await?;
    row(
        "scheduled and fired/s, keyed, SQLite",
        fire(&[node], timers, true).await?,
    );
    Ok(())
}

/// Has each node schedule its part as due at once; returns how many timers were done in a second.
async fn fire<S: Store>(nodes: &[Durable<S>], timers: u64, keyed: bool) -> Answer<f64> {
    let each = timers / nodes.len() as u64;
    let begun = Instant::now();
    let mut calls = JoinSet::new();
    for (first, node) in (0..).step_by(each as usize).zip(nodes) {
        let numbers = first..first + each;
        let entries = numbers.map(|n| entry(n, keyed, Duration::ZERO)).collect();
        let node = node.clone();
        calls.spawn(async move { node.schedule_many(entries).await });
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let timers = each * nodes.len() as u64;
    until(|| done(nodes) >= timers).await?;
    Ok(timers as f64 / begun.elapsed().as_secs_f64())
}

pub(crate) async fn lateness(timers: u64) -> Answer<()> {
    for count in [1, 3] {
        let server = start_server()?;
        let lates = lates();
        let nodes = start_nodes(&server, count, &lates).await?;
        let from = soon(timers);
        let spread = |n| from + Duration::from_millis(2 * n);
        let entries = (0..timers).map(|n| entry(n, true, spread(n)));
        nodes[0].schedule_many(entries.collect()).await?;
        until(|| done(&nodes) >= timers).await?;
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let what = format!("lateness at 500/s, ms, {name}, nodes: {count}");
            row(&what, ms(&lock(&lates), quantile));
        }
        drain(nodes).await;
    }
    Ok(())
}

pub(crate) async fn instant(timers: u64) -> Answer<()> {
    for count in [1, 3] {
        let server = start_server()?;
        let nodes = start_nodes(&server, count, &lates()).await?;
        let at = soon(timers);
        let entries = (0..timers).map(|n| entry(n, true, at)).collect();
        nodes[0].schedule_many(entries).await?;
        // Fails if it has come already.
        at.duration_since(SystemTime::now())?;
        until(|| done(&nodes) >= timers).await?;
        let what = format!("{timers} at one instant, s, nodes: {count}");
        row(&what, at.elapsed()?.as_secs_f64());
        drain(nodes).await;
    }
    Ok(())
}

pub(crate) async fn held(timers: u64) -> Answer<()> {
    let server = start_server()?;
    let late = lates();
    let nodes = start_nodes(&server, 1, &late).await?;
    let node = &nodes[0];
    node.pause(Some("held"), Duration::from_secs(3_600)).await?;
    free_ones(node, &late, 0).await?;
    row("lateness of 10 timers, ms, p99", ms(&lock(&late), 0.99));
    free_ones(node, &late, timers).await?;
    let what = format!("the same, just after {timers} held ones");
    row(&what, ms(&lock(&late), 0.99));
    let begun = Instant::now();
    let client = connect(&server.config()).await?;
    let left = "SELECT FROM tickwheel.timer WHERE held_from IS NULL AND tag = 'held' LIMIT 1";
    while client.query_opt(left, &[]).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    row(
        "until all of these are put off, s",
        begun.elapsed().as_secs_f64(),
    );
    free_ones(node, &late, 0).await?;
    row("the same, after that", ms(&lock(&late), 0.99));
    drain(nodes).await;
    Ok(())
}

/// Has ten timers fire that are due just after so many held ones.
async fn free_ones<S: Store>(node: &Durable<S>, late: &Lates, held: u64) -> Answer<()> {
    lock(late).reset();
    let before = node.stats().done;
    let at = soon(held);
    let mut entries: Vec<Entry> = (0..held).map(|n| entry(n, true, at).tag("held")).collect();
    let after = |n| at + Duration::from_millis(n);
    entries.extend((1..=10).map(|n| entry(held + n, true, after(n))));
    node.schedule_many(entries).await?;
    at.duration_since(SystemTime::now())?;
    until(|| node.stats().done >= before + 10).await
}
