//! Another client, which asks once in a while: how long it waits, and whether its keys end on time.

use hdrhistogram::Histogram;
use redis::{Connection, RedisResult};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_millis(50);
/// Only a bug takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Probe {
    is_over: Arc<AtomicBool>,
    /// How long the last PING took.
    last_us: Arc<AtomicU64>,
    /// Before there was a load.
    quick_us: u64,
    thread: JoinHandle<RedisResult<Probed>>,
}

pub(crate) struct Probed {
    pub(crate) ping_us: Histogram<u64>,
    /// Keys that were gone before their time, or served after it.
    pub(crate) wrong: u64,
}

impl Probe {
    /// Starts to ask.
    pub(crate) fn start(port: u16) -> Result<Self, Box<dyn Error>> {
        let mut client = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
        let mut quick_us = 1000;
        for _ in 0..20 {
            quick_us = quick_us.max(ping(&mut client)?);
        }
        let (is_over, last_us) = (Arc::default(), Arc::default());
        let (ends, last) = (Arc::clone(&is_over), Arc::clone(&last_us));
        let thread = thread::spawn(move || ask(client, &ends, &last));
        Ok(Probe { is_over, last_us, quick_us, thread })
    }

    /// Waits until a PING takes no longer than without a load. Returns how long that was.
    pub(crate) fn wait_until_quick(&self) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        self.last_us.store(u64::MAX, Ordering::Relaxed);
        while self.last_us.load(Ordering::Relaxed) > self.quick_us {
            if start.elapsed() > PATIENCE || self.thread.is_finished() {
                return Err("the server does not recover".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(start.elapsed())
    }

    pub(crate) fn end(self) -> Result<Probed, Box<dyn Error>> {
        self.is_over.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| "the probe panicked")??)
    }
}

fn ask(mut client: Connection, is_over: &AtomicBool, last_us: &AtomicU64) -> RedisResult<Probed> {
    let ping_us = Histogram::new(3).expect("a precision that there is");
    let mut probed = Probed { ping_us, wrong: 0 };
    while !is_over.load(Ordering::Relaxed) {
        let set = Instant::now();
        redis::cmd("SET").arg("probe").arg(1).arg("PX").arg(50).exec(&mut client)?;
        let is_set = Instant::now();
        for _ in 0..7 {
            let asked = Instant::now();
            let is_there: bool = redis::cmd("EXISTS").arg("probe").query(&mut client)?;
            let is_early = !is_there && set.elapsed() < TTL;
            let is_late = is_there && asked >= is_set + TTL;
            probed.wrong += u64::from(is_early || is_late);
            let took_us = ping(&mut client)?;
            last_us.store(took_us, Ordering::Relaxed);
            probed.ping_us.record(took_us).expect("it grows");
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(probed)
}

fn ping(client: &mut Connection) -> RedisResult<u64> {
    let asked = Instant::now();
    redis::cmd("PING").exec(client)?;
    Ok(asked.elapsed().as_micros() as u64)
}
