//! What the driver schedules and cancels, and what it was answered.

use crate::NAMESPACE;
use crate::clock::server_now;
use crate::node::{Fire, POISON, now};
use crate::server::{Server, connect};
use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::time::{Duration, Instant};
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::store::{KeyName, NewRow, NodeId, Place, Store};
use tickwheel_durable::{Cancelled, Durable, Error, OpenStore, StoreTime};
use tokio_postgres::Config;

/// A timer, as far as the driver knows.
#[derive(Default)]
pub(crate) struct Written {
    /// When its schedule was answered, by this machine's clock; what was not may exist or not.
    pub(crate) answered: Option<i64>,
    pub(crate) cancel: Cancel,
    /// Whether it is one of very many that are due at the same moment.
    pub(crate) mass: bool,
    /// Until when somebody's transaction had it locked, by this machine's clock.
    pub(crate) locked: Option<i64>,
    /// When it fired.
    pub(crate) fires: Vec<Fire>,
}

/// What the driver has done.
#[derive(Default)]
pub(crate) struct Told {
    /// All timers, by their numbers.
    pub(crate) written: Vec<Written>,
    /// When it was silent no more, and how many nodes rested before that, on both primaries.
    pub(crate) silences: Vec<(i64, i64)>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Cancel {
    #[default]
    None,
    Cancelled,
    /// Asked for, and not answered; or the answer was that it runs: then it may have fired last.
    Uncertain,
}

pub(crate) struct Load {
    stores: [Postgres; 2],
    configs: [Config; 2],
    /// What is to be scheduled, and when that is due.
    waiting: Vec<(usize, i64)>,
    rate: u64,
    told: Told,
    /// When what will be cancelled.
    cancels: BTreeSet<(i64, usize)>,
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
            Durable::postgres(server.config())
                .namespace(NAMESPACE)
                .store()
                .open()
        };
        let stores = [store(&servers[0]).await?, store(&servers[1]).await?];
        let configs = servers.each_ref().map(Server::config);
        let (waiting, told, cancels) = Default::default();
        Ok(Load {
            stores,
            configs,
            waiting,
            rate,
            told,
            cancels,
        })
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
        let count = if mass {
            5_000
        } else {
            self.rate * BEAT.as_millis() as u64 / 1_000
        };
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
        let number = self.told.written.len();
        if fastrand::u8(..6) == 0 {
            let at = fastrand::i64(server_now()..=due.max(server_now()) + 100_000);
            self.cancels.insert((at, number));
        }
        self.waiting.push((number, due));
        self.told.written.push(Written {
            mass,
            ..Written::default()
        });
    }

    /// Schedules what waits, on the primary of each.
    async fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for (primary, store) in self.stores.iter().enumerate() {
            let own = waiting
                .iter()
                .filter(|(number, _)| primary_of(*number) == primary);
            let own: Vec<_> = own.copied().collect();
            let row = |&(number, due): &(usize, i64)| {
                let (due, slot) = (StoreTime::from_micros(due), store.slot(hash(number)));
                let place = Place {
                    due,
                    slot,
                    id: fastrand::i64(1..),
                };
                let (key, payload) = (Some(number.to_string()), vec![7; 100]);
                let tag = Some((number % 1_000).to_string());
                NewRow {
                    place,
                    key,
                    tag,
                    payload,
                    ..NewRow::default()
                }
            };
            for batch in own.chunks(1_000) {
                // What has no answer may have been committed.
                let answers = store
                    .schedule(NodeId(0), batch.iter().map(row).collect())
                    .await;
                let answered = Some(now());
                for (&(number, _), answer) in batch.iter().zip(answers.unwrap_or_default()) {
                    // What was refused may be found by its key all the same.
                    let answered = answered.filter(|_| answer.is_some());
                    self.told.written[number].answered = answered;
                }
            }
        }
    }

    async fn cancel(&mut self) {
        let later = self.cancels.split_off(&(server_now(), 0));
        let due = std::mem::replace(&mut self.cancels, later);
        for (primary, store) in self.stores.iter().enumerate() {
            let own = due.iter().map(|(_, number)| *number);
            let own: Vec<_> = own
                .filter(|number| primary_of(*number) == primary)
                .collect();
            let name = |number: &usize| KeyName {
                slot: store.slot(hash(*number)),
                key: number.to_string(),
            };
            for batch in own.chunks(1_000) {
                let answers = store.cancel(batch.iter().map(name).collect()).await;
                for (index, number) in batch.iter().enumerate() {
                    let cancel = &mut self.told.written[*number].cancel;
                    match answers.as_ref().map(|answers| &answers[index]) {
                        Ok(Some(Cancelled::Cancelled(_))) => *cancel = Cancel::Cancelled,
                        Ok(Some(Cancelled::Running)) | Err(_) => *cancel = Cancel::Uncertain,
                        Ok(_) => {}
                    }
                }
            }
        }
    }
}

/// Returns on which of the primaries a timer lies: by its number, which never changes.
fn primary_of(number: usize) -> usize {
    (hash(number) >> 10) as usize % 2 // The bits below say its slot.
}

/// Returns a hash of a timer's number, which says in which slot it lies.
fn hash(number: usize) -> u64 {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// Removes what would keep nodes from resting for minutes, and returns how many rest.
async fn resting(config: &Config) -> Result<i64, tokio_postgres::Error> {
    let client = connect(config).await?;
    let gone = "DELETE FROM tickwheel.timer WHERE starts_with(key, $1)";
    client.execute(gone, &[&POISON]).await?;
    // Since the silence began: who was killed at rest stays there for an hour.
    let sql = "SELECT count(*) FROM tickwheel.member
        WHERE rests AND lease_until > tickwheel.clock() + lease - $1";
    Ok(client
        .query_one(sql, &[&(SILENT.as_micros() as i64)])
        .await?
        .get(0))
}
