//! What the driver schedules and cancels, and what it was answered.

use crate::NAMESPACE;
use crate::clock::now;
use crate::server::Server;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::store::{KeyName, NewRow, NodeId, Place, Store};
use tickwheel_durable::{Cancelled, Durable, Error, OpenStore, StoreTime};
use tokio_postgres::NoTls;

/// A timer, as far as the driver knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Whether the schedule was answered; what was not may exist or not.
    pub(crate) certain: bool,
    pub(crate) cancel: Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancel {
    None,
    Cancelled,
    /// Asked for, and not answered.
    Uncertain,
}

pub(crate) struct Load {
    store: Postgres,
    rate: u64,
    number: u64,
    written: HashMap<u64, Written>,
    /// What will be cancelled when.
    cancels: BTreeMap<(i64, u64), KeyName>,
}

/// A batch each 20 ms.
const BEAT: Duration = Duration::from_millis(20);

impl Load {
    pub(crate) async fn open(server: &Server, rate: u64) -> Result<Self, Error> {
        let store = Durable::postgres(server.config()).namespace(NAMESPACE).store().open().await?;
        let (written, cancels) = (HashMap::new(), BTreeMap::new());
        Ok(Load { store, rate, number: 0, written, cancels })
    }

    pub(crate) async fn run(mut self, time: Duration) -> Result<HashMap<u64, Written>, Error> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let beat = Instant::now();
            self.schedule().await;
            self.cancel().await;
            // A server that was down is not made up for.
            tokio::time::sleep(BEAT.saturating_sub(beat.elapsed())).await;
        }
        Ok(self.written)
    }

    async fn schedule(&mut self) {
        let mass = fastrand::u32(..2_000) == 0; // Many for the same moment.
        let count = if mass { 5_000 } else { self.rate * BEAT.as_millis() as u64 / 1_000 };
        let moment = now() + 3_000_000;
        let mut rows = Vec::new();
        for _ in 0..count.max(1) {
            self.number += 1;
            let number = self.number;
            let delay = match fastrand::u8(..10) {
                0 => 0,
                1..=3 => fastrand::i64(0..1_000_000),
                _ => fastrand::i64(0..15_000_000),
            };
            let due = if mass { moment } else { now() + delay };
            let slot = self.store.slot(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
            let place = Place { due: StoreTime::from_micros(due), slot, id: fastrand::i64(1..) };
            let key = number.to_string();
            if fastrand::u8(..6) == 0 {
                let at = now() + fastrand::i64(0..=delay + 100_000);
                self.cancels.insert((at, number), KeyName { slot, key: key.clone() });
            }
            rows.push(NewRow { place, key: Some(key), tag: None, payload: vec![7; 100] });
            let written = Written { certain: false, cancel: Cancel::None };
            self.written.insert(number, written);
        }
        for batch in rows.chunks(1_000) {
            let numbers: Vec<u64> =
                batch.iter().filter_map(|row| row.key.as_ref()?.parse().ok()).collect();
            let answer = self.store.schedule(NodeId(0), batch.to_vec()).await;
            // What was refused may be found by its key all the same: it is not certain.
            for number in numbers.iter().filter(|_| answer.is_ok()) {
                self.written.entry(*number).and_modify(|written| written.certain = true);
            }
        }
    }

    async fn cancel(&mut self) {
        let later = self.cancels.split_off(&(now(), 0));
        let due = std::mem::replace(&mut self.cancels, later);
        for batch in due.into_iter().collect::<Vec<_>>().chunks(1_000) {
            let keys = batch.iter().map(|(_, key)| key.clone()).collect();
            let answers = self.store.cancel(keys).await;
            for (index, ((_, number), _)) in batch.iter().enumerate() {
                let cancel = match &answers {
                    Err(_) => Cancel::Uncertain,
                    Ok(answers) if matches!(answers[index], Cancelled::Cancelled(_)) => {
                        Cancel::Cancelled
                    }
                    Ok(_) => continue,
                };
                self.written.entry(*number).and_modify(|written| written.cancel = cancel);
            }
        }
    }
}

/// Waits until all timers have ended, and returns how many have not.
pub(crate) async fn rest(server: &Server) -> Result<i64, tokio_postgres::Error> {
    let (client, connection) = server.config().connect(NoTls).await?;
    tokio::spawn(connection);
    let mut rest = 0;
    for _ in 0..600 {
        let row = client.query_one("SELECT count(*) FROM tickwheel.timer", &[]).await?;
        rest = row.get(0);
        if rest == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(rest)
}
