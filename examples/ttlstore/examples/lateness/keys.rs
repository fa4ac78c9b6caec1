//! The keys, and when each expires.

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Numbered, with deadlines evenly spread: which key has which is mixed up.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) count: u64,
    first: Duration,
    spread: Duration,
}

impl Keys {
    /// Creates keys, of which the first expires `after` from now.
    pub(crate) fn new(count: u64, after: Duration, spread: Duration) -> Self {
        Keys { count, first: wall() + after, spread }
    }

    /// Returns a deadline by the wall clock, in whole milliseconds as PXAT wants it.
    pub(crate) fn deadline(&self, number: u64) -> Duration {
        // Steps of a large prime visit each number once.
        let place = u128::from(number) * 1_000_000_007 % u128::from(self.count);
        let into = self.spread.as_millis() * place / u128::from(self.count);
        Duration::from_millis((self.first.as_millis() + into) as u64)
    }

    /// Returns when the last of them is surely late beyond measure.
    pub(crate) fn give_up(&self) -> Duration {
        self.first + self.spread + Duration::from_secs(120)
    }

    pub(crate) fn set(&self, port: u16) -> Result<(), Box<dyn Error>> {
        let client = redis::Client::open(("127.0.0.1", port))?;
        let mut connection = client.get_connection()?;
        for start in (0..self.count).step_by(1000) {
            let mut pipe = redis::pipe();
            for number in start..self.count.min(start + 1000) {
                let deadline_ms = self.deadline(number).as_millis() as u64;
                let command = pipe.cmd("SET").arg(number).arg("value");
                command.arg("PXAT").arg(deadline_ms).ignore();
            }
            pipe.exec(&mut connection)?;
        }
        if wall() > self.first {
            return Err("this machine is too slow to set the keys in time".into());
        }
        Ok(())
    }
}

/// Returns the time of day, which both the servers and we read.
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
