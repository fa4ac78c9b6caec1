//! What happens to timers when one of three processes is killed.

use crate::server::{self, Server};
use crate::{Answer, drain, lates, ms, row, soon, start_nodes, start_server};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Entry, Outcome};

const TIMERS: u64 = 8_000;
const APART: Duration = Duration::from_millis(2);
/// How long it is looked before the kill, and after it.
const LOOK: Duration = Duration::from_secs(8);
/// How long a handler takes.
const RUN: Duration = Duration::from_millis(100);

/// Runs a node that writes down when its handlers were called for which numbers.
pub(crate) async fn node(port: u16, ledger: &Path) -> Answer<()> {
    let file = OpenOptions::new().create(true).append(true).open(ledger)?;
    let file = Arc::new(file);
    let handler = move |due: Due| {
        let number = String::from_utf8_lossy(&due.payload);
        let line = format!("{number} {}\n", micros(SystemTime::now()));
        // By one call: no death leaves half of a line.
        (&*file)
            .write_all(line.as_bytes())
            .expect("a ledger that can be written");
        async {
            tokio::time::sleep(RUN).await;
            Outcome::Done
        }
    };
    let timer = Timer::builder().start()?;
    let node = Durable::postgres(server::config(port));
    let _node = node.start(&timer, handler).await?;
    std::future::pending().await
}

fn micros(at: SystemTime) -> i64 {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    since.as_micros() as i64
}

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn start(server: &Server, ledger: &Path) -> Answer<Self> {
        File::create(ledger)?;
        let mut command = Command::new(std::env::current_exe()?);
        let port = server.config().get_ports()[0].to_string();
        command.args(["node", &port]).arg(ledger);
        Ok(Process(command.spawn()?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) async fn kill() -> Answer<()> {
    let server = start_server()?;
    let folder = tempfile::tempdir()?;
    let writer = start_nodes(&server, 1, &lates()).await?;
    let ledgers = ["0", "1", "2"].map(|name| folder.path().join(name));
    let mut processes = Vec::new();
    for ledger in &ledgers {
        processes.push(Process::start(&server, ledger)?);
    }
    let from = soon(TIMERS) + Duration::from_secs(5);
    let due = |n: u64| from + APART * n as u32;
    let timer = |n: u64| Entry::keyed(format!("key {n}"), due(n), n.to_string());
    writer[0]
        .schedule_many((0..TIMERS).map(timer).collect())
        .await?;
    drain(writer).await; // Only the processes run them.
    let until_kill = (from + LOOK).duration_since(SystemTime::now())?;
    tokio::time::sleep(until_kill).await;
    let killed = micros(SystemTime::now());
    drop(processes.remove(0));
    tokio::time::sleep(LOOK + Duration::from_secs(12)).await;

    let mut last: BTreeMap<u64, i64> = BTreeMap::new();
    for ledger in &ledgers {
        for line in read_to_string(ledger)?.lines() {
            let (number, at) = line.split_once(' ').ok_or("half a line")?;
            let last = last.entry(number.parse()?).or_default();
            *last = at.parse::<i64>()?.max(*last);
        }
    }
    let mut before = Histogram::<u64>::new(3)?;
    let mut after = Histogram::<u64>::new(3)?;
    let mut in_flight = Histogram::<u64>::new(3)?;
    for (number, at) in &last {
        let due = micros(due(*number));
        let lates = match (due < killed, *at < killed) {
            (true, true) => &mut before,
            (true, false) => &mut in_flight,
            (false, _) => &mut after,
        };
        lates.record((at - due).max(0) as u64)?;
    }
    row(
        "kill -9 of one of 3: lateness in the 8 s before, ms, p99",
        ms(&before, 0.99),
    );
    row(
        "kill -9 of one of 3: other timers' in the 8 s after, ms, p99",
        ms(&after, 0.99),
    );
    row(
        "kill -9 of one of 3: the latest that was in flight, ms",
        ms(&in_flight, 1.0),
    );
    row(
        "kill -9 of one of 3: never fired",
        (TIMERS - last.len() as u64) as f64,
    );
    Ok(())
}
