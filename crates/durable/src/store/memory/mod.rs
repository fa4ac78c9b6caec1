//! A store in memory: what stores must do, said in the shortest way. For tests, on any clock.

mod time;
mod timers;

pub use time::pass;

use crate::durable::{Durable, DurableBuilder};
use crate::entry::{Cancelled, DeadTimer, Error, Listed, Paused, Pending, Search, Touched};
use crate::store::memory::timers::Timers;
use crate::store::{
    Ack, Bars, Bulk, Claim, Claims, Ending, First, Hints, KeyName, NewRow, NodeId, Owned, Page,
    Place, Scope, Sealed, Step, Store, StoreTime, Survey, Written,
};
use crate::sync::{Mutex, MutexGuard, lock};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::Clock;
use tokio::sync::Notify;

/// Where the store's clock begins: some day in 2025, as moments before 1970 have no name.
const START: StoreTime = StoreTime::MIN;
const START_AFTER: Duration = Duration::from_secs(1_750_000_000);

/// A store that lives as long as its last clone: for tests of handlers and of nodes.
///
/// All of it lies under one lock, so each operation is atomic. Its clock is any that a
/// [`Timer`](tickwheel::Timer) may have, so hours pass at once with a `ManualClock`.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    origin: Instant,
    slots: u32,
    state: Mutex<State>,
}

impl Durable<Memory> {
    /// Sets up a node on a store in memory, which survives nothing: for tests.
    pub fn memory(store: Memory) -> DurableBuilder<Memory> {
        DurableBuilder::new(store)
    }
}

/// What goes wrong with an operation of a [`Memory`], once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is refused: nothing was done.
    Refuse,
    /// It is done, and the answer is lost.
    LoseAnswer,
}

impl Memory {
    /// Returns an empty store with so many slots, at least one.
    pub fn new(slots: u32, clock: impl Into<Clock>) -> Self {
        let (clock, slots) = (clock.into(), slots.max(1));
        let owners = (0..slots).map(|slot| (slot, SlotRow::default())).collect();
        let state = Mutex::new(State {
            owners,
            ..State::default()
        });
        let origin = clock.now();
        Memory {
            shared: Arc::new(Shared {
                clock,
                origin,
                slots,
                state,
            }),
        }
    }

    /// Has the next call of an operation, by its name in [`Store`], go wrong. Several are kept in
    /// order.
    pub fn inject(&self, operation: &'static str, fault: Fault) {
        self.lock()
            .faults
            .entry(operation)
            .or_default()
            .push_back(fault);
    }

    /// Returns how often it was called.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Returns the store's time.
    pub fn now(&self) -> StoreTime {
        let passed = self
            .shared
            .clock
            .now()
            .saturating_duration_since(self.shared.origin);
        START.plus(START_AFTER).plus(passed)
    }

    /// Returns how many timers there are, those in a handler's hands included.
    pub fn len(&self) -> usize {
        self.lock().timers.len()
    }

    /// Returns whether there is no timer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under it panics but a test's assertion about this store.
        lock(&self.shared.state)
    }

    fn step<A>(
        &self,
        operation: &'static str,
        change: impl FnOnce(&mut State, StoreTime) -> A,
    ) -> Result<A, Error> {
        let now = self.now();
        let mut state = self.lock();
        state.calls += 1;
        let fault = state
            .faults
            .get_mut(operation)
            .and_then(VecDeque::pop_front);
        if fault == Some(Fault::Refuse) {
            return Err(Error::unavailable("an injected fault"));
        }
        let answer = change(&mut state, now);
        match fault {
            Some(_) => Err(Error::uncertain("an injected fault")),
            None => Ok(answer),
        }
    }
}

impl Sealed for Memory {}

impl Store for Memory {
    fn slots(&self) -> u32 {
        self.shared.slots
    }

    fn slot(&self, hash: u64) -> u32 {
        u32::try_from(hash % u64::from(self.shared.slots)).unwrap_or(0)
    }

    async fn join(&self, node: NodeId, lease: Duration) -> Result<(), Error> {
        self.step("join", |state, now| {
            let lease_until = now.plus(lease);
            let member = Member {
                lease_until,
                horizon: StoreTime::MIN,
                rests: None,
            };
            state.members.insert(node, member);
        })
    }

    async fn renew(&self, node: NodeId, lease: Duration) -> Result<bool, Error> {
        self.step("renew", |state, now| {
            let member = state
                .members
                .get_mut(&node)
                .filter(|member| member.lease_until > now);
            member
                .map(|member| member.lease_until = now.plus(lease))
                .is_some()
        })
    }

    async fn survey(&self, node: NodeId) -> Result<Survey, Error> {
        self.step("survey", |state, now| {
            let over = state
                .members
                .iter()
                .filter(|(_, member)| member.lease_until <= now);
            let over: Vec<NodeId> = over.map(|(node, _)| *node).collect();
            over.into_iter().for_each(|node| state.give_up(node));
            let own = state
                .owners
                .iter()
                .filter(|(_, row)| row.owner == Some(node));
            let owned = own
                .map(|(&slot, row)| Owned {
                    slot,
                    epoch: row.epoch,
                })
                .collect();
            let free = state
                .owners
                .values()
                .filter(|row| row.owner.is_none())
                .count();
            let live = state
                .members
                .values()
                .filter(|member| member.rests.is_none())
                .count();
            let (live, free) = (live as u32, free as u32);
            let others = state.members.iter().filter(|(other, _)| **other != node);
            let next_end = others
                .map(|(_, member)| member.lease_until.since(now))
                .min();
            Survey {
                live,
                slots: state.owners.len() as u32,
                owned,
                free,
                next_end,
            }
        })
    }

    async fn take(&self, node: NodeId, at_most: u32) -> Result<Vec<Owned>, Error> {
        self.step("take", |state, _| {
            if !state.members.contains_key(&node) {
                return Vec::new();
            }
            let free = state
                .owners
                .iter_mut()
                .filter(|(_, row)| row.owner.is_none());
            let take = |(&slot, row): (&u32, &mut SlotRow)| {
                (row.owner, row.epoch) = (Some(node), row.epoch + 1);
                Owned {
                    slot,
                    epoch: row.epoch,
                }
            };
            free.take(at_most as usize).map(take).collect()
        })
    }

    async fn retire(&self, node: NodeId) -> Result<(), Error> {
        self.step("retire", |state, _| {
            let member = state.members.get_mut(&node).into_iter();
            member.for_each(|member| member.rests = Some(Arc::default()));
        })
    }

    async fn release(&self, node: NodeId, slots: Vec<Owned>) -> Result<(), Error> {
        self.step("release", |state, _| {
            for owned in slots {
                let row = state.owners.get_mut(&owned.slot);
                let own = |row: &&mut SlotRow| (row.owner, row.epoch) == (Some(node), owned.epoch);
                let Some(row) = row.filter(own) else { continue };
                row.owner = None;
                let place = Place {
                    slot: owned.slot,
                    ..Place::before(StoreTime::MIN)
                };
                let sharing = |(other, member): &(&NodeId, &Member)| {
                    **other != node && member.rests.is_none()
                };
                let others = state
                    .members
                    .iter()
                    .filter(sharing)
                    .map(|(other, _)| *other);
                state.inbox.extend(others.map(|other| (other, place)));
            }
        })
    }

    async fn leave(&self, node: NodeId) -> Result<(), Error> {
        self.step("leave", |state, _| state.give_up(node))
    }

    async fn rest(&self, node: NodeId, until: StoreTime) -> Result<bool, Error> {
        self.step("rest", |state, _| {
            let member = state.members.entry(node).or_insert_with(|| Member {
                lease_until: StoreTime::MAX,
                horizon: until,
                rests: Some(Arc::default()),
            });
            member.horizon = until;
            true
        })
    }

    async fn told(&self, node: NodeId) -> Result<(), Error> {
        let member = self
            .lock()
            .members
            .get(&node)
            .and_then(|member| member.rests.clone());
        match member {
            Some(told) => told.notified().await,
            None => std::future::pending().await,
        }
        Ok(())
    }

    async fn first(&self) -> Result<First, Error> {
        self.step("first", |state, now| First {
            due: state.timers.first(),
            open: false,
            now,
        })
    }

    async fn publish(&self, node: NodeId, horizon: StoreTime) -> Result<(), Error> {
        self.step("publish", |state, _| {
            state
                .members
                .entry(node)
                .and_modify(|member| member.horizon = horizon);
        })
    }

    async fn hints(&self, node: NodeId) -> Result<Hints, Error> {
        self.step("hints", |state, now| {
            let places = state.inbox.iter().filter(|(owner, _)| *owner == node);
            let places = places.map(|(_, place)| *place).collect();
            state.inbox.retain(|(owner, _)| *owner != node);
            Hints { places, now }
        })
    }

    async fn load(&self, page: Page) -> Result<Vec<Place>, Error> {
        self.step("load", |state, _| state.timers.load(&page))
    }

    async fn schedule(
        &self,
        node: NodeId,
        rows: Vec<NewRow>,
    ) -> Result<Vec<Option<Written>>, Error> {
        self.step("schedule", |state, now| {
            let write = |row: NewRow| {
                let place = row.place;
                let written = state.timers.write(row, now);
                state.hint(
                    Place {
                        due: written.due,
                        ..place
                    },
                    Some(node),
                );
                Some(written)
            };
            rows.into_iter().map(write).collect()
        })
    }

    async fn cancel(&self, keys: Vec<KeyName>) -> Result<Vec<Option<Cancelled>>, Error> {
        self.step("cancel", |state, _| {
            keys.iter()
                .map(|key| Some(state.timers.cancel(key)))
                .collect()
        })
    }

    async fn touch(&self, keys: Vec<(KeyName, StoreTime)>) -> Result<Vec<Option<Touched>>, Error> {
        self.step("touch", |state, _| {
            let touch = |(key, due)| {
                let (answer, moved) = state.timers.touch(&key, due);
                moved.into_iter().for_each(|place| state.hint(place, None));
                Some(answer)
            };
            keys.into_iter().map(touch).collect()
        })
    }

    async fn pause(&self, tag: Option<String>, until: Option<StoreTime>) -> Result<(), Error> {
        self.step("pause", |state, _| {
            match until {
                Some(until) => state.timers.pauses.insert(tag, until),
                None => state.timers.pauses.remove(&tag),
            };
        })
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        self.step("pauses", |state, now| {
            let pauses = state
                .timers
                .pauses
                .iter()
                .filter(|(_, until)| **until > now);
            pauses
                .map(|(tag, until)| Paused {
                    tag: tag.clone(),
                    until: *until,
                })
                .collect()
        })
    }

    async fn bulk(&self, scope: Scope, bulk: Bulk, limit: u32) -> Result<Step, Error> {
        self.step("bulk", |state, now| {
            let (step, moved) = state.timers.bulk(&scope, bulk, limit as usize, now);
            moved.into_iter().for_each(|place| state.hint(place, None));
            step
        })
    }

    async fn claim(&self, node: NodeId, claims: Vec<Claim>, crashes: u32) -> Result<Claims, Error> {
        self.step("claim", |state, now| {
            let mut answer = Claims {
                now,
                ..Claims::default()
            };
            for claim in claims {
                if state.owns(node, &claim) && claim.place.due <= now {
                    state.timers.claim(claim, crashes, &mut answer);
                }
            }
            answer
        })
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Vec<Claim>, Error> {
        self.step("acknowledge", |state, now| {
            for ack in acks {
                if let Ending::Retry(due) | Ending::Again { due, .. } = ack.ending {
                    state.tell(due);
                }
                state.timers.acknowledge(ack, now);
            }
            Vec::new()
        })
    }

    async fn get(&self, key: KeyName) -> Result<Option<Pending>, Error> {
        self.step("get", |state, _| state.timers.get(&key))
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.step("list", |state, _| state.timers.list(&search))
    }

    async fn histogram(&self, bars: Bars) -> Result<Vec<u64>, Error> {
        self.step("histogram", |state, _| {
            let count = |bar: u32| {
                let start = bars.from.plus(bars.width.saturating_mul(bar));
                state.timers.count(start, start.plus(bars.width))
            };
            (0..bars.count).map(count).collect()
        })
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.step("dead", |state, _| state.timers.dead(&search))
    }
}

/// What a store in memory holds under its lock.
#[derive(Debug, Default)]
struct State {
    owners: BTreeMap<u32, SlotRow>,
    members: BTreeMap<NodeId, Member>,
    inbox: Vec<(NodeId, Place)>,
    timers: Timers,
    faults: HashMap<&'static str, VecDeque<Fault>>,
    calls: u64,
}

#[derive(Debug, Default)]
struct SlotRow {
    owner: Option<NodeId>,
    epoch: i64,
}

#[derive(Debug)]
struct Member {
    lease_until: StoreTime,
    horizon: StoreTime,
    /// Told of each timer before the horizon, if it rests.
    rests: Option<Arc<Notify>>,
}

impl State {
    /// Hints at a place to its slot's owner, if that has loaded past it, and to those who rest.
    fn hint(&mut self, place: Place, known_to: Option<NodeId>) {
        self.tell(place.due);
        let owner = self.owners.get(&place.slot).and_then(|row| row.owner);
        let member = owner.and_then(|owner| Some((owner, self.members.get(&owner)?)));
        if let Some((owner, member)) = member {
            if place.due < member.horizon && known_to != Some(owner) {
                self.inbox.push((owner, place));
            }
        }
    }

    /// Tells those who rest that a timer is due then.
    fn tell(&self, due: StoreTime) {
        let members = self.members.values().filter(|member| due < member.horizon);
        members
            .filter_map(|member| member.rests.as_ref())
            .for_each(|told| told.notify_one());
    }

    fn owns(&self, node: NodeId, claim: &Claim) -> bool {
        let row = self.owners.get(&claim.place.slot);
        row.is_some_and(|row| row.owner == Some(node) && row.epoch == claim.epoch)
    }

    fn give_up(&mut self, node: NodeId) {
        for row in self
            .owners
            .values_mut()
            .filter(|row| row.owner == Some(node))
        {
            row.owner = None;
        }
        self.members.remove(&node);
    }
}
