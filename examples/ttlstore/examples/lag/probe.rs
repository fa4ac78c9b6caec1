//! The probe: sets the keys, and listens to their end.

use redis::Connection;
use std::error::Error;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Keys that expire at the same time.
pub(crate) const KEYS: usize = 1000;

/// Fills the server with `others`, which live for an hour, and returns how late it tells of the
/// keys that expire: of those that it tells of within `patience`.
pub(crate) fn lags(
    port: u16,
    others: usize,
    patience: Duration,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_connection()?;
    redis::cmd("FLUSHDB").exec(&mut connection)?;
    let mut config = redis::cmd("CONFIG");
    config.arg("SET").arg("notify-keyspace-events").arg("Ex").exec(&mut connection)?;
    set(&mut connection, "other", others, "PX", 3_600_000)?;
    let mut listener = client.get_connection()?;
    listener.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut events = listener.as_pubsub();
    events.subscribe("__keyevent@0__:expired")?;
    thread::sleep(Duration::from_secs(1)); // Both come to rest.

    let deadline = Duration::from_millis((wall().as_millis() + 1000) as u64);
    set(&mut connection, "probe", KEYS, "PXAT", deadline.as_millis() as u64)?;
    let mut heard = Vec::new();
    while heard.len() < KEYS && wall() < deadline + patience {
        match events.get_message() {
            Ok(_) => {
                let late = wall().checked_sub(deadline);
                heard.push(late.ok_or("a key expired early, or this machine is too slow")?);
            }
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(heard)
}

fn set(
    connection: &mut Connection,
    name: &str,
    count: usize,
    unit: &str,
    ttl: u64,
) -> redis::RedisResult<()> {
    for start in (0..count).step_by(1000) {
        let mut pipe = redis::pipe();
        for number in start..count.min(start + 1000) {
            let set = pipe.cmd("SET").arg(format!("{name}:{number}")).arg("value");
            set.arg(unit).arg(ttl).ignore();
        }
        pipe.exec(connection)?;
    }
    Ok(())
}

/// Returns the time of day, which both servers read as well.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
