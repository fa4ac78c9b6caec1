//! What befalls the nodes and the server, at random, and how the server's clock was set.

use crate::LEASE;
use crate::fleet::{Fleet, Mood};
use crate::load::rest;
use crate::node::now;
use crate::server::{Server, connect};
use rustix::process::Signal;
use serde::Serialize;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// The server's: so that what it holds for the nodes can be seen at once.
pub(crate) const SETTINGS: &[&str] = &["max_connections=200"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Kill,
    /// By a handler that took its process along, as its ledger says.
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

impl Kind {
    /// Returns how long its consequences last: until its lease has run out and another node has
    /// looked, and a connection that swallows data was given up.
    pub(crate) fn aftermath(self) -> Duration {
        let lease = LEASE * 7 / 6;
        if self == Kind::Swallow { lease + Duration::from_secs(5) } else { lease }
    }
}

/// How long before a fault a timer may have been due, and after its consequences, and yet be
/// touched by it: on a busy machine it may not be done by then.
pub(crate) const SHADOW: Duration = Duration::from_secs(1);

/// How long nothing befalls, and nothing is touched by what has befallen.
const CALM: Duration = Duration::from_secs(2);

/// How long timers may take to end when no more befalls: a bound that only a bug exceeds.
const END: Duration = Duration::from_secs(60);

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
    let pause = |kind: Kind| kind.aftermath() + SHADOW + CALM + SHADOW;
    tokio::time::sleep(pause(Kind::Kill)).await; // They join.
    while Instant::now() + pause(Kind::Kill) < end {
        let kind = choose(scene.fleet.len());
        let (begun, from) = (Instant::now(), now());
        let in_flight = count_in_flight(scene.servers).await?;
        befall(kind, scene).await?;
        scene.faults.push(Fault { kind, from, to: now(), in_flight });
        eprintln!("{kind:?}: {} ms", begun.elapsed().as_millis());
        let next = Instant::now() + pause(kind);
        while Instant::now() < next {
            look(scene).await?;
        }
    }
    Ok(())
}

/// Looks, after a while, whether nodes have ended by their own handlers, and starts them again.
async fn look(scene: &mut Scene<'_>) -> Result<(), Box<dyn Error>> {
    tokio::time::sleep(LOOK).await;
    if scene.fleet.revive()? > 0 {
        let from = now() - LOOK.as_micros() as i64;
        let in_flight = count_in_flight(scene.servers).await?;
        scene.faults.push(Fault { kind: Kind::Abort, from, to: now(), in_flight });
    }
    Ok(())
}

/// Waits until all timers have ended, and returns how many have not.
pub(crate) async fn end(scene: &mut Scene<'_>) -> Result<i64, Box<dyn Error>> {
    let patience = Instant::now() + END;
    loop {
        let rest = rest(scene.servers).await?;
        if rest == 0 || Instant::now() > patience {
            return Ok(rest);
        }
        look(scene).await?;
    }
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

/// By how much the server's clock is ahead, in microseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Returns what the server's clock shows; a moment more or less while it is being set.
pub(crate) fn server_now() -> i64 {
    now() + AHEAD.load(Ordering::Relaxed)
}

/// For how long before a fire it may have been claimed: by the clock of then.
const CLAIMED: i64 = 20_000_000;

/// When this machine's clock showed what, from when on the server's was ahead by how much; both in
/// microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(Vec<(i64, i64)>);

impl Settings {
    /// Sets the servers' clocks ahead of this machine's, or behind it.
    pub(crate) async fn set(
        &mut self,
        servers: &[Server; 2],
        ahead: i64,
    ) -> Result<(), tokio_postgres::Error> {
        // From before the first of them shows it.
        self.0.push((now(), ahead));
        for server in servers {
            let client = connect(&server.config()).await?;
            replace(&client, ahead).await?;
        }
        AHEAD.store(ahead, Ordering::Relaxed);
        Ok(())
    }

    fn ahead(&self, at: i64) -> i64 {
        self.0.iter().rev().find(|(from, _)| *from <= at).map_or(0, |(_, ahead)| *ahead)
    }

    /// Returns since when, by this machine's clock, the server's had shown `due` or more at `at`:
    /// when a timer that fired then could fire first, however the clock has leapt since.
    pub(crate) fn reached(&self, due: i64, at: i64) -> i64 {
        let mut end = at;
        for (from, ahead) in self.0.iter().rev().chain([&(i64::MIN, 0)]) {
            if *from > at {
                continue;
            }
            if end + ahead < due {
                break; // Not at the end of this setting: it came with the next one.
            }
            if due - ahead >= *from {
                return due - ahead;
            }
            end = *from;
        }
        end
    }

    /// Returns the most that it can have shown when what fired then was claimed.
    pub(crate) fn at_most(&self, at: i64) -> i64 {
        let recent = self.0.iter().filter(|(from, _)| (at - CLAIMED..=at).contains(from));
        let most = recent.map(|(_, ahead)| *ahead).max().unwrap_or(i64::MIN);
        at + most.max(self.ahead(at)).max(self.ahead(at - CLAIMED))
    }
}

/// Replaces the one function that all of the store's time comes from.
async fn replace(client: &Client, ahead: i64) -> Result<(), tokio_postgres::Error> {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION tickwheel.clock() RETURNS bigint LANGUAGE sql VOLATILE AS
        $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {ahead} $$"
    );
    client.batch_execute(&sql).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaps_of_the_clock_have_to_do_with_lateness() {
        let settings = Settings(vec![(1_000, 600), (2_000, -600)]);
        assert_eq!(settings.reached(900, 950), 900, "before all leaps");
        assert_eq!(settings.reached(900, 1_100), 900, "it was due before the leap already");
        assert_eq!(settings.reached(1_500, 1_100), 1_000, "the leap made it due");
        assert_eq!(settings.reached(1_900, 1_400), 1_300, "time made it due after the leap");
        // It had come once, and came again after the clock was set back.
        assert_eq!(settings.reached(1_900, 2_700), 2_500);
        assert_eq!(settings.reached(1_900, 2_100), 2_100, "early: at_most tells");
    }
}
