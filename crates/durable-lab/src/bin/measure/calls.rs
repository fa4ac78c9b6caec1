//! How many calls are answered in a second.

use crate::server::connect;
use crate::{Answer, Node, drain, entry, lates, row, start, start_nodes, start_server, until};
use std::time::{Duration, Instant};
use tickwheel_durable::{Durable, Entry};
use tokio::task::JoinSet;

const CALLERS: u64 = 256;
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn timeouts(timers: u64) -> Answer<()> {
    let server = start_server()?;
    let nodes = start_nodes(&server, 1, &lates()).await?;
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for first in 0..CALLERS {
        let numbers = (first..timers).step_by(CALLERS as usize);
        callers.spawn(time_out(nodes[0].clone(), numbers));
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    let rate = timers as f64 / begun.elapsed().as_secs_f64();
    row("timeouts scheduled/s, 90 % of them cancelled", rate);
    drain(nodes).await;
    Ok(())
}

/// Schedules timeouts one after the other, and cancels nine of ten.
async fn time_out(node: Node, numbers: impl Iterator<Item = u64>) -> Answer<()> {
    for (count, number) in numbers.enumerate() {
        node.schedule(entry(number, true, TIMEOUT)).await?;
        if count % 10 != 0 {
            node.cancel(&format!("key {number}")).await?;
        }
    }
    Ok(())
}

pub(crate) async fn clients(time: Duration) -> Answer<()> {
    let hows = [
        ("in an hour", "1 hour", "on"),
        ("for now", "0", "on"),
        ("for now without notices", "0", "off"),
    ];
    for (how, delay, notices) in hows {
        let server = start_server()?;
        // It listens, and has no place for what is scheduled.
        let node = Durable::postgres(server.config()).max_in_flight(1);
        let node = start(node, &lates()).await?;
        node.schedule(Entry::unkeyed(Duration::ZERO, [u8::MAX]))
            .await?;
        until(|| node.stats().in_flight == 1).await?;
        let mut clients = JoinSet::new();
        for number in 0..16 {
            let client = connect(&server.config()).await?;
            let set = format!("SET tickwheel_notices.enabled = {notices}");
            client.batch_execute(&set).await?;
            let sql = format!(
                "SELECT tickwheel.schedule('default', '{number} ' || $1, now() + '{delay}', '')"
            );
            clients.spawn(async move {
                let schedule = client.prepare(&sql).await?;
                let begun = Instant::now();
                let mut count = 0;
                while begun.elapsed() < time {
                    client.query(&schedule, &[&count.to_string()]).await?;
                    count += 1;
                }
                Answer::Ok(count)
            });
        }
        let mut count: i64 = 0;
        while let Some(client) = clients.join_next().await {
            count += client??;
        }
        let rate = count as f64 / time.as_secs_f64();
        row(
            &format!("16 clients that schedule {how}, transactions/s"),
            rate,
        );
    }
    Ok(())
}
