//! What befalls the nodes and the server, one thing after the other, chosen at random.

use crate::LEASE;
use crate::clock::Settings;
use crate::fleet::Fleet;
use crate::ledger::now;
use crate::proxy::Mood;
use crate::server::{Server, connect};
use rustix::process::Signal;
use serde::Serialize;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The server's: so that what it holds for the nodes can be seen at once.
pub(crate) const SETTINGS: &[&str] = &["max_connections=200"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Kill,
    /// By a handler that took its process along.
    Abort,
    Stop,
    Crash,
    Swallow,
    Delay,
    Snapshot,
    NodeAdded,
    NodeLeft,
    /// A node's time of day is wrong, by up to an hour.
    Skew,
    /// The server's clock leaps, by up to six seconds, ahead or back.
    Clock,
    /// Each node is restarted on another version's program, one after the other, and then back.
    Upgrade,
    /// Slots move between the primaries; the mover may be killed, and another one ends it.
    Move,
}

/// What happened, from when to when by this machine's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) from: i64,
    pub(crate) to: i64,
    /// How many timers were claimed and not acknowledged as it came.
    pub(crate) in_flight: i64,
}

/// How often it is looked whether a node's process has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Returns how long to wait after each fault: until its consequences are over.
fn calm() -> Duration {
    LEASE * 7 / 6 + Duration::from_millis(1_500)
}

/// Where things befall, and what happened.
pub(crate) struct Scene<'a> {
    pub(crate) servers: &'a [Server; 2],
    pub(crate) fleet: Fleet,
    /// Another version's program.
    pub(crate) other: PathBuf,
    pub(crate) faults: Vec<Fault>,
    pub(crate) settings: Settings,
}

/// Has things befall the scene for so long.
pub(crate) async fn run(scene: &mut Scene<'_>, seconds: u64) -> Result<(), Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs(seconds);
    tokio::time::sleep(calm()).await; // They join.
    while Instant::now() + calm() < end {
        let kind = choose(scene.fleet.len());
        let (begun, from) = (Instant::now(), now());
        let in_flight = count_in_flight(scene.servers).await?;
        befall(kind, scene).await?;
        scene.faults.push(Fault { kind, from, to: now(), in_flight });
        eprintln!("{kind:?}: {} ms", begun.elapsed().as_millis());
        let calm_until = Instant::now() + calm();
        while Instant::now() < calm_until {
            tokio::time::sleep(LOOK).await;
            if scene.fleet.revive()? > 0 {
                let from = now() - LOOK.as_micros() as i64;
                let in_flight = count_in_flight(scene.servers).await?;
                scene.faults.push(Fault { kind: Kind::Abort, from, to: now(), in_flight });
            }
        }
    }
    Ok(())
}

fn choose(nodes: usize) -> Kind {
    match fastrand::u8(..17) {
        0..=3 => Kind::Kill,
        4 | 5 => Kind::Stop,
        6 => Kind::Crash,
        7 => Kind::Swallow,
        8 => Kind::Delay,
        9 => Kind::Snapshot,
        10 if Fleet::can_skew() => Kind::Skew,
        10 | 11 => Kind::Clock,
        12 => Kind::Upgrade,
        13 | 14 => Kind::Move,
        _ if nodes > 3 => Kind::NodeLeft,
        _ => Kind::NodeAdded,
    }
}

async fn befall(kind: Kind, scene: &mut Scene<'_>) -> Result<(), Box<dyn Error>> {
    let Scene { servers, fleet, other, settings, .. } = scene;
    let server = &servers[fastrand::usize(..2)];
    let which = fastrand::usize(..fleet.len());
    let longer_than_the_lease = LEASE.mul_f64(1.2 + fastrand::f64());
    match kind {
        Kind::Kill => {
            fleet.kill(which)?;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..4_000))).await;
            fleet.revive()?;
        }
        Kind::Stop => {
            fleet.signal(which, Signal::STOP);
            tokio::time::sleep(longer_than_the_lease).await;
            fleet.signal(which, Signal::CONT);
        }
        Kind::Crash => {
            tokio::task::block_in_place(|| server.crash())?;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..2_000))).await;
            tokio::task::block_in_place(|| server.go(SETTINGS))?;
        }
        Kind::Swallow | Kind::Delay => {
            fleet.set(which, if kind == Kind::Swallow { Mood::Swallow } else { Mood::Delay });
            tokio::time::sleep(longer_than_the_lease).await;
            fleet.set(which, Mood::Pass);
            // A connection with a hole is given up when its next answer does not come.
        }
        Kind::Snapshot => {
            let holder = connect(&server.config()).await?;
            let hold =
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tickwheel.timer";
            holder.batch_execute(hold).await?;
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(30)).await;
                drop(holder);
            });
        }
        Kind::Abort => fleet.signal(which, Signal::ABORT), // As a handler does; not chosen.
        Kind::NodeAdded => fleet.add().await?,
        Kind::NodeLeft => tokio::task::block_in_place(|| fleet.remove())?,
        Kind::Skew => {
            let (program, skew) = (std::env::current_exe()?, fastrand::i64(-3_600..3_600));
            tokio::task::block_in_place(|| fleet.restart(which, &program, skew))?;
        }
        Kind::Clock => settings.set(servers, fastrand::i64(-3_000_000..3_000_000)).await?,
        Kind::Move => {
            let first = fastrand::u32(..1_024);
            let (slots, target) = (first..(first + 200).min(1_024), fastrand::usize(..2));
            if fastrand::bool() {
                let mut mover = fleet.move_slots(slots.clone(), target)?;
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..1_500))).await;
                mover.kill()?;
                mover.wait()?;
            }
            let mut mover = fleet.move_slots(slots, target)?;
            tokio::task::block_in_place(|| mover.wait())?;
        }
        Kind::Upgrade => tokio::task::block_in_place(|| fleet.upgrade(other))?,
    }
    Ok(())
}

async fn count_in_flight(servers: &[Server; 2]) -> Result<i64, tokio_postgres::Error> {
    let (sql, mut count) = ("SELECT count(*) FROM tickwheel.timer WHERE claim <> 0", 0);
    for server in servers {
        count += connect(&server.config()).await?.query_one(sql, &[]).await?.get::<_, i64>(0);
    }
    Ok(count)
}
