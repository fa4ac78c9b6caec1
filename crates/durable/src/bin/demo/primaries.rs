//! One namespace on two private PostgreSQLs: half of its slots move while timers fire.

use crate::server::Server;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::{Durable, Entry, Outcome, Sharded};

/// A timer each ten milliseconds.
const TIMERS: u64 = 1_000;
const SPACING: Duration = Duration::from_millis(10);

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    println!("Two private PostgreSQLs start, and one node with a lease on each.");
    let start = || tokio::task::block_in_place(|| Server::start(&[]));
    let servers = [start()?, start()?];
    let primaries = servers.iter().map(|server| {
        Durable::postgres(server.config()).namespace("demo").lease(Duration::from_secs(2))
    });
    let latest_ms = Arc::new(AtomicU64::new(0));
    let latest = Arc::clone(&latest_ms);
    let handler = move |due: tickwheel_durable::Due| {
        latest.fetch_max(due.late_by.as_millis() as u64, Ordering::Relaxed);
        async { Outcome::Done }
    };
    let timer = Timer::builder().start()?;
    let node = Sharded::start(primaries.collect(), &timer, handler).await?;
    let entries = (0..TIMERS).map(|n| Entry::unkeyed(SPACING * n as u32, "payload"));
    node.schedule_many(entries.collect()).await?;
    let begun = Instant::now();
    for beat in 0.. {
        let map = node.map().await?;
        let mut told = String::new();
        let mut done = 0;
        for (index, primary) in node.nodes().iter().enumerate() {
            let served = map.iter().filter(|serves| **serves == Some(index)).count();
            done += primary.stats().done;
            told += &format!("   {index}: serves {served:4}, {:4} done", primary.stats().done);
        }
        let latest = latest_ms.swap(0, Ordering::Relaxed);
        println!("{:4.1} s{told}, latest {latest:4} ms", begun.elapsed().as_secs_f64());
        if done >= TIMERS || beat > 80 {
            break;
        }
        if beat == 4 {
            println!("       Slots 512 to 1023 move to primary 1.");
            let mover = node.clone();
            tokio::spawn(async move { mover.move_slots(512..1_024, 1).await });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    node.drain().await;
    Ok(())
}
