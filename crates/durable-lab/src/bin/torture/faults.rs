//! What befalls the nodes and the server, at random.

use crate::LEASE;
use crate::book::{Book, Written};
use crate::clock::Settings;
use crate::fleet::{Fleet, Mood};
use crate::node::{Deed, PLACES, REASON, now, payload};
use crate::server::{Server, connect};
use clap::ValueEnum;
use rustix::process::Signal;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tickwheel_durable::store::postgres::{Postgres, tables};
use tickwheel_durable::{Durable, Entry};
use tokio::task::block_in_place;

pub(crate) const SETTINGS: &[&str] = &["max_connections=300", "wal_level=logical"];

/// Where handlers write effects down, as often as they happen; and a trigger that may refuse
/// deaths.
pub(crate) const TABLES: &str = "CREATE TABLE effect (number bigint NOT NULL);
    CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$;
    CREATE TRIGGER dies BEFORE UPDATE ON tickwheel.timer FOR EACH ROW
        WHEN (new.died IS NOT NULL) EXECUTE FUNCTION dies()";

/// What the names of timers begin with whose fate is open: poison, and deaths that are refused.
const OPEN: &str = "kx ";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Kill,
    Stop,
    /// A node is suspended while a claim of its is under way.
    StopInClaim,
    Crash,
    Swallow,
    /// The server gets what a node, or the driver, asks, and its answers are lost.
    LoseAnswers,
    Delay,
    /// A node's link carries so few bytes a second that its answers take long.
    Slow,
    /// Somebody holds a snapshot for long, and in a transaction that writes.
    Reader,
    Writer,
    /// Somebody's transaction has timers locked for long, and touches no others.
    Lock,
    /// The same, for a short time, with timers that run.
    LockRunning,
    /// A timer is scheduled that ends each process which runs it.
    Poison,
    /// A key is scheduled very often under a slow handler.
    Busy,
    /// Very many timers are due at once, and twenty nodes wake for them.
    Mass,
    Crowd,
    /// More deaths are refused than a node has places.
    Refuse,
    /// The table is emptied.
    Empty,
    /// An index is built, and dropped.
    Index,
    /// The server's clock leaps, by up to three seconds, ahead or back.
    Clock,
    /// All move to another server, which has followed by a publication.
    SwitchOver,
    Pause,
    /// The server takes no writes for a while.
    ReadOnly,
    NodeAdded,
    NodeLeft,
}

/// What happened, from when to when by this machine's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl Kind {
    /// Returns whether a key may run twice at once by its doing: a node is suspended or cut off,
    /// the clock leaps, or the rows of those that run are gone.
    pub(crate) fn parts(self) -> bool {
        use Kind::{Clock, Empty, LoseAnswers, Slow, Stop, StopInClaim, Swallow};
        let cut_off = matches!(self, LoseAnswers | Slow | Stop | StopInClaim | Swallow);
        cut_off || matches!(self, Clock | Empty)
    }
}

/// How often it is looked whether a node's process has ended.
const LOOK: Duration = Duration::from_millis(100);

/// How long nothing befalls.
const CALM: Duration = Duration::from_secs(2);

/// How many timers somebody's transaction has locked, and for how long.
const LOCKED: i64 = 100;
const HELD: Duration = Duration::from_secs(12);

/// How long timers may take to end when no more befalls: a bound that only a bug exceeds. Those
/// that were alone in crashes wait for twelve leases, and again for twice that.
const END: Duration = Duration::from_secs(150);

/// Where things befall, and what happened.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) driver: Durable<Postgres>,
    pub(crate) fleet: Fleet,
    pub(crate) book: Arc<Book>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) settings: Settings,
}

type Befallen = Result<(), Box<dyn Error>>;

/// Has things befall the scene for so long: only some, if it is said which.
pub(crate) async fn run(scene: &mut Scene, seconds: u64, only: &[Kind]) -> Befallen {
    let end = Instant::now() + Duration::from_secs(seconds);
    calm(scene).await?; // They start.
    while Instant::now() < end {
        let kind = choose(scene.fleet.len(), only);
        let from = now();
        eprintln!("{kind:?}");
        befall(kind, scene).await?;
        let to = now();
        scene.faults.push(Fault { kind, from, to });
        calm(scene).await?;
    }
    Ok(())
}

/// Waits, and starts nodes again that have ended by their own handlers.
async fn calm(scene: &mut Scene) -> Befallen {
    let next = Instant::now() + CALM.mul_f64(0.5 + fastrand::f64());
    while Instant::now() < next {
        tokio::time::sleep(LOOK).await;
        scene.fleet.revive()?;
    }
    Ok(())
}

fn choose(nodes: usize, only: &[Kind]) -> Kind {
    let kinds = match only {
        [] => Kind::value_variants(),
        only => only,
    };
    match fastrand::choice(kinds) {
        // Every third one.
        _ if only.is_empty() && fastrand::u8(..3) == 0 => Kind::Kill,
        Some(Kind::NodeAdded) | None if nodes > 4 => Kind::NodeLeft,
        Some(Kind::NodeLeft) if nodes < 3 => Kind::NodeAdded,
        Some(kind) => *kind,
        None => Kind::NodeAdded,
    }
}

async fn befall(kind: Kind, scene: &mut Scene) -> Befallen {
    let server = &scene.server;
    let which = fastrand::usize(..scene.fleet.len());
    let fleet = &mut scene.fleet;
    match kind {
        Kind::Kill => {
            fleet.kill(which)?;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..3_000))).await;
            fleet.revive()?;
        }
        Kind::Stop => stop(fleet, which).await,
        Kind::StopInClaim => {
            // Its answers take so long that nearly always one is under way.
            fleet.set(which, Mood::Delay);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(300..600))).await;
            stop(fleet, which).await;
            fleet.set(which, Mood::Pass);
        }
        Kind::Crash => {
            block_in_place(|| server.crash())?;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..3_000))).await;
            block_in_place(|| server.go(SETTINGS))?;
        }
        Kind::Swallow => spoil(fleet, which, Mood::Swallow).await,
        Kind::LoseAnswers => {
            let which = fastrand::usize(..=fleet.len());
            spoil(fleet, which, Mood::LoseAnswers).await;
        }
        Kind::Delay => spoil(fleet, which, Mood::Delay).await,
        Kind::Slow => spoil(fleet, which, Mood::Slow).await,
        Kind::Reader => hold(server, "SELECT txid_current_snapshot()").await?,
        Kind::Writer => hold(server, "SELECT pg_current_xact_id()").await?,
        Kind::Lock => lock(server, "claim <= 0", HELD).await?,
        Kind::LockRunning => {
            schedule(scene, "slow", 50, Deed::Slow).await;
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            lock(server, "claim > 0", LEASE / 5).await?;
        }
        Kind::Poison => schedule(scene, "x poison", 1, Deed::Abort).await,
        Kind::Busy => busy(scene).await,
        Kind::Mass => schedule(scene, "mass", 3_000, Deed::Done).await,
        Kind::Crowd => crowd(scene).await?,
        Kind::Refuse => refuse(scene).await?,
        Kind::Empty => empty(scene).await?,
        Kind::Index => index(server).await?,
        Kind::Clock => {
            let ahead = fastrand::i64(-3_000_000..3_000_000);
            scene.settings.set(server, ahead).await?;
        }
        Kind::SwitchOver => switch_over(scene).await?,
        Kind::Pause => pause(&scene.driver).await,
        Kind::ReadOnly => take_no_writes(server).await?,
        Kind::NodeAdded => fleet.add().await?,
        Kind::NodeLeft => fleet.shrink(fleet.len() - 1)?,
    }
    Ok(())
}

fn longer_than_the_lease() -> Duration {
    LEASE.mul_f64(1.2 + fastrand::f64())
}

async fn stop(fleet: &Fleet, which: usize) {
    fleet.signal(which, Signal::STOP);
    tokio::time::sleep(longer_than_the_lease()).await;
    fleet.signal(which, Signal::CONT);
}

/// Spoils a node's link for a while. A connection with a hole is given up when its next answer does
/// not come.
async fn spoil(fleet: &Fleet, which: usize, mood: Mood) {
    fleet.set(which, mood);
    tokio::time::sleep(longer_than_the_lease()).await;
    fleet.set(which, Mood::Pass);
    if !matches!(mood, Mood::Delay) {
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
}

/// Holds a snapshot for a while, and lets other things befall meanwhile.
async fn hold(server: &Server, what: &str) -> Befallen {
    let holder = connect(&server.config()).await?;
    let begin = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {what}");
    holder.batch_execute(&begin).await?;
    let held = Duration::from_secs(fastrand::u64(5..60));
    tokio::spawn(async move {
        tokio::time::sleep(held).await;
        drop(holder);
    });
    Ok(())
}

/// Locks timers, and lets them go after a while.
async fn lock(server: &Server, which: &str, held: Duration) -> Befallen {
    let holder = connect(&server.config()).await?;
    let sql = format!(
        "SELECT FROM tickwheel.timer WHERE {which} AND died IS NULL
        ORDER BY random() LIMIT $1 FOR UPDATE SKIP LOCKED"
    );
    holder.batch_execute("BEGIN").await?;
    holder.query(&sql, &[&LOCKED]).await?;
    tokio::spawn(async move {
        tokio::time::sleep(held).await;
        drop(holder);
    });
    Ok(())
}

/// Schedules so many timers for the same moment, by one call.
async fn schedule(scene: &Scene, key: &str, count: usize, deed: Deed) {
    let delay = Duration::from_millis(fastrand::u64(..1_000));
    let add = |_| {
        let key = format!("{key} {}", fastrand::u64(..));
        let number = scene.book.add(Written {
            key: key.clone(),
            deed,
            ..Written::default()
        });
        (number, Entry::keyed(key, delay, payload(number, deed)))
    };
    let (numbers, entries): (Vec<usize>, Vec<Entry>) = (0..count).map(add).unzip();
    if let Err(error) = scene.driver.schedule_many(entries).await {
        scene.book.count(format!("many failed: {error}"));
        return;
    }
    let at = now();
    for number in numbers {
        scene.book.note(number, |it| {
            it.answered = Some(at);
            it.may_be_gone |= key.starts_with('x');
        });
    }
}

/// Schedules one key again and again: all but the last timer may be replaced.
async fn busy(scene: &Scene) {
    let key = format!("busy {}", now());
    let mut last = None;
    for n in 0..1_000 {
        let deed = if n % 10 == 0 { Deed::Slow } else { Deed::Done };
        let number = scene.book.add(Written {
            key: key.clone(),
            deed,
            ..Written::default()
        });
        let entry = Entry::keyed(&key, Duration::ZERO, payload(number, deed));
        let told = scene.driver.schedule(entry).await;
        let at = now();
        last.into_iter()
            .for_each(|last| scene.book.note(last, |it| it.may_be_gone = true));
        if told.is_err() {
            return;
        }
        scene.book.note(number, |it| it.answered = Some(at));
        last = Some(number);
    }
}

/// Has twenty nodes wake for the same timers.
async fn crowd(scene: &mut Scene) -> Befallen {
    let nodes = scene.fleet.len();
    for _ in nodes..20 {
        scene.fleet.add().await?;
    }
    tokio::time::sleep(CALM).await; // They start.
    for _ in 0..3 {
        schedule(scene, "crowd", 1_000, Deed::Done).await;
        calm(scene).await?;
    }
    scene.fleet.shrink(nodes)?;
    Ok(())
}

/// Has all move to another server, once that has what this one had.
async fn switch_over(scene: &mut Scene) -> Befallen {
    let second = block_in_place(|| Server::start(SETTINGS))?;
    let port = scene.server.config().get_ports()[0];
    let from = connect(&scene.server.config()).await?;
    from.batch_execute(
        "CREATE PUBLICATION moves FOR TABLE tickwheel.timer, tickwheel.pause, effect",
    )
    .await?;
    let to = connect(&second.config()).await?;
    to.batch_execute(&tables("tickwheel")?).await?;
    to.batch_execute(TABLES).await?;
    scene.settings.keep(&second).await?;
    let follow = format!(
        "CREATE SUBSCRIPTION moves
        CONNECTION 'host=127.0.0.1 port={port} user=postgres dbname=postgres' PUBLICATION moves"
    );
    to.batch_execute(&follow).await?;
    let behind = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    while to.query_one(behind, &[]).await?.get::<_, i64>(0) > 0 {
        tokio::time::sleep(LOOK).await;
    }
    // Once what follows has all.
    block_in_place(|| scene.server.shut_down())?;
    to.batch_execute(
        "ALTER SUBSCRIPTION moves DISABLE;
        ALTER SUBSCRIPTION moves SET (slot_name = NONE);
        DROP SUBSCRIPTION moves",
    )
    .await?;
    let port = second.config().get_ports()[0];
    scene.fleet.server.store(port, Ordering::Relaxed);
    block_in_place(|| scene.server = second);
    Ok(())
}

/// Refuses deaths for a while.
async fn refuse(scene: &Scene) -> Befallen {
    let client = connect(&scene.server.config()).await?;
    let set = |body: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF new.former LIKE '{OPEN}%' THEN {body}; END IF; RETURN new; END $$"
        )
    };
    client.batch_execute(&set("RAISE 'it does not'")).await?;
    schedule(scene, "x refused", 2 * PLACES as usize, Deed::Die).await;
    tokio::time::sleep(HELD).await;
    client.batch_execute(&set("NULL")).await?;
    Ok(())
}

async fn empty(scene: &Scene) -> Befallen {
    let client = connect(&scene.server.config()).await?;
    // Somebody's transaction may have it for longer: then another time.
    let truncate = "SET lock_timeout = '3s'; TRUNCATE tickwheel.timer";
    if client.batch_execute(truncate).await.is_ok() {
        scene.book.empty();
    }
    Ok(())
}

async fn index(server: &Server) -> Befallen {
    let client = connect(&server.config()).await?;
    client
        .batch_execute("SET statement_timeout = '15s'")
        .await?;
    for sql in [
        "DROP INDEX CONCURRENTLY IF EXISTS tickwheel.reasons",
        "CREATE INDEX CONCURRENTLY reasons ON tickwheel.timer (reason, attempts)",
        "DROP INDEX CONCURRENTLY IF EXISTS tickwheel.reasons",
    ] {
        let _ = client.batch_execute(sql).await; // It may wait for a snapshot for too long.
    }
    Ok(())
}

async fn pause(driver: &Durable<Postgres>) {
    let tag = format!("tag {}", fastrand::u8(..4));
    let tag = fastrand::bool().then_some(tag.as_str());
    let _ = driver.pause(tag, Duration::from_secs(5)).await;
    if fastrand::bool() {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let _ = driver.resume(tag).await;
    }
}

/// Has the server take no writes for a while, also by connections that it has.
async fn take_no_writes(server: &Server) -> Befallen {
    let client = connect(&server.config()).await?;
    for (read_only, pause) in [("on", longer_than_the_lease()), ("off", Duration::ZERO)] {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}");
        client.batch_execute(&set).await?;
        client.batch_execute("SELECT pg_reload_conf()").await?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// What there is at the end.
pub(crate) struct Ends {
    /// Timers that had not ended when it was waited for them.
    pub(crate) left: i64,
    pub(crate) innocent_dead: i64,
    /// The numbers of the timers that had their effect, as often as they had it.
    pub(crate) effects: Vec<i64>,
}

/// Waits until all timers have ended.
pub(crate) async fn end(scene: &mut Scene) -> Result<Ends, Box<dyn Error>> {
    let client = connect(&scene.server.config()).await?;
    let count =
        async |sql: &str| Ok::<i64, Box<dyn Error>>(client.query_one(sql, &[]).await?.get(0));
    let gone = format!("DELETE FROM tickwheel.timer WHERE name LIKE '{OPEN}%'");
    let all = "SELECT count(*) FROM tickwheel.timer WHERE died IS NULL";
    let patience = Instant::now() + END;
    let mut left = i64::MAX;
    while left > 0 && Instant::now() < patience {
        client.batch_execute(&gone).await?;
        calm(scene).await?;
        left = count(all).await?;
    }
    // A transaction that is still open keeps the rows that it has changed from all nodes.
    let rest = "SELECT t::text FROM tickwheel.timer t WHERE died IS NULL LIMIT 30";
    let open = "SELECT a::text FROM pg_stat_activity a
        WHERE xact_start < now() - interval '10 s' AND backend_type = 'client backend'";
    for (what, sql) in [("left", rest), ("open", open)] {
        for row in client.query(sql, &[]).await? {
            eprintln!("{what}: {}", row.get::<_, String>(0));
        }
    }
    let dead = format!(
        "SELECT count(*) FROM tickwheel.timer
        WHERE died IS NOT NULL AND reason <> '{REASON}' AND former NOT LIKE '{OPEN}%'"
    );
    let effects = client.query("SELECT number FROM effect", &[]).await?;
    Ok(Ends {
        left,
        innocent_dead: count(&dead).await?,
        effects: effects.iter().map(|row| row.get(0)).collect(),
    })
}
