//! What has fired, a line for each time; it survives the process that writes it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tickwheel_durable::Due;

pub(crate) struct Ledger {
    file: File,
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
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Ledger { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Appends a line by one call, so that no death of the process leaves half of one; `at` is when
    /// the handler was called.
    pub(crate) fn write(&self, number: u64, due: &Due, at: i64) -> io::Result<()> {
        let line = format!("{number} {} {at} {}\n", due.at.as_micros(), due.attempt);
        (&self.file).write_all(line.as_bytes())
    }
}

/// Reads all ledgers in a folder: for each timer, when it fired.
pub(crate) fn read(folder: &Path) -> io::Result<HashMap<u64, Vec<Fire>>> {
    let mut fired: HashMap<u64, Vec<Fire>> = HashMap::new();
    for ledger in std::fs::read_dir(folder)? {
        for line in std::fs::read_to_string(ledger?.path())?.lines() {
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
    Ok(fired)
}
