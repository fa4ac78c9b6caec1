//! A store in memory: the plain model of a store, for tests in virtual time.

#[cfg(test)]
#[path = "../../tests/inside/memory.rs"]
mod tests;
mod time;

pub use time::pass;

use crate::durable::{Durable, DurableBuilder};
use crate::entry::{Error, Paused};
use crate::store::alone::Alone;
use crate::store::rows::{Rows, Scan, Visit};
use crate::store::states::{Row, State};
use crate::store::{Name, Place};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::when::StoreTime;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Clock;
use tokio::sync::watch;

/// Where the store's clock begins, as the time since 1970: in June 2025. `StoreTime` has no moments
/// before 1970, and tests use moments before the start.
const START: Duration = Duration::from_secs(1_750_000_000);

/// A store of one namespace in memory, for tests of handlers. It lives as long as its last clone.
///
/// All of it lies under one lock, and most operations go over all rows. Its clock can be any clock
/// of a [`Timer`](tickwheel::Timer): with a `ManualClock` hours pass at once.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    origin: Instant,
    state: Mutex<Table>,
    /// The last row that nodes were told of.
    told: watch::Sender<Option<Place>>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<Name, Row>,
    pauses: BTreeMap<Option<String>, StoreTime>,
    /// The greatest token of any claim. A test's clock may stand still while a key's row is
    /// claimed, ends, and is written and claimed again. By the clock alone both claims would have
    /// the same token, and the first handler could end the second claim.
    greatest: i64,
}

impl Durable<Memory> {
    /// Sets up a node on a store in memory, for tests.
    pub fn memory(store: Memory) -> DurableBuilder<Memory> {
        DurableBuilder::new(store)
    }
}

impl Memory {
    /// Returns an empty store on this clock. The store's time begins in June 2025: compute
    /// [`When::At`](crate::When::At) from [`time`](Self::time).
    pub fn new(clock: impl Into<Clock>) -> Self {
        let clock = clock.into();
        let origin = clock.now();
        Memory {
            shared: Arc::new(Shared {
                clock,
                origin,
                state: Mutex::default(),
                told: watch::Sender::new(None),
            }),
        }
    }

    /// Returns the store's time.
    pub fn time(&self) -> StoreTime {
        let now = self.shared.clock.now();
        let passed = now.saturating_duration_since(self.shared.origin);
        StoreTime::MIN.plus(START).plus(passed)
    }

    /// Returns the number of timers, including those that handlers have, and dead ones.
    pub fn len(&self) -> usize {
        self.lock().rows.len()
    }

    /// Returns whether there is no timer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.shared.state)
    }
}

impl Rows for Table {
    fn load(&self, name: &Name) -> Result<Option<Row>, Error> {
        Ok(self.rows.get(name).cloned())
    }

    fn greatest(&self) -> i64 {
        self.greatest
    }

    fn put(&mut self, name: &Name, row: Option<Row>) -> Result<(), Error> {
        match row {
            Some(row) => {
                self.greatest = self.greatest.max(row.token);
                self.rows.insert(name.clone(), row)
            }
            None => self.rows.remove(name),
        };
        Ok(())
    }

    fn scan(&self, scan: Scan<'_>, visit: Visit<'_>) -> Result<(), Error> {
        // The rows of the scan, with their places if the scan goes by times.
        let wanted = |name: &Name, row: &Row| match (scan, &row.state) {
            (Scan::Free(from), State::Free) | (Scan::Dead(from), State::Dead { .. }) => {
                Some(row.timer.place()).filter(|place| *place >= from)
            }
            (Scan::Claimed, State::Claimed { until, .. }) => Some(Place::before(*until)),
            (Scan::Of(bulk, after), _) => {
                let is_next = name.0.as_str() > after && bulk.is_for(row);
                is_next.then(Place::default)
            }
            _ => None,
        };
        let rows = self.rows.iter();
        let rows = rows.filter_map(|(name, row)| Some((wanted(name, row)?, name, row)));
        let mut rows: Vec<(Place, &Name, &Row)> = rows.collect();
        rows.sort_by_key(|(place, name, _)| (*place, *name));
        for (_, name, row) in rows {
            if !visit(name, row)? {
                break;
            }
        }
        Ok(())
    }

    fn pause(
        &mut self,
        tag: Option<String>,
        until: Option<StoreTime>,
        _: StoreTime,
    ) -> Result<(), Error> {
        match until {
            Some(until) => self.pauses.insert(tag, until),
            None => self.pauses.remove(&tag),
        };
        Ok(())
    }

    fn pauses(&self, now: StoreTime) -> Result<Vec<Paused>, Error> {
        let pauses = self.pauses.iter().filter(|(_, until)| **until > now);
        let pauses = pauses.map(|(tag, until)| Paused {
            tag: tag.clone(),
            until: *until,
        });
        Ok(pauses.collect())
    }
}

impl Alone for Memory {
    type Rows<'a> = Table;

    async fn with<A: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Table, StoreTime) -> Result<A, Error> + Send + 'static,
    ) -> Result<A, Error> {
        let mut state = self.lock();
        // Read under the lock. Otherwise a claim could look up to a later time in between, and this
        // row would be written behind that claim's cursor.
        let now = self.time();
        change(&mut state, now)
    }

    fn tell(&self, place: Option<Place>) {
        if place.is_some() {
            self.shared.told.send_replace(place);
        }
    }

    async fn told(&self) -> Option<Place> {
        let mut told = self.shared.told.subscribe();
        // Never fails: the store has the sender.
        let _ = told.changed().await;
        *told.borrow_and_update()
    }
}
