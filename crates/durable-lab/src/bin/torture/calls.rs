//! Calls by Rust, by SQL, and inside of transactions, and what they were answered.

use crate::book::{Book, Written};
use crate::clock::server_now;
use crate::node::{Deed, now, parse, payload};
use crate::server::{config, connect};
use crate::{LEASE, NAMESPACE};
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Cancelled, Durable, Entry, Scheduled, StoreTime, Touched, When};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel};

/// How many keys each caller has, of its own: so it knows which timer a key has.
const KEYS: usize = 40;

/// How far away timers are, at most.
const FAR: i64 = 12_000_000;

/// How often a transaction is tried that another one has made fail.
const TRIES: usize = 5;

/// How long a transaction may have the row of a timer that runs.
const LOCKED: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 5);

/// How long a caller waits after a call that was not answered.
const UNANSWERED: Duration = Duration::from_millis(500);

pub(crate) struct Caller {
    number: usize,
    node: Durable<Postgres>,
    server: Arc<AtomicU16>,
    client: Option<Client>,
    book: Arc<Book>,
    /// The last timer of each key.
    last: HashMap<usize, usize>,
    /// How often a key was given up after a call that was not answered: that may take effect later.
    given_up: HashMap<usize, usize>,
}

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// By what a call goes.
#[derive(Clone, Copy, Debug)]
enum By {
    Rust,
    Sql,
    /// A transaction whose snapshot may be older than others' changes, and that may roll back.
    Transaction(IsolationLevel, bool),
}

enum Call {
    Schedule(New),
    Cancel,
    Touch(When),
}

/// What is scheduled.
struct New {
    when: When,
    payload: String,
    tag: String,
    /// Only by Rust.
    mode: Mode,
}

#[derive(PartialEq)]
enum Mode {
    Replace,
    Keep,
    Debounce,
}

impl New {
    fn entry(&self, name: &str) -> Entry {
        let entry = Entry::keyed(name, self.when, self.payload.as_str()).tag(&self.tag);
        match self.mode {
            Mode::Replace => entry,
            Mode::Keep => entry.keep_existing(),
            Mode::Debounce => entry.debounce(Duration::from_secs(5)),
        }
    }
}

/// What a call was answered.
#[derive(Debug)]
enum Told {
    New,
    Replaced,
    Kept,
    /// The number of the timer that was cancelled, where the call tells.
    Cancelled(Option<usize>),
    Running,
    Unknown,
    Moved,
}

impl Caller {
    pub(crate) fn new(
        number: usize,
        node: &Durable<Postgres>,
        server: &Arc<AtomicU16>,
        book: &Arc<Book>,
    ) -> Self {
        Caller {
            number,
            node: node.clone(),
            server: Arc::clone(server),
            client: None,
            book: Arc::clone(book),
            last: HashMap::new(),
            given_up: HashMap::new(),
        }
    }

    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let key = fastrand::usize(..KEYS);
            match (self.last.get(&key).copied(), fastrand::u8(..10)) {
                (None, _) | (_, 0..=5) => self.schedule(key).await,
                (Some(last), 6 | 7) => self.cancel(key, last).await,
                (Some(last), _) => self.touch(key, last).await,
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..150))).await;
        }
    }

    fn name(&self, key: usize) -> String {
        let given_up = self.given_up.get(&key).copied().unwrap_or_default();
        format!("{} {key} {given_up}", self.number)
    }

    /// Notes that a call was not answered, and waits as a client does.
    async fn failed(&mut self, key: usize) {
        tokio::time::sleep(UNANSWERED).await;
        self.client = None;
        self.last.remove(&key);
        *self.given_up.entry(key).or_default() += 1;
    }

    async fn schedule(&mut self, key: usize) {
        let by = by();
        let when = when();
        let deed = deed();
        let mode = match fastrand::u8(..20) {
            0 => Mode::Keep,
            1 => Mode::Debounce, // It may end before that time.
            _ => Mode::Replace,
        };
        let number = self.book.add(Written {
            key: self.name(key),
            deed,
            due: due(when).filter(|_| mode != Mode::Debounce),
            ..Written::default()
        });
        let new = New {
            when,
            payload: payload(number, deed),
            tag: format!("tag {}", self.number % 4),
            mode,
        };
        let told = self.call(by, key, Call::Schedule(new)).await;
        let at = now();
        let former = self.last.get(&key).copied();
        match told {
            Ok(None | Some(Told::Kept)) => {
                // There is no such timer.
                self.book.note(number, |it| it.cancelled = Some(0));
                return;
            }
            Ok(Some(_)) => {
                self.book.note(number, |it| it.answered = Some(at));
                self.last.insert(key, number);
            }
            Err(_) => self.failed(key).await,
        }
        if let Some(former) = former {
            self.book.note(former, |it| it.may_be_gone = true);
        }
    }

    async fn cancel(&mut self, key: usize, last: usize) {
        let told = self.call(by(), key, Call::Cancel).await;
        let at = now();
        match told {
            Ok(Some(Told::Cancelled(which))) => {
                if which.is_some_and(|which| which != last) {
                    self.book.count("cancelled another timer");
                }
                self.book.note(last, |it| it.cancelled = Some(at));
                self.last.remove(&key);
            }
            Ok(Some(Told::Running)) => self.book.note(last, |it| it.runs = true),
            // It has run, or the table was emptied; otherwise it is found to be lost.
            Ok(Some(_)) => drop(self.last.remove(&key)),
            Ok(None) => {}
            Err(_) => {
                self.book.note(last, |it| it.may_be_gone = true);
                self.failed(key).await;
            }
        }
    }

    async fn touch(&mut self, key: usize, last: usize) {
        self.book.note(last, |it| it.due = None);
        if self.call(by(), key, Call::Touch(when())).await.is_err() {
            self.client = None;
            tokio::time::sleep(UNANSWERED).await;
        }
    }

    /// Makes a call, and counts its answer; `None` if it was rolled back.
    async fn call(&mut self, by: By, key: usize, call: Call) -> Answer<Option<Told>> {
        let told = match by {
            By::Rust => by_rust(&self.node, &self.name(key), &call).await.map(Some),
            _ => self.on_client(by, key, &call).await,
        };
        let what = match &told {
            Ok(None) => "rolled back".to_owned(),
            Ok(Some(Told::Cancelled(_))) => "cancelled".to_owned(),
            Ok(Some(told)) => format!("{told:?}").to_lowercase(),
            Err(error) => {
                let code = error.downcast_ref::<tokio_postgres::Error>();
                let code = code.and_then(|error| error.code());
                let code = code.map_or_else(|| "lost".to_owned(), |code| code.code().to_owned());
                format!("failed: {code}")
            }
        };
        let by = match by {
            By::Rust => "rust",
            By::Sql => "sql",
            By::Transaction(..) => "in",
        };
        self.book.count(format!("{by} {what}"));
        told
    }

    async fn on_client(&mut self, by: By, key: usize, call: &Call) -> Answer<Option<Told>> {
        let name = self.name(key);
        let mut client = match self.client.take() {
            Some(client) => client,
            None => connect(&config(self.server.load(Ordering::Relaxed))).await?,
        };
        let told = match by {
            By::Transaction(level, rolls_back) => {
                let mut told = None;
                for _ in 0..TRIES {
                    let how = (level, rolls_back);
                    told = in_transaction(&self.node, &mut client, how, &name, call).await?;
                    if told.is_some() || rolls_back {
                        break;
                    }
                    self.book.count("in again");
                }
                told
            }
            _ => Some(by_sql(&client, &name, call).await?),
        };
        self.client = Some(client);
        Ok(told)
    }
}

fn by() -> By {
    let level = match fastrand::u8(..3) {
        0 => IsolationLevel::ReadCommitted,
        1 => IsolationLevel::RepeatableRead,
        _ => IsolationLevel::Serializable,
    };
    match fastrand::u8(..10) {
        0..=4 => By::Rust,
        5..=7 => By::Sql,
        _ => By::Transaction(level, fastrand::u8(..4) == 0),
    }
}

fn when() -> When {
    let delay = match fastrand::u8(..4) {
        0 => 0,
        1 => fastrand::i64(0..300_000),
        _ => fastrand::i64(0..FAR),
    };
    match fastrand::bool() {
        true => When::After(Duration::from_micros(delay.unsigned_abs())),
        false => When::At(StoreTime::from_micros(server_now() + delay).into()),
    }
}

/// Returns the earliest due time, where it is known by the server's clock.
fn due(when: When) -> Option<i64> {
    match when {
        When::At(at) => Some(StoreTime::from(at).as_micros()),
        _ => None,
    }
}

fn deed() -> Deed {
    match fastrand::u8(..100) {
        0..=4 => Deed::Fail,
        5..=7 => Deed::Panic,
        8..=10 => Deed::Slow,
        11..=16 => Deed::Effect,
        17..=22 => Deed::SqlEffect,
        23..=25 => Deed::Again,
        26 => Deed::Die,
        _ => Deed::Done,
    }
}

async fn by_rust(node: &Durable<Postgres>, name: &str, call: &Call) -> Answer<Told> {
    Ok(match call {
        Call::Schedule(new) => node.schedule(new.entry(name)).await?.into(),
        Call::Cancel => node.cancel(name).await?.into(),
        Call::Touch(when) => node.touch(name, *when).await?.into(),
    })
}

async fn by_sql(client: &Client, name: &str, call: &Call) -> Answer<Told> {
    let micros = |when| due(when).unwrap_or_else(|| server_now() + fastrand::i64(0..FAR));
    let row = match call {
        Call::Schedule(new) => {
            let sql = "SELECT tickwheel.schedule($1, $2,
                'epoch'::timestamptz + $3::bigint * interval '1 microsecond', $4, $5)::text";
            let payload = new.payload.as_bytes();
            let due = micros(new.when);
            client
                .query_one(sql, &[&NAMESPACE, &name, &due, &payload, &new.tag])
                .await?
        }
        Call::Cancel => {
            let sql = "SELECT tickwheel.cancel($1, $2)";
            client.query_one(sql, &[&NAMESPACE, &name]).await?
        }
        Call::Touch(when) => {
            let sql = "SELECT tickwheel.touch($1, $2,
                'epoch'::timestamptz + $3::bigint * interval '1 microsecond')";
            let due = micros(*when);
            client.query_one(sql, &[&NAMESPACE, &name, &due]).await?
        }
    };
    Ok(match row.get::<_, &str>(0) {
        "false" => Told::New,
        "true" => Told::Replaced,
        "cancelled" => Told::Cancelled(None),
        "running" => Told::Running,
        "moved" => Told::Moved,
        _ => Told::Unknown,
    })
}

/// Makes a call in a transaction, and tells what was committed: where the call failed, nothing was.
async fn in_transaction(
    node: &Durable<Postgres>,
    client: &mut Client,
    (level, rolls_back): (IsolationLevel, bool),
    name: &str,
    call: &Call,
) -> Answer<Option<Told>> {
    let begin = client.build_transaction().isolation_level(level);
    let Ok(transaction) = begin.start().await else {
        return Ok(None);
    };
    let told = async {
        transaction.batch_execute("SELECT 1").await?;
        sometimes_wait(LEASE).await;
        let told: Told = match call {
            _ if fastrand::bool() => by_sql(transaction.client(), name, call).await?,
            Call::Schedule(new) => {
                let entry = new.entry(name);
                node.schedule_in(&transaction, entry).await?.into()
            }
            Call::Cancel => node.cancel_in(&transaction, name).await?.into(),
            Call::Touch(when) => node.touch_in(&transaction, name, *when).await?.into(),
        };
        sometimes_wait(LOCKED).await;
        Answer::Ok(told)
    };
    let told = told.await.ok().filter(|_| !rolls_back);
    if told.is_none() {
        let _ = transaction.rollback().await; // It is lost otherwise.
        return Ok(None);
    }
    match transaction.commit().await {
        Ok(()) => Ok(told),
        Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Has a snapshot, or a lock, grow old.
async fn sometimes_wait(longest: Duration) {
    if fastrand::u8(..10) == 0 {
        tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
    }
}

impl From<Scheduled> for Told {
    fn from(scheduled: Scheduled) -> Self {
        match scheduled {
            Scheduled::New => Told::New,
            Scheduled::Replaced => Told::Replaced,
            _ => Told::Kept,
        }
    }
}

impl From<Cancelled> for Told {
    fn from(cancelled: Cancelled) -> Self {
        match cancelled {
            Cancelled::Cancelled(payload) => {
                Told::Cancelled(parse(&payload).map(|(number, _)| number))
            }
            Cancelled::Running => Told::Running,
            _ => Told::Unknown,
        }
    }
}

impl From<Touched> for Told {
    fn from(touched: Touched) -> Self {
        match touched {
            Touched::Moved => Told::Moved,
            Touched::Running => Told::Running,
            _ => Told::Unknown,
        }
    }
}
