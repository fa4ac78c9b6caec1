//! What is measured in processes of their own: memory of near timers, CPU beside far ones.

use crate::server::{self, Server};
use crate::{start, until};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tickwheel_durable::{Durable, Entry};

const TIMERS: u64 = 300_000;

pub(crate) async fn window() -> Result<f64, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("timers");
    let node = Durable::sqlite(&file).window(Duration::from_secs(3_600));
    let node = start(node.max_near(1)).await?;
    // Near to a node with a window of days; spread over hours, as a window's are.
    let after = |n: u64| Duration::from_secs(3_600) + Duration::from_millis(n * 20);
    for first in (0..TIMERS).step_by(10_000) {
        let entries = first..first + 10_000;
        node.schedule_many(entries.map(|n| Entry::unkeyed(after(n), [])).collect())
            .await?;
    }
    node.drain().await;
    drop(node);
    tokio::time::sleep(Duration::from_secs(1)).await; // Until its file is free.
    let mut child = Command::new(std::env::current_exe()?);
    let output = child
        .arg("window")
        .arg(&file)
        .arg(TIMERS.to_string())
        .output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Prints bytes a timer.
pub(crate) async fn tell_window(file: &Path, timers: u64) -> Result<(), Box<dyn Error>> {
    let before = resident()?;
    let node = start(Durable::sqlite(file).window(Duration::from_secs(30 * 86_400))).await?;
    until(|| node.stats().near >= timers).await;
    println!("{}", (resident()? - before) / timers as f64);
    Ok(())
}

/// Returns the resident memory in bytes, given the usual page size of Linux.
fn resident() -> Result<f64, Box<dyn Error>> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    Ok(pages
        .split(' ')
        .nth(1)
        .ok_or("no such figure")?
        .parse::<f64>()?
        * 4_096.0)
}

/// For how long it is looked at what a node uses.
const TIME: Duration = Duration::from_secs(20);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// Fills a namespace with timers a week away, and returns what a node uses there, and the server
/// meanwhile: CPU time in microseconds for each second.
pub(crate) async fn idle(server: &Server, timers: u64) -> Result<[f64; 2], Box<dyn Error>> {
    let namespace = format!("far {timers}");
    let node = start(Durable::postgres(server.config()).namespace(&namespace)).await?;
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
    let (node, server) = told.trim().split_once(' ').ok_or("the node has failed")?;
    Ok([node.parse()?, server.parse()?])
}

/// Prints what a node uses that has nothing to do, and the server with it.
pub(crate) async fn tell_idle(port: u16, namespace: &str) -> Result<(), Box<dyn Error>> {
    let _node = start(Durable::postgres(server::config(port)).namespace(namespace)).await?;
    tokio::time::sleep(Duration::from_secs(2)).await; // It has loaded its window.
    let used = async || Ok::<_, Box<dyn Error>>((own()?, of(port).await?));
    let (begun, before) = (Instant::now(), used().await?);
    tokio::time::sleep(TIME).await;
    let (after, seconds) = (used().await?, begun.elapsed().as_secs_f64());
    let rate = |more: Duration| more.as_secs_f64() * 1e6 / seconds;
    println!("{} {}", rate(after.0 - before.0), rate(after.1 - before.1));
    Ok(())
}

/// How long a tick of `/proc/PID/stat` is: the same on all of Linux's usual machines.
const TICK: Duration = Duration::from_millis(10);

/// Returns what the threads of this process have used.
pub(crate) fn own() -> Result<Duration, Box<dyn Error>> {
    let mut nanos = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        // One that has just ended is left out.
        let told = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanos += told
            .split(' ')
            .next()
            .and_then(|used| used.parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

/// Returns what the server at a port has used, by the processes that are there and those that have
/// ended.
pub(crate) async fn of(port: u16) -> Result<Duration, Box<dyn Error>> {
    let client = server::connect(&server::config(port)).await?;
    let file: String = client
        .query_one("SELECT pg_read_file('postmaster.pid')", &[])
        .await?
        .get(0);
    let parent: u64 = file.lines().next().unwrap_or_default().parse()?;
    let mut ticks = 0;
    for process in fs::read_dir("/proc")? {
        let stat = fs::read_to_string(process?.path().join("stat")).unwrap_or_default();
        // After the name, which is in parentheses and may be anything.
        let Some((before, after)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields: Vec<u64> = after
            .split(' ')
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        let is_server = before.starts_with(&format!("{parent} "));
        // State, parent; from the eleventh on user, system, children's user, children's system.
        if is_server || fields.get(1) == Some(&parent) {
            ticks += fields
                .iter()
                .skip(11)
                .take(if is_server { 4 } else { 2 })
                .sum::<u64>();
        }
    }
    Ok(TICK * u32::try_from(ticks)?)
}
