//! An hour of 10,000 sessions in virtual time, with two outages of the network.
//!
//! ```text
//! cargo run --profile bench -p demos --bin sessions
//! ```
//!
//! Each session sends a heartbeat every half minute and ends after ninety seconds without one. It
//! begins again with the next one that arrives. All of that is the shipped timer on one thread; the
//! same seed gives the same hour.

use clap::Parser;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::{ManualClock, Timer};

const SESSIONS: u32 = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
const HEARTBEAT: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(90);
const SAMPLE: Duration = Duration::from_secs(5);

/// In which minutes the network loses how many heartbeats of 100.
const OUTAGES: [(u32, u32, u64); 2] = [(15, 25, 50), (40, 42, 100)];

/// An hour of 10,000 sessions in virtual time, with two outages of the network.
#[derive(Debug, Parser)]
struct Options {
    /// Another order of what happens at the same time, and other losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What the hour has come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hour {
    heartbeats: u64,
    expired: u64,
    /// How many sessions there were, every five seconds.
    alive: Vec<usize>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let start = Instant::now();
    let hour = run(options.seed)?;
    println!(
        "{} heartbeats, {} sessions expired; {:.2} s",
        hour.heartbeats,
        hour.expired,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn run(seed: u64) -> Result<Hour, Box<dyn Error>> {
    let clock = ManualClock::seeded(seed);
    let timer = Timer::builder().clock(clock.clone()).build()?;
    let expired = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&expired);
    let sessions = KeyedTimer::new(&timer, move |_: u32, ()| _ = counts.fetch_add(1, Relaxed));
    let heartbeats = Arc::new(AtomicU64::new(0));
    let start = clock.now();
    let within = |most: Duration| Duration::from_nanos(clock.random() % most.as_nanos() as u64);
    for session in 0..SESSIONS {
        let clock = clock.clone();
        let sessions = sessions.clone();
        let sent = Arc::clone(&heartbeats);
        let beats = Periodic::every(HEARTBEAT).first_after(within(HEARTBEAT));
        beats.start(&timer, move |_| {
            sent.fetch_add(1, Relaxed);
            if clock.random() % 100 >= lost(clock.now() - start) {
                let _ = sessions.add(session, TIMEOUT, ());
            }
        })?;
    }
    let alive = Arc::new(Mutex::new(Vec::new()));
    let samples = Arc::clone(&alive);
    Periodic::every(SAMPLE).start(&timer, move |_| {
        samples.lock().expect("nobody panics").push(sessions.len());
    })?;
    clock.run_for(60 * MINUTE);
    let alive = std::mem::take(&mut *alive.lock().expect("nobody panics"));
    Ok(Hour {
        heartbeats: heartbeats.load(Relaxed),
        expired: expired.load(Relaxed),
        alive,
    })
}

/// Returns how many heartbeats of 100 are lost after this time.
fn lost(elapsed: Duration) -> u64 {
    let during =
        |(from, to, _): &&(u32, u32, u64)| (MINUTE * *from..MINUTE * *to).contains(&elapsed);
    OUTAGES.iter().find(during).map_or(0, |(_, _, lost)| *lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_hour_and_nobody_expires_without_an_outage() {
        let hour = run(1).expect("in range");
        assert_eq!(hour, run(1).expect("in range"));
        let at = |minute: usize| hour.alive[minute * 12 - 1];
        assert!(
            [5, 14, 30, 39, 50, 60]
                .map(at)
                .iter()
                .all(|alive| *alive == SESSIONS as usize)
        );
        assert!((5_000..10_000).contains(&at(20)) && at(42) == 0);
    }
}
