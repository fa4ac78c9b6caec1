//! What each store is put through: random steps.

#[path = "again.rs"]
mod again;
#[path = "search.rs"]
mod search;

use quickcheck::{Arbitrary, Gen};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tickwheel_durable::store::{
    Ack, Bars, Bulk, Claim, ClaimedRow, Ending, KeyName, NewRow, NodeId, Owned, Page, Place, Scope,
    Store, Written,
};
use tickwheel_durable::{Scheduled, Search, StoreTime};

/// Moments long past or far away: so that no store's clock matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(pub bool, pub u8);

impl Moment {
    fn time(self) -> StoreTime {
        let start = if self.0 { 0 } else { 32_000_000_000_000_000 }; // In the year 2984.
        StoreTime::from_micros(start + i64::from(self.1) * 1_000)
    }
}

impl Moment {
    /// Returns a moment to which a pause may put timers off.
    fn marked(self) -> StoreTime {
        let (far, mark) = (Moment(false, 0).time().as_micros(), (1 << 17) - 1);
        StoreTime::from_micros((far + (i64::from(self.1) << 17)) | mark)
    }
}

impl Arbitrary for Moment {
    fn arbitrary(g: &mut Gen) -> Self {
        Moment(bool::arbitrary(g), u8::arbitrary(g) % 8)
    }
}

/// What becomes of a key's former timer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Former {
    Replaced,
    Kept,
    Debounced(Moment),
}

impl Former {
    fn until(self) -> Option<StoreTime> {
        if let Former::Debounced(until) = self {
            Some(until.time())
        } else {
            None
        }
    }
}

impl Arbitrary for Former {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 4 {
            0 => Former::Kept,
            1 => Former::Debounced(Moment::arbitrary(g)),
            _ => Former::Replaced,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Keys, times, whether they have a tag, and what becomes of the former timer.
    Schedule(Vec<(Option<u8>, Moment, bool, Former)>),
    Cancel(Vec<u8>),
    Touch(Vec<(u8, Moment)>),
    /// To all of a tag, or to all.
    Bulk(Option<u8>, u8, Moment),
    /// Of a tag or of all, until a moment or no more.
    Pause(Option<u8>, Option<Moment>),
    /// Claims up to so many of what is due, or all with the epoch of the owner before; those that
    /// were in no more than so many crashes.
    Claim(u8, bool, u8),
    Ack(Vec<(u8, u8, Moment)>),
    NewOwner,
    Look,
    Requeue(u8),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let keys = |g: &mut Gen| {
            let mut keys: Vec<u8> = (0..u8::arbitrary(g) % 4)
                .map(|_| u8::arbitrary(g) % 6)
                .collect();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        match u8::arbitrary(g) % 12 {
            0..=3 => {
                let keys = keys(g)
                    .into_iter()
                    .map(Some)
                    .chain([None])
                    .collect::<Vec<_>>();
                let row = |key| {
                    (
                        key,
                        Moment::arbitrary(g),
                        bool::arbitrary(g),
                        Former::arbitrary(g),
                    )
                };
                Step::Schedule(keys.into_iter().map(row).collect())
            }
            4 => Step::Cancel(keys(g)),
            5 => {
                let keys = keys(g);
                Step::Touch(
                    keys.into_iter()
                        .map(|key| (key, Moment::arbitrary(g)))
                        .collect(),
                )
            }
            6 => {
                let tag = Some(u8::arbitrary(g) % 4).filter(|_| u8::arbitrary(g) % 4 > 0);
                match bool::arbitrary(g) {
                    true => Step::Bulk(tag, u8::arbitrary(g), Moment::arbitrary(g)),
                    false => Step::Pause(tag, Option::arbitrary(g)),
                }
            }
            7 | 8 => {
                let stale = bool::arbitrary(g) && bool::arbitrary(g);
                Step::Claim(u8::arbitrary(g) % 6, stale, u8::arbitrary(g) % 5)
            }
            9 => Step::Ack(Vec::arbitrary(g)),
            10 if bool::arbitrary(g) => Step::NewOwner,
            10 => Step::Requeue(u8::arbitrary(g)),
            _ => Step::Look,
        }
    }
}

impl Arbitrary for Wrapped {
    fn arbitrary(g: &mut Gen) -> Self {
        Wrapped(Vec::arbitrary(g))
    }
    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let steps = self.0.clone();
        Box::new((0..steps.len()).map(move |gone| {
            let mut fewer = steps.clone();
            fewer.remove(gone);
            Wrapped(fewer)
        }))
    }
}

/// Steps that shrink by leaving some out.
#[derive(Clone, Debug)]
pub(crate) struct Wrapped(pub Vec<Step>);

/// A store, what was claimed of it, and who owns it.
pub(crate) struct Driven<S> {
    pub(crate) store: S,
    node: NodeId,
    next_id: i64,
    epochs: BTreeMap<u32, i64>,
    /// That of the first owner.
    first_epoch: i64,
    claims: Vec<Claim>,
}

const LEASE: Duration = Duration::from_secs(3600);

/// Returns as much as a test wants to see; ids are small, so they show order.
fn tell(answer: &impl Debug) -> String {
    format!("{answer:?}")
}

/// Returns a moment before which all died that are dead.
async fn after_the_dead(store: &impl Store) -> StoreTime {
    store
        .first()
        .await
        .unwrap()
        .now
        .plus(Duration::from_micros(1))
}

fn scope(tag: Option<u8>) -> Scope {
    Scope {
        tag: tag.map(|tag| format!("tag {tag}")),
        id: None,
    }
}

impl<S: Store> Driven<S> {
    pub(crate) async fn new(store: S) -> Self {
        let (epochs, claims) = (BTreeMap::new(), Vec::new());
        let node = NodeId(0);
        let mut driven = Driven {
            store,
            node,
            next_id: 0,
            epochs,
            first_epoch: 0,
            claims,
        };
        driven.own().await;
        driven.first_epoch = *driven.epochs.values().max().expect("there are slots");
        driven
    }

    async fn own(&mut self) {
        self.store.leave(self.node).await.unwrap();
        static NEXT: AtomicI64 = AtomicI64::new(1);
        self.node = NodeId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.store.join(self.node, LEASE).await.unwrap();
        let survey = self.store.survey(self.node).await.unwrap();
        assert_eq!((survey.live, survey.free), (1, self.store.slots()));
        let owned = self
            .store
            .take(self.node, self.store.slots())
            .await
            .unwrap();
        let horizon = StoreTime::from_micros(1_000_000);
        self.store.publish(self.node, horizon).await.unwrap();
        self.epochs = owned
            .iter()
            .map(|Owned { slot, epoch }| (*slot, *epoch))
            .collect();
        assert_eq!(self.epochs.len(), self.store.slots() as usize);
    }

    fn name(&self, key: u8) -> KeyName {
        KeyName {
            slot: self.store.slot(u64::from(key)),
            key: format!("key {key}"),
        }
    }

    pub(crate) async fn step(&mut self, step: &Step) -> String {
        let store = &self.store;
        match step {
            Step::Schedule(entries) => {
                let mut rows = Vec::new();
                for (key, at, tagged, former) in entries {
                    self.next_id += 1;
                    let id = self.next_id;
                    let slot = store.slot(key.map_or(id as u64, u64::from));
                    let place = Place {
                        due: at.time(),
                        slot,
                        id,
                    };
                    let key = key.map(|key| self.name(key).key);
                    let tag = tagged.then(|| format!("tag {}", id % 4));
                    let payload = id.to_be_bytes().to_vec();
                    let keep = matches!(former, Former::Kept);
                    let until = former.until().map(|until| until.max(place.due));
                    rows.push(NewRow {
                        place,
                        key,
                        tag,
                        payload,
                        keep,
                        until,
                        planned: None,
                    });
                }
                let written = store.schedule(NodeId(99), rows).await.unwrap();
                // When a kept one is due is not told; one is due now, and their clocks differ.
                let is_told = |it: &Written| {
                    let far = Moment(false, 0).time();
                    it.answer != Scheduled::Kept
                        && (it.due < Moment(true, 99).time() || it.due >= far)
                };
                let due = |it: &Written| Some(it.due).filter(|_| is_told(it));
                tell(
                    &written
                        .iter()
                        .flatten()
                        .map(|it| (it.answer, due(it)))
                        .collect::<Vec<_>>(),
                )
            }
            Step::Cancel(keys) => {
                let keys = keys.iter().map(|key| self.name(*key)).collect();
                tell(&store.cancel(keys).await.unwrap())
            }
            Step::Touch(keys) => {
                let keys = keys
                    .iter()
                    .map(|(key, at)| (self.name(*key), at.time()))
                    .collect();
                tell(&store.touch(keys).await.unwrap())
            }
            // All that are tagged so: which of them were meant is not promised.
            Step::Bulk(tag, what, at) => {
                let before = after_the_dead(store).await;
                let bulk = match what % 6 {
                    0 if tag.is_some() => Bulk::Cancel,
                    1 => Bulk::Delete(before),
                    2 | 3 => Bulk::Requeue(before),
                    _ => Bulk::Touch(at.time(), (0, i64::MIN)),
                };
                tell(&store.bulk(scope(*tag), bulk, 1_000).await.unwrap())
            }
            Step::Pause(tag, until) => self.pause(*tag, *until).await,
            Step::Claim(limit, stale, crashes) => {
                self.claim(usize::from(*limit), *stale, u32::from(*crashes))
                    .await
            }
            Step::Ack(acks) => self.acknowledge(acks).await,
            Step::NewOwner => {
                self.own().await;
                tell(
                    &self
                        .epochs
                        .values()
                        .map(|epoch| epoch - self.first_epoch)
                        .max(),
                )
            }
            Step::Look => self.look().await,
            Step::Requeue(which) => {
                let mut dead = store.dead(Search::new(100)).await.unwrap();
                dead.sort_by_key(|dead| dead.id); // Those of one step died at once, in some stores.
                let id = dead.get(usize::from(*which) % 3).map_or(-1, |dead| dead.id);
                tell(&store.requeue(id).await.unwrap())
            }
        }
    }

    async fn all(&self) -> Vec<Place> {
        let (slots, mut all) = (
            self.epochs.keys().copied().collect::<Vec<u32>>(),
            Vec::new(),
        );
        let mut after = Place::before(StoreTime::MIN);
        loop {
            let page = self
                .store
                .load(Page {
                    slots: slots.clone(),
                    after,
                    before: StoreTime::MAX,
                    limit: 3,
                })
                .await
                .unwrap();
            assert!(page.is_sorted() && page.iter().all(|place| *place > after));
            all.extend_from_slice(&page);
            match page.last() {
                Some(last) if page.len() == 3 => after = *last,
                _ => return all,
            }
        }
    }

    async fn pause(&self, tag: Option<u8>, until: Option<Moment>) -> String {
        let until = until.map(Moment::marked);
        self.store.pause(scope(tag).tag, until).await.unwrap();
        let to = until.unwrap_or(Moment(true, 0).time());
        let step = self
            .store
            .bulk(scope(tag), Bulk::Release(to), 1_000)
            .await
            .unwrap();
        let mut pauses = self.store.pauses().await.unwrap();
        pauses.sort();
        tell(&(step, pauses))
    }

    async fn claim(&mut self, limit: usize, stale: bool, crashes: u32) -> String {
        let mut places = self.all().await;
        places.sort_by_key(|place| place.id); // A requeued one is due at another time in each.
        let epoch = |place: &Place| self.epochs[&place.slot] - i64::from(stale);
        let claims = places.iter().map(|place| Claim {
            place: *place,
            epoch: epoch(place),
        });
        let claims: Vec<Claim> = claims.take(limit).collect();
        let mut answer = self.store.claim(self.node, claims, crashes).await.unwrap();
        let mut rows = answer.rows;
        rows.sort_by_key(|row| row.claim.place.id);
        self.claims.extend(rows.iter().map(|row| row.claim));
        let tell_row = |row: &ClaimedRow| {
            // What was requeued was due then, and their clocks differ.
            let planned = Some(row.planned).filter(|at| at.as_micros() < 1_000_000);
            let ClaimedRow {
                key,
                tag,
                attempts,
                crashes,
                payload,
                ..
            } = row;
            tell(&(
                row.claim.place.id,
                key,
                tag,
                attempts,
                crashes,
                payload,
                planned,
            ))
        };
        answer.held.sort();
        let held = answer
            .held
            .iter()
            .map(|place| tell(&("held", place.id, place.due)));
        let mut suspects = answer.suspects;
        suspects.sort_by_key(|suspect| suspect.place.id);
        let suspects = suspects
            .iter()
            .map(|it| tell(&(it.place.id, it.crashes, it.attempts)));
        rows.iter()
            .map(tell_row)
            .chain(suspects)
            .chain(held)
            .collect()
    }

    /// Schedules rows of so many bytes, claims all that are left until there is none, and returns
    /// how many were claimed at a time.
    #[allow(dead_code, reason = "only a server has a link that may be slow")]
    pub(crate) async fn claim_of_bytes(&mut self, bytes: &[usize]) -> Vec<usize> {
        let row = |(n, bytes): (usize, &usize)| {
            let due = StoreTime::from_micros(n as i64);
            let place = Place {
                due,
                slot: self.store.slot(0),
                id: n as i64,
            };
            NewRow {
                place,
                payload: vec![0; *bytes],
                ..NewRow::default()
            }
        };
        let rows: Vec<NewRow> = bytes.iter().enumerate().map(row).collect();
        let epoch = self.epochs[&self.store.slot(0)];
        let claim = |row: &NewRow| Claim {
            place: row.place,
            epoch,
        };
        let mut claims: Vec<Claim> = rows.iter().map(claim).collect();
        self.store.schedule(self.node, rows).await.unwrap();
        let mut counts = Vec::new();
        while !claims.is_empty() {
            let answer = self
                .store
                .claim(self.node, claims.clone(), 0)
                .await
                .unwrap();
            claims.retain(|claim| answer.more.contains(&claim.place));
            let ack = |row: &ClaimedRow| Ack {
                claim: row.claim,
                ending: Ending::Done,
            };
            counts.push(answer.rows.len());
            self.store
                .acknowledge(answer.rows.iter().map(ack).collect())
                .await
                .unwrap();
        }
        counts
    }

    async fn acknowledge(&mut self, acks: &[(u8, u8, Moment)]) -> String {
        let mut batch: Vec<Ack> = Vec::new();
        for (which, how, at) in acks.iter().filter(|_| !self.claims.is_empty()) {
            let claim = self.claims[usize::from(*which) % self.claims.len()];
            if batch.iter().any(|ack| ack.claim.place.id == claim.place.id) {
                continue;
            }
            let ending = match how % 4 {
                0 => Ending::Done,
                1 => Ending::Retry(at.time()),
                2 => {
                    let planned = Some(Moment(true, *which % 8).time()).filter(|_| at.0);
                    Ending::Again {
                        due: at.time(),
                        planned,
                        payload: vec![*which],
                    }
                }
                _ => Ending::Dead(format!("reason {which}")),
            };
            batch.push(Ack { claim, ending });
        }
        self.store.acknowledge(batch.clone()).await.unwrap();
        self.store.acknowledge(batch).await.unwrap(); // To ask twice is harmless.
        String::new()
    }

    async fn look(&self) -> String {
        let mut ids: Vec<i64> = self.all().await.iter().map(|place| place.id).collect();
        ids.sort_unstable();
        let mut told = tell(&ids);
        for key in 0..6 {
            let pending = self.store.get(self.name(key)).await.unwrap();
            told += &tell(&pending.map(|p| (p.payload, p.attempts, p.running)));
        }
        let width = Duration::from_millis(2);
        for from in [StoreTime::MIN, Moment(false, 0).time()] {
            let bars = self
                .store
                .histogram(Bars {
                    from,
                    width,
                    count: 4,
                })
                .await;
            told += &tell(&bars.unwrap());
        }
        told + &tell(&search::listed(&self.store).await)
    }
}

/// Runs steps on two stores, and compares each answer.
pub(crate) async fn compare(one: impl Store, other: impl Store, steps: &[Step]) {
    let (mut one, mut other) = (Driven::new(one).await, Driven::new(other).await);
    for (number, step) in steps.iter().chain([&Step::Look]).enumerate() {
        let told = (one.step(step).await, other.step(step).await);
        assert_eq!(told.0, told.1, "step {number}: {step:?}");
    }
}
