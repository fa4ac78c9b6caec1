//! What the driver schedules and cancels, and what it was answered.

use crate::NAMESPACE;
use crate::clock::server_now;
use crate::node::{POISON, now};
use crate::server::{Server, connect};
use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::time::{Duration, Instant};
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::store::{KeyName, NewRow, NodeId, Place, Store};
use tickwheel_durable::{Cancelled, Durable, Error, OpenStore, StoreTime};
use tokio_postgres::Config;

/// A timer, as far as the driver knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// When its schedule was answered, by this machine's clock; what was not may exist or not.
    pub(crate) answered: Option<i64>,
    pub(crate) cancel: Cancel,
    /// Whether it is one of very many that are due at the same moment.
    pub(crate) mass: bool,
}

/// What the driver has done.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) written: HashMap<u64, Written>,
    /// When it was silent no more, and how many nodes rested before that, on both primaries.
    pub(crate) silences: Vec<(i64, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    None,
    Cancelled,
    /// Asked for, and not answered; or the answer was that it runs: then it may have fired last.
    Uncertain,
}

pub(crate) struct Load {
    stores: [Postgres; 2],
    configs: [Config; 2],
    /// Which primary serves each slot; `None` while it moves.
    map: Vec<Option<usize>>,
    /// What waits for its slot.
    rows: Vec<NewRow>,
    rate: u64,
    number: u64,
    told: Told,
    /// What will be cancelled when.
    cancels: BTreeMap<(i64, u64), KeyName>,
}

/// A batch each 20 ms.
const BEAT: Duration = Duration::from_millis(20);

/// How far away timers are, at most.
const FAR: i64 = 15_000_000;

/// For how long it schedules, and then does not: until the last timer has ended, nodes have seen
/// that, and some time has passed.
const LOUD: Duration = Duration::from_secs(40);
const SILENT: Duration = Duration::from_secs(32);

impl Load {
    /// Opens the primaries, on which the namespace is already.
    pub(crate) async fn open(servers: &[Server; 2], rate: u64) -> Result<Self, Box<dyn StdError>> {
        let store = |server: &Server| {
            Durable::postgres(server.config()).namespace(NAMESPACE).store().open()
        };
        let stores = [store(&servers[0]).await?, store(&servers[1]).await?];
        let (told, cancels) = (Told::default(), BTreeMap::new());
        let configs = servers.each_ref().map(Server::config);
        let map = vec![None; stores[0].slots() as usize];
        Ok(Load { stores, map, rows: Vec::new(), rate, number: 0, told, cancels, configs })
    }

    /// Looks which primary serves which slot; what a primary that is down serves is left alone.
    async fn look(&mut self) {
        for (primary, config) in self.configs.iter().enumerate() {
            let Ok(served) = served(config).await else { continue };
            for (slot, served) in self.map.iter_mut().zip(served) {
                match served {
                    true => *slot = Some(primary),
                    false if *slot == Some(primary) => *slot = None,
                    false => {}
                }
            }
        }
    }

    pub(crate) async fn run(mut self, time: Duration) -> Result<Told, Error> {
        let begun = Instant::now();
        let mut silence = begun + LOUD;
        while begun.elapsed() < time {
            if Instant::now() > silence && begun.elapsed() + SILENT < time {
                self.be_silent().await;
                silence = Instant::now() + LOUD;
            }
            self.schedule();
            self.beat().await;
        }
        Ok(self.told)
    }

    /// Schedules what waits, cancels, and waits for the next beat.
    async fn beat(&mut self) {
        let beat = Instant::now();
        self.flush().await;
        self.cancel().await;
        // A server that was down is not made up for.
        tokio::time::sleep(BEAT.saturating_sub(beat.elapsed())).await;
    }

    /// Schedules nothing for so long that nodes rest; half of the times one timer that wakes them
    /// by itself shortly before the end.
    async fn be_silent(&mut self) {
        let end = Instant::now() + SILENT;
        if fastrand::bool() {
            self.add(server_now() + SILENT.as_micros() as i64, false);
        }
        let mut rested = 0;
        while Instant::now() < end {
            self.beat().await;
            if end - Instant::now() > SILENT / 2 || fastrand::u8(..50) > 0 {
                continue;
            }
            let mut both = 0;
            for config in &self.configs {
                both += resting(config).await.unwrap_or(0); // It may be down.
            }
            rested = rested.max(both);
        }
        self.told.silences.push((now(), rested));
    }

    fn schedule(&mut self) {
        let mass = fastrand::u32(..2_000) == 0; // Many for the same moment.
        let count = if mass { 5_000 } else { self.rate * BEAT.as_millis() as u64 / 1_000 };
        let moment = server_now() + 3_000_000;
        for _ in 0..count.max(1) {
            let delay = match fastrand::u8(..10) {
                0 => 0,
                1..=3 => fastrand::i64(0..1_000_000),
                _ => fastrand::i64(0..FAR),
            };
            self.add(if mass { moment } else { server_now() + delay }, mass);
        }
    }

    fn add(&mut self, due: i64, mass: bool) {
        self.number += 1;
        let number = self.number;
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let slot = (hash % self.map.len() as u64) as u32;
        let place = Place { due: StoreTime::from_micros(due), slot, id: fastrand::i64(1..) };
        let key = number.to_string();
        if fastrand::u8(..6) == 0 {
            let at = fastrand::i64(server_now()..=due.max(server_now()) + 100_000);
            self.cancels.insert((at, number), KeyName { slot, key: key.clone() });
        }
        self.rows.push(NewRow {
            place,
            key: Some(key),
            payload: vec![7; 100],
            ..NewRow::default()
        });
        let written = Written { answered: None, cancel: Cancel::None, mass };
        self.told.written.insert(number, written);
    }

    /// Schedules what has a primary now.
    async fn flush(&mut self) {
        let mut open = [Vec::new(), Vec::new()];
        for row in std::mem::take(&mut self.rows) {
            match self.map[row.place.slot as usize] {
                Some(primary) => open[primary].push(row),
                None => self.rows.push(row),
            }
        }
        for (store, rows) in self.stores.iter().zip(open) {
            let placed = |row: &NewRow| {
                let place = Place { slot: row.place.slot + store.slot(0), ..row.place };
                NewRow { place, ..row.clone() }
            };
            for batch in rows.chunks(1_000) {
                let answer = store.schedule(NodeId(0), batch.iter().map(placed).collect()).await;
                if matches!(answer, Err(Error::Moved)) {
                    self.rows.extend_from_slice(batch);
                }
                // What was refused may be found by its key all the same: it is not certain.
                let answered = answer.is_ok().then(now);
                let answers = batch.iter().zip(answer.unwrap_or_default());
                for (row, _) in answers.filter(|(_, answer)| answer.is_some()) {
                    let number = row.key.as_ref().and_then(|key| key.parse().ok()).unwrap_or(0);
                    self.told
                        .written
                        .entry(number)
                        .and_modify(|written| written.answered = answered);
                }
            }
        }
        if !self.rows.is_empty() {
            self.look().await;
        }
    }

    async fn cancel(&mut self) {
        let later = self.cancels.split_off(&(server_now(), 0));
        let mut open = [Vec::new(), Vec::new()];
        for ((at, number), name) in std::mem::replace(&mut self.cancels, later) {
            match self.map[name.slot as usize] {
                Some(primary) => open[primary].push((number, name)),
                None => drop(self.cancels.insert((at + BEAT.as_micros() as i64, number), name)),
            }
        }
        for (store, names) in self.stores.iter().zip(open) {
            for batch in names.chunks(1_000) {
                let placed = |(_, name): &(u64, KeyName)| KeyName {
                    slot: name.slot + store.slot(0),
                    key: name.key.clone(),
                };
                let answers = store.cancel(batch.iter().map(placed).collect()).await;
                for (index, (number, name)) in batch.iter().enumerate() {
                    let cancel = match &answers {
                        Err(Error::Moved) => {
                            self.cancels.insert((server_now(), *number), name.clone());
                            continue;
                        }
                        Err(_) => Cancel::Uncertain,
                        Ok(answers) if matches!(answers[index], Some(Cancelled::Cancelled(_))) => {
                            Cancel::Cancelled
                        }
                        Ok(answers) if answers[index] == Some(Cancelled::Running) => {
                            Cancel::Uncertain
                        }
                        Ok(_) => continue,
                    };
                    self.told.written.entry(*number).and_modify(|written| written.cancel = cancel);
                }
            }
        }
    }
}

/// Returns how many timers have not ended, but for poison.
pub(crate) async fn rest(servers: &[Server; 2]) -> Result<i64, tokio_postgres::Error> {
    count(servers, "timer").await
}

/// Returns how many timers were given up, but for poison.
pub(crate) async fn innocent_dead(servers: &[Server; 2]) -> Result<i64, tokio_postgres::Error> {
    count(servers, "dead").await
}

async fn count(servers: &[Server; 2], table: &str) -> Result<i64, tokio_postgres::Error> {
    let mut all = 0;
    let sql = format!("SELECT count(*) FROM tickwheel.{table} WHERE NOT starts_with(key, $1)");
    for server in servers {
        let client = connect(&server.config()).await?;
        all += client.query_one(&sql, &[&POISON]).await?.get::<_, i64>(0);
    }
    Ok(all)
}

/// Removes what would keep nodes from resting for minutes, and returns how many rest.
async fn resting(config: &Config) -> Result<i64, tokio_postgres::Error> {
    let client = connect(config).await?;
    let gone = "DELETE FROM tickwheel.timer WHERE starts_with(key, $1)";
    client.execute(gone, &[&POISON]).await?;
    let sql = "SELECT count(*) FROM tickwheel.member WHERE rests";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Returns for each slot of the one namespace whether a primary serves it.
async fn served(config: &Config) -> Result<Vec<bool>, tokio_postgres::Error> {
    let client = connect(config).await?;
    let rows = client.query("SELECT served = 0 FROM tickwheel.slot ORDER BY slot", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
