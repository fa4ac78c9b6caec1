//! CPU time: of this process, and of a server and its backends. By Linux's figures.

use crate::server;
use std::error::Error;
use std::fs;
use std::time::Duration;

/// How long a tick of `/proc/PID/stat` is: the same on all of Linux's usual machines.
const TICK: Duration = Duration::from_millis(10);

/// Returns what the threads of this process have used.
pub(crate) fn own() -> Result<Duration, Box<dyn Error>> {
    let mut nanos = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        // One that has just ended is left out.
        let told = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanos += told.split(' ').next().and_then(|used| used.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

/// Returns what the server at a port has used, by the processes that are there and those that have
/// ended.
pub(crate) async fn of(port: u16) -> Result<Duration, Box<dyn Error>> {
    let client = server::connect(&server::config(port)).await?;
    let file: String = client.query_one("SELECT pg_read_file('postmaster.pid')", &[]).await?.get(0);
    let parent: u64 = file.lines().next().unwrap_or_default().parse()?;
    let mut ticks = 0;
    for process in fs::read_dir("/proc")? {
        let stat = fs::read_to_string(process?.path().join("stat")).unwrap_or_default();
        // After the name, which is in parentheses and may be anything.
        let Some((before, after)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<u64> = after.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        let is_server = before.starts_with(&format!("{parent} "));
        // State, parent; from the eleventh on user, system, children's user, children's system.
        if is_server || fields.get(1) == Some(&parent) {
            ticks += fields.iter().skip(11).take(if is_server { 4 } else { 2 }).sum::<u64>();
        }
    }
    Ok(TICK * u32::try_from(ticks)?)
}
