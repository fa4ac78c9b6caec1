//! A store in memory: the plain model of a store, for tests in virtual time.

mod time;

pub use time::pass;

use crate::durable::{Durable, DurableBuilder};
use crate::entry::{
    Cancelled, DeadTimer, Error, Listed, Paused, Pending, Scheduled, Search, Touched,
};
use crate::store::states::{Row, TakenOver};
use crate::store::{
    Ack, Bulk, Changed, Claims, Look, Name, NewTimer, Operations, Place, Renewal, Step, Want,
};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::when::{Moment, StoreTime};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Clock;
use tokio::sync::watch;

/// Where the store's clock begins: some day in 2025, as moments before 1970 have no name.
const START: StoreTime = StoreTime::MIN;
const START_AFTER: Duration = Duration::from_secs(1_750_000_000);

/// A store that lives as long as its last clone, of one namespace: for tests of handlers.
///
/// All of it lies under one lock, and each operation goes over all rows. Its clock is any that a
/// [`Timer`](tickwheel::Timer) may have, so hours pass at once with a `ManualClock`.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    origin: Instant,
    state: Mutex<State>,
    /// The last row of which nodes are told.
    told: watch::Sender<Option<Place>>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Name, Row>,
    pauses: BTreeMap<Option<String>, StoreTime>,
}

impl Durable<Memory> {
    /// Sets up a node on a store in memory, which survives nothing: for tests.
    pub fn memory(store: Memory) -> DurableBuilder<Memory> {
        DurableBuilder::new(store)
    }
}

impl Memory {
    /// Returns an empty store on this clock.
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
        START.plus(START_AFTER).plus(passed)
    }

    /// Returns how many timers there are, those in a handler's hands and dead ones included.
    pub fn len(&self) -> usize {
        self.lock().rows.len()
    }

    /// Returns whether there is no timer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }

    /// Does the same to each of a batch.
    fn each<R, A>(
        &self,
        batch: Vec<R>,
        mut change: impl FnMut(&mut State, R, StoreTime) -> (A, Option<Name>),
    ) -> Changed<A> {
        let now = self.time();
        let mut state = self.lock();
        let mut first = None;
        let mut answers = Vec::with_capacity(batch.len());
        for one in batch {
            let (answer, changed) = change(&mut state, one, now);
            answers.push(Some(answer));
            first = earlier(first, changed.and_then(|name| state.place(&name)));
        }
        Changed {
            now,
            first,
            answers,
        }
    }

    fn tell(&self, place: Option<Place>) {
        if place.is_some() {
            self.shared.told.send_replace(place);
        }
    }
}

/// Returns the earlier of two places, if any.
fn earlier(one: Option<Place>, other: Option<Place>) -> Option<Place> {
    one.into_iter().chain(other).min()
}

impl State {
    /// Returns where a row lies that can be claimed, now or later.
    fn place(&self, name: &Name) -> Option<Place> {
        match self.rows.get(name)? {
            Row::Free { timer, .. } => Some(Place {
                due: timer.due,
                id: timer.id,
            }),
            _ => None,
        }
    }

    /// Returns the rows that can be claimed now or later, from a place on, in the order of places.
    fn free_from(&self, from: Place) -> Vec<(Place, Name)> {
        let places = self.rows.keys().filter_map(|name| {
            let place = self.place(name)?;
            (place >= from).then(|| (place, name.clone()))
        });
        let mut places: Vec<_> = places.collect();
        places.sort();
        places
    }

    /// Returns until when a timer with this tag is paused.
    fn paused_until(&self, tag: &Option<String>, now: StoreTime) -> Option<StoreTime> {
        let all = self.pauses.get(&None);
        let own = tag.as_ref().and_then(|_| self.pauses.get(tag));
        let until = all.into_iter().chain(own).max().copied();
        until.filter(|until| *until > now)
    }

    fn put(&mut self, left: Option<(Name, Row)>) {
        if let Some((name, row)) = left {
            self.rows.insert(name, row);
        }
    }

    /// Makes a dead timer due, unless its key has a timer again; returns its name.
    fn requeue(&mut self, dead: &Name, now: StoreTime) -> Option<Name> {
        let former = match self.rows.get(dead)? {
            Row::Dead { former, .. } if !self.rows.contains_key(former) => former.clone(),
            _ => return None,
        };
        let row = self.rows.remove(dead)?.requeue(now);
        self.rows.insert(former.clone(), row);
        Some(former)
    }

    /// Changes one of many; returns the name that it has then, or `None` if nothing was done.
    fn change(&mut self, bulk: &Bulk, name: &Name, now: StoreTime) -> Option<Name> {
        match bulk {
            Bulk::Cancel(_) => {
                let (answer, ends) = self.rows.get_mut(name)?.cancel();
                debug_assert!(matches!(answer, Cancelled::Cancelled(_)));
                if ends {
                    self.rows.remove(name);
                }
            }
            Bulk::Touch(_, moment) => {
                self.rows.get_mut(name)?.touch(moment, now);
            }
            Bulk::Release(_) => self.rows.get_mut(name)?.release(now),
            Bulk::Requeue(..) => return self.requeue(name, now),
            Bulk::Delete(..) => {
                self.rows.remove(name);
            }
        }
        Some(name.clone())
    }
}

impl Operations for Memory {
    fn space(&self) -> &str {
        "memory"
    }

    async fn schedule(
        &self,
        timers: Vec<NewTimer>,
        tell: bool,
    ) -> Result<Changed<Scheduled>, Error> {
        let changed = self.each(timers, |state, new, now| {
            let answer = match state.rows.get_mut(&new.name) {
                Some(row) => row.schedule(&new, now),
                None => {
                    state.rows.insert(new.name.clone(), Row::new(&new, now));
                    Scheduled::New
                }
            };
            let written = (answer != Scheduled::Kept).then_some(new.name);
            (answer, written)
        });
        self.tell(changed.first.filter(|_| tell));
        Ok(changed)
    }

    async fn cancel(&self, names: Vec<Name>) -> Result<Changed<Cancelled>, Error> {
        Ok(self.each(names, |state, name, _| {
            let Some(row) = state.rows.get_mut(&name) else {
                return (Cancelled::Unknown, None);
            };
            let (answer, ends) = row.cancel();
            if ends {
                state.rows.remove(&name);
            }
            (answer, None)
        }))
    }

    async fn touch(
        &self,
        moves: Vec<(Name, Moment)>,
        tell: bool,
    ) -> Result<Changed<Touched>, Error> {
        let changed = self.each(moves, |state, (name, moment), now| {
            let answer = match state.rows.get_mut(&name) {
                Some(row) => row.touch(&moment, now),
                None => Touched::Unknown,
            };
            let moved = (answer == Touched::Moved).then_some(name);
            (answer, moved)
        });
        self.tell(changed.first.filter(|_| tell));
        Ok(changed)
    }

    async fn claim(&self, want: Want) -> Result<Claims, Error> {
        let now = self.time();
        let mut state = self.lock();
        let mut claims = Claims {
            now,
            from: want.from,
            ..Claims::default()
        };
        let mut bytes = 0;
        let mut examined = 0;
        for (place, name) in state.free_from(want.from) {
            if place.due > now {
                break;
            }
            // What is held or has expired is among those that a claim has found.
            claims.more = examined == want.limit;
            let Some(mut row) = state.rows.remove(&name) else {
                continue;
            };
            let Some(timer) = row.free().filter(|_| !claims.more) else {
                state.rows.insert(name, row);
                claims.from = place;
                break;
            };
            examined += 1;
            if let Some(until) = state.paused_until(&timer.tag, now) {
                timer.hold(until);
                state.rows.insert(name, row);
                continue;
            }
            let length = timer.payload.len();
            let Some((claimed_row, claimed)) = row.clone().claim(&name, now, want.lease) else {
                claims.expired += 1;
                continue;
            };
            if bytes + length > want.bytes && !claims.rows.is_empty() {
                state.rows.insert(name, row);
                claims.more = true;
                claims.from = place;
                break;
            }
            bytes += length;
            claims.rows.push(claimed);
            state.rows.insert(name, claimed_row);
        }
        if !claims.more {
            claims.from = want.from.max(Place::before(now));
        }
        let later = state.free_from(Place::before(StoreTime::MIN));
        let later = later.into_iter().map(|(place, _)| place);
        claims.next = later.filter(|place| place.due > now).min();
        Ok(claims)
    }

    async fn take_over(&self, most: u32, limit: u32, lease: Duration) -> Result<Claims, Error> {
        let now = self.time();
        let mut state = self.lock();
        let mut claims = Claims {
            now,
            ..Claims::default()
        };
        let left = state.rows.iter().filter_map(|(name, row)| {
            let (crashes, token) = row.left(now)?;
            (crashes <= most).then(|| (crashes, token, name.clone()))
        });
        let mut left: Vec<(u32, i64, Name)> = left.collect();
        left.sort();
        let Some(crashes) = left.first().map(|it| it.0) else {
            return Ok(claims);
        };
        let limit = match crashes {
            0 => limit,
            1 => limit.div_ceil(10),
            _ => limit.div_ceil(100),
        };
        left.retain(|it| it.0 == crashes);
        claims.more = left.len() > limit as usize;
        for (_, _, name) in left.into_iter().take(limit as usize) {
            let Some(row) = state.rows.remove(&name) else {
                continue;
            };
            match row.take_over(&name, now, lease) {
                TakenOver::Runs(row, claimed) => {
                    claims.rows.push(claimed);
                    state.rows.insert(name, row);
                }
                TakenOver::Free(row) => {
                    state.rows.insert(name.clone(), row);
                    claims.next = earlier(claims.next, state.place(&name));
                }
                TakenOver::Expired => claims.expired += 1,
                TakenOver::Ended => {}
            }
        }
        Ok(claims)
    }

    async fn look(&self, below: Place) -> Result<Look, Error> {
        let now = self.time();
        let state = self.lock();
        let free = state.free_from(Place::before(StoreTime::MIN));
        let first = free.first().map(|it| it.0);
        Ok(Look {
            now,
            first: first.filter(|first| *first < below),
            left: state.rows.values().any(|row| row.left(now).is_some()),
        })
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Result<Changed<bool>, Error> {
        Ok(self.each(renewals, |state, renewal, now| {
            let row = state.rows.get_mut(&renewal.name);
            let renewed = row.is_some_and(|row| row.renew(renewal.token, now.plus(renewal.term)));
            (renewed, None)
        }))
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Changed<bool>, Error> {
        Ok(self.each(acks, |state, ack, now| {
            let row = state.rows.get(&ack.name);
            if !row.is_some_and(|row| row.is_claimed_by(ack.token)) {
                return (false, None);
            }
            let row = state.rows.remove(&ack.name);
            let left = row.and_then(|row| row.end(ack.name.clone(), ack.ending, now));
            state.put(left);
            (true, Some(ack.name))
        }))
    }

    async fn told(&self) -> Option<Place> {
        let mut told = self.shared.told.subscribe();
        // The store keeps the sender: it does not end.
        let _ = told.changed().await;
        *told.borrow_and_update()
    }

    async fn get(&self, name: Name) -> Result<Option<Pending>, Error> {
        let state = self.lock();
        let listed = state.rows.get(&name).and_then(|row| row.listed(&name));
        Ok(listed.map(|listed| Pending {
            at: listed.at,
            payload: listed.payload,
            attempts: listed.attempts,
            running: listed.running,
        }))
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        let state = self.lock();
        let listed = state.rows.iter().filter_map(|(name, row)| {
            let listed = row.listed(name)?;
            let fits = search.fits((&listed).into(), &listed.key, &listed.tag);
            let running = search.running.is_none_or(|wanted| wanted == listed.running);
            (fits && running).then_some(listed)
        });
        let mut listed: Vec<Listed> = listed.collect();
        listed.sort_by_key(|listed| Place::from(listed));
        listed.truncate(search.limit as usize);
        Ok(listed)
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        let state = self.lock();
        let dead = state.rows.values().filter_map(|row| {
            let dead = row.dead()?;
            let fits = search.fits((&dead).into(), &dead.key, &dead.tag);
            (fits && search.running != Some(true)).then_some(dead)
        });
        let mut dead: Vec<DeadTimer> = dead.collect();
        dead.sort_by_key(|dead| Place::from(dead));
        dead.truncate(search.limit as usize);
        Ok(dead)
    }

    async fn requeue(&self, id: i64) -> Result<Option<Place>, Error> {
        let now = self.time();
        let mut state = self.lock();
        let name = state.requeue(&Name::of_dead(id), now);
        let place = name.and_then(|name| state.place(&name));
        drop(state);
        self.tell(place);
        Ok(place)
    }

    async fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> Result<Step, Error> {
        let now = self.time();
        let mut state = self.lock();
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let later = state.rows.range((after, Bound::Unbounded));
        let mut names = later.filter(|(_, row)| bulk.is_for(row));
        let some = names.by_ref().take(limit as usize);
        let some: Vec<Name> = some.map(|(name, _)| name.clone()).collect();
        let mut step = Step {
            now,
            more: names.next().and(some.last().cloned()),
            ..Step::default()
        };
        for name in some {
            if let Some(changed) = state.change(&bulk, &name, now) {
                step.count += 1;
                step.first = earlier(step.first, state.place(&changed));
            }
        }
        drop(state);
        self.tell(step.first);
        Ok(step)
    }

    async fn pause(&self, tag: Option<String>, until: Option<Moment>) -> Result<(), Error> {
        let now = self.time();
        let mut state = self.lock();
        match until {
            Some(until) => state.pauses.insert(tag, until.due(now)),
            None => state.pauses.remove(&tag),
        };
        Ok(())
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        let now = self.time();
        let mut state = self.lock();
        state.pauses.retain(|_, until| *until > now);
        let pauses = state.pauses.iter().map(|(tag, until)| Paused {
            tag: tag.clone(),
            until: *until,
        });
        Ok(pauses.collect())
    }

    async fn now(&self) -> Result<StoreTime, Error> {
        Ok(self.time())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::{Bench, beside_the_model, table};
    use tickwheel::ManualClock;

    struct InMemory {
        store: Memory,
        clock: ManualClock,
    }

    impl Bench for InMemory {
        type Store = Memory;

        fn store(&self) -> &Memory {
            &self.store
        }

        async fn pass(&self, time: Duration) {
            self.clock.advance(time);
        }

        async fn clear(&self) {
            *self.store.lock() = State::default();
        }

        async fn state(&self, name: &Name) -> &'static str {
            let state = self.store.lock();
            state.rows.get(name).map_or("none", Row::state)
        }
    }

    fn bench() -> InMemory {
        let clock = ManualClock::new();
        let store = Memory::new(clock.clone());
        InMemory { store, clock }
    }

    #[tokio::test]
    async fn each_cell_of_the_table_holds() {
        table(&bench()).await;
    }
}
