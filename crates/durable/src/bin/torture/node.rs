//! A node: a process of its own, whose handler writes down what it gets, in a ledger.

use crate::{LEASE, NAMESPACE, server};
use std::collections::HashMap;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Outcome, Sharded, When};
use tokio::sync::oneshot;

/// Runs until its standard input ends, then drains.
pub(crate) async fn run(ports: [u16; 2], ledger: &Path) -> Result<(), Box<dyn Error>> {
    let node = start(ports, ledger).await?;
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.send(())
    });
    end.await?;
    node.drain().await;
    Ok(())
}

/// Moves slots, and goes.
pub(crate) async fn move_slots(
    ports: [u16; 2],
    ledger: &Path,
    slots: Range<u32>,
    target: usize,
) -> Result<(), Box<dyn Error>> {
    let node = start(ports, ledger).await?;
    node.move_slots(slots, target).await?;
    node.drain().await;
    Ok(())
}

async fn start(ports: [u16; 2], ledger: &Path) -> Result<Sharded, Box<dyn Error>> {
    let ledger = Arc::new(Ledger::open(ledger)?);
    let timer = Timer::builder().start()?;
    let handler = move |due: Due| handle(due, Arc::clone(&ledger));
    let primary = |port| {
        let node = Durable::postgres(server::config(port)).namespace(NAMESPACE).lease(LEASE);
        node.max_in_flight(500).window(Duration::from_secs(4))
    };
    Ok(Sharded::start(ports.map(primary).into(), &timer, handler).await?)
}

/// What the key of a timer begins with that ends each process.
pub(crate) const POISON: &str = "poison ";

/// Handles a timer by its number: most are done at once, some are slow, some fail first, and one in
/// many ends the process.
async fn handle(due: Due, ledger: Arc<Ledger>) -> Outcome {
    let at = now();
    let poison = due.key.as_deref().is_some_and(|key| key.starts_with(POISON));
    let number: u64 = due.key.as_deref().and_then(|key| key.parse().ok()).unwrap_or(0);
    if poison || number % 20_000 == 19_999 && due.attempt == 1 {
        let _ = (&ledger.file).write_all(format!("{ABORT} {at}\n").as_bytes());
        std::process::abort();
    }
    if number % 20 == 3 && due.attempt == 1 {
        return Outcome::RetryAt(When::After(Duration::from_millis(200)), String::new());
    }
    if number % 30 == 4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert!(number % 500 != 5 || due.attempt > 1, "as it should");
    match ledger.write(number, &due, at) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Dead(error.to_string()),
    }
}

struct Ledger {
    file: File,
}

/// What the line of a node that ends begins with.
const ABORT: &str = "abort";

/// What all ledgers say.
#[derive(Default)]
pub(crate) struct Ledgers {
    /// For each timer, when it fired.
    pub(crate) fired: HashMap<u64, Vec<Fire>>,
    /// When nodes were ended by their handlers.
    pub(crate) aborts: Vec<i64>,
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
        let seconds = std::env::var(SKEW).ok().and_then(|skew| skew.parse::<i64>().ok());
        seconds.unwrap_or(0) * 1_000_000
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as i64 - *SKEWED
}

impl Ledger {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Ledger { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends a line by one call, so that no death of the process leaves half of one; `at` is when
    /// the handler was called.
    fn write(&self, number: u64, due: &Due, at: i64) -> io::Result<()> {
        let line = format!("{number} {} {at} {}\n", due.at.as_micros(), due.attempt);
        (&self.file).write_all(line.as_bytes())
    }
}

/// Reads all ledgers in a folder.
pub(crate) fn read(folder: &Path) -> io::Result<Ledgers> {
    let Ledgers { mut fired, mut aborts } = Ledgers::default();
    for ledger in std::fs::read_dir(folder)? {
        for line in std::fs::read_to_string(ledger?.path())?.lines() {
            if let Some(at) = line.strip_prefix(ABORT) {
                aborts.extend(at.trim().parse::<i64>());
                continue;
            }
            let mut numbers = line.split(' ').map(|number| number.parse::<i64>());
            let mut next = || numbers.next().and_then(Result::ok);
            let (Some(number), Some(due), Some(at)) = (next(), next(), next()) else {
                return Err(io::Error::other(format!("half a line: {line:?}")));
            };
            let attempt = next().unwrap_or(0); // An earlier version's line has none.
            let fire = Fire { due, at, attempt };
            fired.entry(number.unsigned_abs()).or_default().push(fire);
        }
    }
    Ok(Ledgers { fired, aborts })
}
