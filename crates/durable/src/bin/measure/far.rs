//! What timers cost that are far away: a node beside many, and beside none.

use crate::cpu;
use crate::server::Server;
use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::{Durable, Entry, Outcome};

/// For how long it is looked at what a node uses.
const TIME: Duration = Duration::from_secs(20);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// What a node used, and the server meanwhile: CPU time in microseconds for each second.
pub(crate) struct Idle {
    pub(crate) node: f64,
    pub(crate) server: f64,
}

/// Fills a namespace with timers a week away, and looks what a node uses there.
pub(crate) async fn measure(server: &Server, timers: u64) -> Result<Idle, Box<dyn Error>> {
    let namespace = format!("far {timers}");
    let timer = Timer::builder().start()?;
    let node = Durable::postgres(server.config()).namespace(&namespace);
    let node = node.start(&timer, |_| async { Outcome::Done }).await?;
    for first in (0..timers).step_by(10_000) {
        let entries = (first..timers.min(first + 10_000)).map(|_| Entry::unkeyed(WEEK, [7; 100]));
        node.schedule_many(entries.collect()).await?;
    }
    node.drain().await;
    let port = server.config().get_ports()[0].to_string();
    let mut child = Command::new(std::env::current_exe()?);
    child.args(["idle", &port, &namespace]);
    let output = tokio::task::spawn_blocking(move || child.output()).await??;
    let told = String::from_utf8(output.stdout)?;
    let mut figures = told.split_whitespace().map(str::parse::<f64>);
    let mut next = || figures.next().ok_or("the node has failed");
    Ok(Idle { node: next()??, server: next()?? })
}

/// Prints what a node uses that has nothing to do, and the server with it.
pub(crate) async fn tell(port: u16, namespace: &str) -> Result<(), Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let node = Durable::postgres(crate::server::config(port)).namespace(namespace);
    let node = node.start(&timer, |_| async { Outcome::Done }).await?;
    while node.stats().slots == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await; // It has loaded its window.
    let used = async || Ok::<_, Box<dyn Error>>((cpu::own()?, cpu::of(port).await?));
    let (begun, before) = (Instant::now(), used().await?);
    tokio::time::sleep(TIME).await;
    let (after, seconds) = (used().await?, begun.elapsed().as_secs_f64());
    let rate = |more: Duration| more.as_secs_f64() * 1e6 / seconds;
    println!("{} {}", rate(after.0 - before.0), rate(after.1 - before.1));
    Ok(())
}
