//! What befalls the nodes and the server, at random.

use crate::clock::Settings;
use crate::fleet::{Fleet, Mood};
use crate::node::{POISON, USER, now};
use crate::server::{Server, connect};
use crate::{LEASE, NAMESPACE};
use clap::ValueEnum;
use rustix::process::Signal;
use std::error::Error;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The server's: so that what it holds for the nodes can be seen at once.
pub(crate) const SETTINGS: &[&str] = &["max_connections=200"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Kill,
    /// By a handler that took its process along, as its ledger says.
    #[value(skip)]
    Abort,
    Stop,
    Crash,
    Swallow,
    Delay,
    /// A node's link carries so few bytes a second that its answers take long.
    Slow,
    Snapshot,
    /// Somebody's transaction has timers locked for long, and touches no others.
    Lock,
    /// A timer is scheduled that ends each process which runs it: its ledger says when.
    Poison,
    /// The load was silent for so long that nodes rested, and is no more.
    #[value(skip)]
    Wake,
    NodeAdded,
    NodeLeft,
    /// A node's time of day is wrong, by up to an hour.
    Skew,
    /// The server's clock leaps, by up to six seconds, ahead or back.
    Clock,
    /// The server takes no writes for a while.
    ReadOnly,
    /// Somebody deletes all slots.
    Truncate,
    /// The nodes are cut off, and given few connections for a while.
    Limit,
    /// Very many tags are paused, of which no timer has one.
    Pauses,
    /// Each node is restarted on another version's program, one after the other, and then back.
    Upgrade,
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
    /// looked, or nodes that have come share the slots, and a connection that swallows data was
    /// given up.
    pub(crate) fn aftermath(self) -> Duration {
        let lease = LEASE * 7 / 6;
        if self == Kind::Swallow {
            lease + Duration::from_secs(5)
        } else {
            lease
        }
    }

    /// Returns whether it may make timers late that it does not name.
    pub(crate) fn disturbs(self) -> bool {
        !matches!(self, Kind::Lock | Kind::Poison | Kind::Pauses)
    }
}

/// How long before a fault a timer may have been due, and after its consequences, and yet be
/// touched by it: on a busy machine it may not be done by then.
pub(crate) const SHADOW: Duration = Duration::from_secs(1);

/// How long nothing befalls, and nothing is touched by what has befallen.
const CALM: Duration = Duration::from_secs(2);

/// How many timers somebody's transaction has locked, and for how long.
const LOCKED: i64 = 100;
const HELD: Duration = Duration::from_secs(12);

/// How long timers may take to end when no more befalls: a bound that only a bug exceeds.
const END: Duration = Duration::from_secs(60);

/// Where things befall, and what happened.
pub(crate) struct Scene<'a> {
    pub(crate) servers: &'a [Server; 2],
    pub(crate) fleet: Fleet,
    /// Another version's program.
    pub(crate) other: Option<&'a Path>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) settings: Settings,
    /// Which timers were locked until when, by this machine's clock.
    pub(crate) locked: Sender<(usize, i64)>,
}

/// Has things befall the scene for so long: only some, if it is said which.
pub(crate) async fn run(
    scene: &mut Scene<'_>,
    seconds: u64,
    only: &[Kind],
) -> Result<(), Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let pause = |kind: Kind| kind.aftermath() + SHADOW + CALM + SHADOW;
    tokio::time::sleep(pause(Kind::Kill)).await; // They join.
    while Instant::now() + pause(Kind::Kill) < end {
        let kind = choose(scene.fleet.len(), only);
        let (begun, from) = (Instant::now(), now());
        let in_flight = count(scene.servers, "timer", "claim <> 0").await?;
        befall(kind, scene).await?;
        scene.faults.push(Fault {
            kind,
            from,
            to: now(),
            in_flight,
        });
        eprintln!("{kind:?}: {} ms", begun.elapsed().as_millis());
        let pause = if kind.disturbs() { pause(kind) } else { CALM };
        let next = Instant::now() + pause;
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
        let in_flight = count(scene.servers, "timer", "claim <> 0").await?;
        scene.faults.push(Fault {
            kind: Kind::Abort,
            from,
            to: now(),
            in_flight,
        });
    }
    Ok(())
}

/// Waits until all timers have ended, and returns how many have not.
pub(crate) async fn end(scene: &mut Scene<'_>) -> Result<i64, Box<dyn Error>> {
    let patience = Instant::now() + END;
    loop {
        let rest = count(scene.servers, "timer", INNOCENT).await?;
        if rest == 0 || Instant::now() > patience {
            describe_rest(scene.servers).await?;
            return Ok(rest);
        }
        look(scene).await?;
    }
}

/// Says where timers are that have not ended: some of them.
async fn describe_rest(servers: &[Server; 2]) -> Result<(), tokio_postgres::Error> {
    let sql = format!(
        "SELECT format('%s, of slot %s, whose epoch is %s', t, slot, epoch)
        FROM tickwheel.timer t JOIN tickwheel.slot USING (slot) WHERE {INNOCENT} LIMIT 30"
    );
    for (primary, server) in servers.iter().enumerate() {
        for row in connect(&server.config()).await?.query(&sql, &[]).await? {
            eprintln!("left on {primary}: {}", row.get::<_, String>(0));
        }
    }
    Ok(())
}

fn choose(nodes: usize, only: &[Kind]) -> Kind {
    if let Some(kind) = fastrand::choice(only) {
        return *kind;
    }
    match fastrand::u8(..22) {
        0..=3 => Kind::Kill,
        4 | 5 => Kind::Stop,
        6 => Kind::Crash,
        7 => Kind::Swallow,
        8 => Kind::Delay,
        9 => Kind::Snapshot,
        10 if Fleet::can_skew() => Kind::Skew,
        10 | 11 => Kind::Clock,
        12 => Kind::Upgrade,
        13 => Kind::Slow,
        14 => Kind::Lock,
        15 => Kind::Poison,
        16 => Kind::ReadOnly,
        17 => Kind::Truncate,
        18 => Kind::Limit,
        19 => Kind::Pauses,
        _ if nodes > 3 => Kind::NodeLeft,
        _ => Kind::NodeAdded,
    }
}

async fn befall(kind: Kind, scene: &mut Scene<'_>) -> Result<(), Box<dyn Error>> {
    let Scene {
        servers,
        fleet,
        other,
        settings,
        locked,
        ..
    } = scene;
    let server = &servers[fastrand::usize(..2)];
    let which = fastrand::usize(..fleet.len());
    match kind {
        Kind::Kill => {
            fleet.kill(which)?;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..4_000))).await;
            fleet.revive()?;
        }
        Kind::Stop => {
            fleet.signal(which, Signal::STOP);
            tokio::time::sleep(longer_than_the_lease()).await;
            fleet.signal(which, Signal::CONT);
        }
        Kind::Crash => {
            tokio::task::block_in_place(|| server.crash())?;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..2_000))).await;
            tokio::task::block_in_place(|| server.go(SETTINGS))?;
        }
        Kind::Swallow => spoil(fleet, which, Mood::Swallow).await,
        Kind::Delay => spoil(fleet, which, Mood::Delay).await,
        Kind::Slow => spoil(fleet, which, Mood::Slow).await,
        Kind::Snapshot => {
            let holder = connect(&server.config()).await?;
            let hold =
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tickwheel.timer";
            holder.batch_execute(hold).await?;
            let held = Duration::from_secs(fastrand::u64(30..1_800));
            tokio::spawn(async move {
                tokio::time::sleep(held).await;
                drop(holder);
            });
        }
        Kind::Lock => lock(server, locked).await?,
        Kind::Poison => poison(server).await?,
        Kind::ReadOnly => take_no_writes(server).await?,
        Kind::Truncate => {
            connect(&server.config())
                .await?
                .batch_execute("TRUNCATE tickwheel.slot")
                .await?;
        }
        Kind::Limit => limit(server, 8 * fleet.len()).await?,
        Kind::Pauses => drop(
            connect(&server.config())
                .await?
                .execute(PAUSES, &[])
                .await?,
        ),
        Kind::Wake | Kind::Abort => {} // Not chosen.
        Kind::NodeAdded => fleet.add().await?,
        Kind::NodeLeft => drop(tokio::task::block_in_place(|| fleet.remove())?),
        Kind::Skew => {
            let skew = fastrand::i64(-3_600..3_600);
            tokio::task::block_in_place(|| fleet.restart(which, None, skew))?;
        }
        Kind::Clock => {
            settings
                .set(servers, fastrand::i64(-3_000_000..3_000_000))
                .await?
        }
        Kind::Upgrade => tokio::task::block_in_place(|| fleet.upgrade(*other))?,
    }
    Ok(())
}

/// Has a server take no writes for a while, also by connections that it has.
async fn take_no_writes(server: &Server) -> Result<(), Box<dyn Error>> {
    let client = connect(&server.config()).await?;
    for (read_only, pause) in [("on", longer_than_the_lease()), ("off", Duration::ZERO)] {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}");
        client.batch_execute(&set).await?;
        client.batch_execute("SELECT pg_reload_conf()").await?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Cuts the nodes off, and gives them fewer connections than so many for a while.
async fn limit(server: &Server, fewer: usize) -> Result<(), Box<dyn Error>> {
    let client = connect(&server.config()).await?;
    let few = fastrand::usize(1..fewer);
    client
        .batch_execute(&format!("ALTER ROLE {USER} CONNECTION LIMIT {few}"))
        .await?;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
    client.execute(cut, &[&USER]).await?;
    tokio::time::sleep(longer_than_the_lease()).await;
    client
        .batch_execute(&format!("ALTER ROLE {USER} CONNECTION LIMIT -1"))
        .await?;
    Ok(())
}

/// Pauses them for a minute, as 5,000 calls would.
const PAUSES: &str = "INSERT INTO tickwheel.pause (namespace, tag, until, moments)
    SELECT id, 'paused ' || n, tickwheel.clock() + 60000000, '{}'
    FROM tickwheel.namespace, generate_series(1, 5000) AS n";

fn longer_than_the_lease() -> Duration {
    LEASE.mul_f64(1.2 + fastrand::f64())
}

/// Spoils a node's link for a while. A connection with a hole is given up when its next answer does
/// not come.
async fn spoil(fleet: &Fleet, which: usize, mood: Mood) {
    fleet.set(which, mood);
    tokio::time::sleep(longer_than_the_lease()).await;
    fleet.set(which, Mood::Pass);
}

/// Locks timers that wait, and lets them go after a while.
async fn lock(server: &Server, locked: &Sender<(usize, i64)>) -> Result<(), Box<dyn Error>> {
    let (holder, locked) = (connect(&server.config()).await?, locked.clone());
    let sql = format!(
        "SELECT key::bigint FROM tickwheel.timer WHERE claim = 0 AND {INNOCENT}
        ORDER BY random() LIMIT $1 FOR UPDATE SKIP LOCKED"
    );
    holder.batch_execute("BEGIN").await?;
    let rows = holder.query(&sql, &[&LOCKED]).await?;
    let hold = move |until: i64| {
        for row in &rows {
            let _ = locked.send((row.get::<_, i64>(0) as usize, until));
        }
    };
    hold(i64::MAX); // If the run ends before.
    tokio::spawn(async move {
        tokio::time::sleep(HELD).await;
        let _ = holder.batch_execute("ROLLBACK").await; // The server may have crashed meanwhile.
        hold(now());
    });
    Ok(())
}

async fn poison(server: &Server) -> Result<(), Box<dyn Error>> {
    let key = format!("{POISON}{}", now());
    let sql = "SELECT tickwheel.schedule($1, $2, now(), '')";
    connect(&server.config())
        .await?
        .execute(sql, &[&NAMESPACE, &key])
        .await?;
    Ok(())
}

/// What the load has scheduled: its keys are numbers, and none is poison.
pub(crate) const INNOCENT: &str = "key !~ '[^0-9]'";

/// Counts the rows of a table on both primaries of which that is so.
pub(crate) async fn count(
    servers: &[Server; 2],
    table: &str,
    is_so: &str,
) -> Result<i64, tokio_postgres::Error> {
    let (sql, mut count) = (
        format!("SELECT count(*) FROM tickwheel.{table} WHERE {is_so}"),
        0,
    );
    for server in servers {
        count += connect(&server.config())
            .await?
            .query_one(&sql, &[])
            .await?
            .get::<_, i64>(0);
    }
    Ok(count)
}
