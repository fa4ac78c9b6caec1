//! Notes when each expired key is told of.

use crate::Lateness;
use crate::keys::{Keys, wall};
use hdrhistogram::Histogram;
use std::error::Error;
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Heard = Result<Lateness, Box<dyn Error + Send + Sync>>;

/// Listens from now on, until all keys have expired.
pub(crate) fn listen(port: u16, keys: Keys) -> Result<JoinHandle<Heard>, Box<dyn Error>> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_connection()?;
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("notify-keyspace-events")
        .arg("Ex")
        .exec(&mut connection)?;
    redis::cmd("FLUSHALL").exec(&mut connection)?;
    let mut events = client.get_connection()?;
    events.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(thread::spawn(move || {
        let mut events = events.as_pubsub();
        events.subscribe("__keyevent@0__:expired")?;
        let mut late = Lateness { by_us: Histogram::new(3)?, early: 0 };
        while late.by_us.len() < keys.count {
            let message = match events.get_message() {
                Ok(message) => message,
                Err(error) if error.is_timeout() && wall() < keys.give_up() => continue,
                Err(error) => return Err(error.into()),
            };
            let now = wall();
            let number: u64 = message.get_payload()?;
            let deadline = keys.deadline(number);
            late.early += u64::from(now < deadline);
            late.by_us.record(now.saturating_sub(deadline).as_micros() as u64)?;
        }
        Ok(late)
    }))
}
