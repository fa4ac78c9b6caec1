//! A node: a process of its own, whose handler writes down what it gets, in a ledger.

use crate::load::Written;
use crate::{LEASE, NAMESPACE, server};
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Outcome, When};

/// Runs on both primaries until its standard input ends; then drains.
pub(crate) async fn run(ports: [u16; 2], ledger: &Path) -> Result<(), Box<dyn Error>> {
    let ledger = Arc::new(File::options().create(true).append(true).open(ledger)?);
    let timer = Timer::builder().start()?;
    let start = async |port| {
        let ledger = Arc::clone(&ledger);
        let config = server::config(port).user(USER).clone();
        let node = Durable::postgres(config).namespace(NAMESPACE).lease(LEASE);
        let node = node.max_in_flight(500).window(Duration::from_secs(4));
        node.start(&timer, move |due: Due| handle(due, Arc::clone(&ledger)))
            .await
    };
    let nodes = [start(ports[0]).await?, start(ports[1]).await?];
    let input = || io::copy(&mut io::stdin(), &mut io::sink());
    let _ = tokio::task::spawn_blocking(input).await?; // It ends, however.
    for node in nodes {
        node.drain().await;
    }
    Ok(())
}

/// As whom it connects: no limit holds for an administrator.
pub(crate) const USER: &str = "node";

/// What the key of a timer begins with that ends each process.
pub(crate) const POISON: &str = "poison ";

/// What the line of a node that ends begins with.
const ABORT: &str = "abort ";

/// Handles a timer by its number: most are done at once, some are slow, some fail first, and one in
/// many ends the process. Appends each line by one call, so that no death of the process leaves
/// half of one, and none comes between those of another node.
async fn handle(due: Due, mut ledger: Arc<File>) -> Outcome {
    let at = now();
    let poison = due
        .key
        .as_deref()
        .is_some_and(|key| key.starts_with(POISON));
    let number: u64 = due
        .key
        .as_deref()
        .and_then(|key| key.parse().ok())
        .unwrap_or(0);
    if poison || number % 20_000 == 19_999 && due.attempt == 1 {
        let _ = ledger.write_all(format!("{ABORT}{at}\n").as_bytes());
        std::process::abort();
    }
    if number % 20 == 3 && due.attempt == 1 {
        return Outcome::RetryAt(When::After(Duration::from_millis(200)), String::new());
    }
    if number % 30 == 4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert!(number % 500 != 5 || due.attempt > 1, "as it should");
    let line = format!("{number} {} {at} {}\n", due.at.as_micros(), due.attempt);
    match ledger.write_all(line.as_bytes()) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Dead(error.to_string()),
    }
}

/// A time at which a timer fired. All in microseconds since 1970; `due` by the server's clock, `at`
/// by this machine's one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fire {
    pub(crate) due: i64,
    pub(crate) at: i64,
    pub(crate) attempt: i64,
}

/// By how much this process' clock is wrong, in seconds: the driver says so.
pub(crate) const SKEW: &str = "TICKWHEEL_TORTURE_SKEW";

/// This machine's clock, whatever this process takes it for.
pub(crate) fn now() -> i64 {
    static SKEWED: LazyLock<i64> = LazyLock::new(|| {
        let seconds = std::env::var(SKEW)
            .ok()
            .and_then(|skew| skew.parse::<i64>().ok());
        seconds.unwrap_or(0) * 1_000_000
    });
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since.as_micros() as i64 - *SKEWED
}

/// Reads in the ledger when timers fired, and returns when handlers ended their nodes.
pub(crate) fn read(ledger: &Path, timers: &mut [Written]) -> Result<Vec<i64>, Box<dyn Error>> {
    let mut aborts = Vec::new();
    for line in std::fs::read_to_string(ledger)?.lines() {
        if let Some(at) = line.strip_prefix(ABORT) {
            aborts.push(at.parse()?);
            continue;
        }
        let numbers: Vec<i64> = line
            .split(' ')
            .map_while(|number| number.parse().ok())
            .collect();
        let &[number, due, at, attempt] = &numbers[..] else {
            return Err(format!("half a line: {line:?}").into());
        };
        let timer = timers
            .get_mut(number as usize)
            .ok_or("what was never scheduled has fired")?;
        timer.fires.push(Fire { due, at, attempt });
    }
    Ok(aborts)
}
