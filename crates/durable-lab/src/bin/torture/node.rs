//! A node: a process of its own, whose handler writes down what it gets, in the ledger.

use crate::server::connect;
use crate::{LEASE, NAMESPACE, server};
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Outcome, When};
use tokio_postgres::Config;

/// How many timers a node has at once. Deaths that are refused are more.
pub(crate) const PLACES: u32 = 500;

/// How long a handler waits for what it asks the server.
const PATIENCE: Duration = Duration::from_secs(6);

/// The key of the timer that keeps the driver's own node from running any other.
pub(crate) const DRIVER: &str = "x driver";

/// What the reason of a death says that was asked for.
pub(crate) const REASON: &str = "as it should";

/// What a handler does with a timer, as the payload says behind the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deed {
    #[default]
    Done,
    /// Fails at first, by an answer or by a panic.
    Fail,
    Panic,
    /// Runs for up to six seconds: longer than a lease.
    Slow,
    /// Acknowledges in a transaction with an effect, by Rust or by SQL.
    Effect,
    SqlEffect,
    /// Is due again, once.
    Again,
    Die,
    /// Ends the process.
    Abort,
}

const DEEDS: [(&str, Deed); 9] = [
    ("done", Deed::Done),
    ("fail", Deed::Fail),
    ("panic", Deed::Panic),
    ("slow", Deed::Slow),
    ("effect", Deed::Effect),
    ("sqleffect", Deed::SqlEffect),
    ("again", Deed::Again),
    ("die", Deed::Die),
    ("abort", Deed::Abort),
];

impl FromStr for Deed {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = DEEDS.iter().find(|(known, _)| *known == name);
        known.map(|(_, deed)| *deed).ok_or_else(|| name.to_owned())
    }
}

/// Returns the payload of a timer.
pub(crate) fn payload(number: usize, deed: Deed) -> String {
    let name = DEEDS.iter().find(|(_, known)| *known == deed);
    format!("{number} {}", name.map_or("done", |(name, _)| *name))
}

/// Reads a payload: the timer's number, and its deed.
pub(crate) fn parse(payload: &[u8]) -> Option<(usize, Deed)> {
    let (number, deed) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
    Some((number.parse().ok()?, deed.parse().ok()?))
}

/// Runs until its standard input ends; then drains. `process` is its number in the ledger.
pub(crate) async fn run(port: u16, ledger: &Path, process: usize) -> Result<(), Box<dyn Error>> {
    std::panic::set_hook(Box::new(|_| {}));
    let file = File::options().append(true).open(ledger)?;
    let ledger = Ledger {
        file: Arc::new(file),
        process,
    };
    tokio::spawn(ledger.clone().note_stalls());
    let timer = Timer::builder().start()?;
    let config = server::config(port);
    let node = loop {
        let ledger = ledger.clone();
        let effects = config.clone();
        let node = Durable::postgres(config.clone()).namespace(NAMESPACE);
        let node = node.lease(LEASE).max_in_flight(PLACES);
        let node = node.retry_after(Duration::from_millis(200));
        let handler = move |due: Due| handle(due, ledger.clone(), effects.clone());
        match node.start(&timer, handler).await {
            Ok(node) => break node,
            Err(_) => tokio::time::sleep(Duration::from_millis(300)).await, // It is down.
        }
    };
    let input = || io::copy(&mut io::stdin(), &mut io::sink());
    let _ = tokio::task::spawn_blocking(input).await?; // It ends, however.
    node.drain().await;
    Ok(())
}

/// What all processes append to, each line by one call: no death of a process leaves half of one.
#[derive(Clone)]
struct Ledger {
    file: Arc<File>,
    process: usize,
}

impl Ledger {
    fn write(&self, line: std::fmt::Arguments<'_>) {
        let line = format!("{} {} {line}\n", self.process, now());
        (&*self.file)
            .write_all(line.as_bytes())
            .expect("a ledger that can be written");
    }

    /// Writes down when this process did not run, although nobody had stopped it.
    async fn note_stalls(self) {
        loop {
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let stall = begun.elapsed();
            if stall > LEASE / 4 {
                self.write(format_args!("S {}", stall.as_micros()));
            }
        }
    }
}

/// Handles a timer as its payload says. Its name keeps its runs together.
async fn handle(due: Due, ledger: Ledger, effects: Config) -> Outcome {
    let Some((number, deed)) = parse(&due.payload) else {
        // The driver's, which waits for it.
        return Outcome::RetryAt(When::After(Duration::from_millis(100)), String::new());
    };
    let at = due.at.as_micros();
    ledger.write(format_args!(
        "B {number} {at} {} {}",
        due.attempt, due.token
    ));
    let is_first = due.attempt == 1;
    let outcome = match deed {
        Deed::Abort => std::process::abort(),
        Deed::Fail if is_first => Outcome::Failed("at first".into()),
        Deed::Panic if is_first => {
            ledger.write(format_args!("E {number} panic {}", due.token));
            panic!("at first");
        }
        Deed::Slow => {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..6_000))).await;
            Outcome::Done
        }
        Deed::Effect | Deed::SqlEffect => {
            let effect = effect(&due, (number, deed), &effects, &ledger);
            match tokio::time::timeout(PATIENCE, effect).await {
                Ok(Ok(())) => Outcome::Done,
                Ok(Err(error)) => Outcome::Failed(error.to_string()),
                Err(_) => Outcome::Failed("its answer is lost".into()),
            }
        }
        Deed::Again => {
            let when = When::After(Duration::from_millis(fastrand::u64(..500)));
            Outcome::Again(when, payload(number, Deed::Done).into())
        }
        Deed::Die => Outcome::Dead(REASON.into()),
        _ => Outcome::Done,
    };
    let end = match &outcome {
        Outcome::Done => "done",
        Outcome::Dead(_) => "dead",
        Outcome::Again(..) => "again",
        _ => "failed",
    };
    ledger.write(format_args!("E {number} {end} {}", due.token));
    outcome
}

/// Writes an effect down in a table that takes it twice, in one transaction with its end.
async fn effect(
    due: &Due,
    (number, deed): (usize, Deed),
    config: &Config,
    ledger: &Ledger,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut config = config.clone();
    // Where an answer is swallowed, nobody else ends the transaction, and its row is kept.
    let idle = PATIENCE.as_millis();
    config.options(format!("-c idle_in_transaction_session_timeout={idle}"));
    let mut client = connect(&config).await?;
    let transaction = client.transaction().await?;
    let insert = "INSERT INTO effect (number) VALUES ($1)";
    transaction.execute(insert, &[&(number as i64)]).await?;
    // Its claim may run out meanwhile, where the node is suspended.
    if fastrand::u8(..5) == 0 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..3_000))).await;
    }
    if deed == Deed::Effect {
        due.ack_in(&transaction).await?;
    } else {
        let ack = "SELECT tickwheel.ack($1, $2, $3)";
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&NAMESPACE, &due.name, &due.token];
        transaction.execute(ack, &params).await?;
    }
    // From the commit on another handler may have the key, before this one knows.
    ledger.write(format_args!("C {number} {}", due.token));
    transaction.commit().await?;
    Ok(())
}

/// This machine's clock, in microseconds.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_micros() as i64
}
