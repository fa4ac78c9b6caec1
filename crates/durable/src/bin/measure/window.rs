//! How much memory near timers take: in a process that does nothing else.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Durable, Entry, Outcome};

const TIMERS: u64 = 300_000;

pub(crate) async fn measure() -> Result<f64, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("timers");
    let timer = Timer::builder().start()?;
    let node = Durable::sqlite(&file).window(Duration::from_secs(3_600));
    let node = node.max_near(1).start(&timer, |_| async { Outcome::Done }).await?;
    // Near to a node with a window of days; spread over hours, as a window's are.
    let after = |n: u64| Duration::from_secs(3_600) + Duration::from_millis(n * 20);
    for first in (0..TIMERS).step_by(10_000) {
        let entries = first..first + 10_000;
        node.schedule_many(entries.map(|n| Entry::unkeyed(after(n), [])).collect()).await?;
    }
    node.drain().await;
    drop(node);
    tokio::time::sleep(Duration::from_secs(1)).await; // Until its file is free.
    let mut child = Command::new(std::env::current_exe()?);
    let output = child.arg("window").arg(&file).arg(TIMERS.to_string()).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Prints bytes a timer.
pub(crate) async fn tell(file: &Path, timers: u64) -> Result<(), Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let before = resident()?;
    let node = Durable::sqlite(file).window(Duration::from_secs(30 * 86_400));
    let node = node.start(&timer, |_| async { Outcome::Done }).await?;
    while node.stats().near < timers {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{}", (resident()? - before) / timers as f64);
    Ok(())
}

/// Returns the resident memory in bytes, given the usual page size of Linux.
fn resident() -> Result<f64, Box<dyn Error>> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    Ok(pages.split(' ').nth(1).ok_or("no such figure")?.parse::<f64>()? * 4_096.0)
}
