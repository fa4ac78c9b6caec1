//! Locks in a real Redis, renewed in batches, and what becomes of them when Redis stops.
//!
//! ```text
//! cargo run -p tickwheel-services --features redis --bin lock_watchdog
//! cargo run -p tickwheel-services --features redis --bin lock_watchdog -- --check
//! ```
//!
//! Redis is restarted, then a rival takes some of the locks by force, and at last Redis hangs for
//! longer than the leases. The exit status is 1 if a lock was not lost once, or a rival's touched.

use rustix::process::Signal;
use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_services::locks::{Lock, Locks};
use tickwheel_services::{RedisServer, Timeline, happens, is_check};

/// Locks that a rival takes.
const STOLEN: usize = 10;

/// The names of the locks that were lost, and how many were lost more than once.
type Lost = Arc<Mutex<(HashSet<String>, usize)>>;

fn main() -> Result<(), Box<dyn Error>> {
    let (count, seconds) = if is_check()? { (1000, 3) } else { (10_000, 9) };
    let lease = Duration::from_secs(seconds);
    let mut server = RedisServer::start()?;
    let timer = Timer::builder().start()?;
    let timeline = Timeline::begin();
    let lost = Lost::default();
    let log = Arc::clone(&lost);
    let locks = Locks::new(&timer, &server.client()?, lease, move |name| {
        let (names, again) = &mut *log.lock().unwrap();
        *again += usize::from(!names.insert(name.to_owned()));
    });
    let taken = (0..count).map(|number| locks.try_lock(&format!("lock:{number}")));
    let taken: Vec<Lock> = taken
        .collect::<Result<Option<_>, _>>()?
        .ok_or("one was taken")?;
    let held = || taken.iter().filter(|lock| lock.is_held()).count();
    let tell = |what: &str| {
        let renewed = &locks.counts().renewed;
        let failed = &locks.counts().failed;
        let lost = lost.lock().unwrap().0.len();
        let counts = format!("{renewed:?} renewals, {failed:?} failed");
        timeline.say(format!("{what}: {} held, {lost} lost; {counts}", held()));
    };
    tell("taken");
    let renewed = || locks.counts().renewed.load(Relaxed);
    // Nobody is to blame if the machine is so busy that leases run out.
    let have_run_out = || held() < count as usize;
    let are_renewed = happens(|| renewed() >= count || have_run_out());
    tell("renewed");

    server.stop()?;
    let have_failed = happens(|| locks.counts().failed.load(Relaxed) > 0 || have_run_out());
    server.restart()?;
    let before = renewed();
    let again = happens(|| renewed() >= before + count || have_run_out());
    tell("Redis was restarted");

    let mut connection = server.client()?.get_connection()?;
    for number in 0..STOLEN {
        redis::cmd("SET")
            .arg(format!("lock:{number}"))
            .arg("rival")
            .exec(&mut connection)?;
    }
    let stolen = happens(|| lost.lock().unwrap().0.len() >= STOLEN);
    tell("a rival has taken some");

    server.signal(Signal::STOP)?;
    let all_lost = happens(|| held() == 0 && lost.lock().unwrap().0.len() as u64 == count);
    server.signal(Signal::CONT)?;
    tell("Redis hung for longer than the leases");
    let is_right = are_renewed && have_failed && again && stolen && all_lost;
    if !is_right || lost.lock().unwrap().1 > 0 {
        return Err("a lock was lost twice, or never, or not renewed".into());
    }
    for number in 0..STOLEN {
        let token = redis::cmd("GET")
            .arg(format!("lock:{number}"))
            .query(&mut connection)?;
        if Some("rival") != Option::<String>::as_deref(&token) {
            return Err(format!("{number} is the rival's, and not {token:?}").into());
        }
    }
    Ok(())
}
