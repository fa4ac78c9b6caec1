//! Random calls, to a store and to the plain model side by side.

use crate::entry::{Cancelled, Search, Touched};
use crate::store::conformance::{Bench, LEASE, after, everything};
use crate::store::memory::Memory;
use crate::store::{
    Ack, Bulk, Changed, Claimed, Claims, Ending, Name, NewTimer, Operations, Place, Renewal,
};
use crate::when::{Moment, StoreTime};
use std::fmt::Debug;
use std::time::Duration;
use tickwheel::ManualClock;

/// Numbers that look random, the same for each seed: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, end: u64) -> bool {
        self.below(end) == 0
    }

    fn delay(&mut self) -> Duration {
        Duration::from_micros(self.below(8) * self.below(1_500_000))
    }
}

/// A store and the model, side by side.
struct Pair<'a, B> {
    bench: &'a B,
    model: Memory,
    clock: ManualClock,
    random: Random,
    /// Where each begins its claims.
    cursors: [Place; 2],
    /// What both have claimed, also what has ended since.
    claimed: Vec<Claimed>,
    ids: i64,
    dead: Vec<i64>,
}

impl<B: Bench> Pair<'_, B> {
    fn name(&mut self) -> Name {
        Name::of_key(&format!("k{}", self.random.below(6)))
    }

    /// Returns a few names, no two the same.
    fn names(&mut self) -> Vec<Name> {
        let mut names: Vec<Name> = (0..=self.random.below(3)).map(|_| self.name()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn tag(&mut self) -> Option<String> {
        let tag = self.random.below(3);
        (tag > 0).then(|| format!("t{tag}"))
    }

    fn moment(&mut self, now: StoreTime) -> Moment {
        if self.random.one_in(2) {
            return after(self.random.delay());
        }
        // Also in the past.
        let at = now.minus(Duration::from_secs(3)).plus(self.random.delay());
        Moment {
            at,
            after: Duration::ZERO,
            planned: Some(at),
        }
    }

    fn new_timer(&mut self, name: Name, now: StoreTime) -> NewTimer {
        self.ids += 1;
        let seconds = Duration::from_secs;
        NewTimer {
            name,
            id: self.ids,
            when: self.moment(now),
            max_wait: self.random.one_in(4).then(|| seconds(self.random.below(9))),
            expires_after: self.random.one_in(4).then(|| seconds(self.random.below(5))),
            tag: self.tag(),
            payload: vec![b'x'; self.random.below(40) as usize],
            keep: self.random.one_in(5),
        }
    }

    /// Compares answers of a batch, and notes what can be claimed.
    fn same<A: Debug + PartialEq>(&mut self, changed: [Changed<A>; 2]) {
        let [store, model] = changed;
        assert_eq!(store, model);
        self.changed([store.first, model.first]);
    }

    fn changed(&mut self, firsts: [Option<Place>; 2]) {
        for (cursor, first) in self.cursors.iter_mut().zip(firsts) {
            *cursor = first.map_or(*cursor, |first| first.min(*cursor));
        }
    }

    fn same_claims(&mut self, claims: [Claims; 2]) {
        let [mut store, mut model] = claims;
        store.rows.sort_by(|one, other| one.name.cmp(&other.name));
        model.rows.sort_by(|one, other| one.name.cmp(&other.name));
        assert_eq!(store.rows, model.rows);
        assert_eq!(store.expired, model.expired);
        assert_eq!(store.next, model.next);
        assert!(
            store.more || !model.more,
            "a store may be wrong that there is more"
        );
        self.claimed.extend(model.rows);
        let more = self.claimed.len().saturating_sub(12);
        self.claimed.drain(..more);
    }

    fn ack(&mut self, now: StoreTime) -> Option<Ack> {
        let count = self.claimed.len() as u64;
        if count == 0 {
            return None;
        }
        let at = self.random.below(count) as usize;
        let claimed = match self.random.one_in(6) {
            true => self.claimed[at].clone(),
            false => self.claimed.swap_remove(at),
        };
        let ending = match self.random.below(8) {
            0 | 1 => Ending::Done,
            2 => Ending::Retry(self.moment(now)),
            3 => Ending::Again(self.moment(now), b"again".to_vec()),
            4 | 5 => {
                self.dead.push(claimed.id);
                Ending::Dead("so it is".to_owned())
            }
            6 => Ending::GiveBack,
            _ => Ending::PutBack(Duration::from_secs(self.random.below(9))),
        };
        Some(Ack {
            name: claimed.name,
            token: claimed.token,
            ending,
        })
    }

    async fn step(&mut self) {
        match self.random.below(22) {
            0..=4 => self.schedule().await,
            5..=7 => self.cancel_or_touch().await,
            8..=11 => self.claim().await,
            12 | 13 => self.take_over_or_renew().await,
            14..=16 => self.acknowledge().await,
            17 => self.requeue().await,
            18 => self.bulk().await,
            19 => {
                let tag = self.tag();
                let until = self.random.one_in(2).then(|| after(self.random.delay()));
                let model = self.model.clone();
                both(
                    self.bench.store().pause(tag.clone(), until),
                    model.pause(tag, until),
                )
                .await;
            }
            _ => {
                let time = self.random.delay() / 2;
                self.bench.pass(time).await;
                self.clock.advance(time);
            }
        }
    }

    async fn schedule(&mut self) {
        let model = self.model.clone();
        let names = self.names().into_iter();
        let timers = names.map(|name| self.new_timer(name, model.time()));
        let timers: Vec<NewTimer> = timers.collect();
        let changed = both(
            self.bench.store().schedule(timers.clone(), false),
            model.schedule(timers, false),
        );
        let changed = changed.await;
        self.same(changed);
    }

    async fn cancel_or_touch(&mut self) {
        let store = self.bench.store();
        let model = self.model.clone();
        let names = self.names();
        if self.random.one_in(3) {
            let changed = both(store.cancel(names.clone()), model.cancel(names)).await;
            self.same::<Cancelled>(changed);
            return;
        }
        let moves = names
            .into_iter()
            .map(|name| (name, self.moment(model.time())));
        let moves: Vec<(Name, Moment)> = moves.collect();
        let changed = both(store.touch(moves.clone(), false), model.touch(moves, false)).await;
        self.same::<Touched>(changed);
    }

    async fn take_over_or_renew(&mut self) {
        let store = self.bench.store();
        let model = self.model.clone();
        if self.random.one_in(2) {
            let most = self.random.below(6) as u32;
            // All of a group: those with the same token are in no order.
            let limit = 1_000;
            let claims = both(
                store.take_over(most, limit, LEASE),
                model.take_over(most, limit, LEASE),
            );
            let claims = claims.await;
            self.changed([claims[0].next, claims[1].next]);
            self.same_claims(claims);
            return;
        }
        let Some(claimed) = self.claimed.last().cloned() else {
            return;
        };
        let renewal = Renewal {
            name: claimed.name,
            token: claimed.token - i64::from(self.random.one_in(4)),
            term: self.random.delay(),
        };
        let renewals = vec![renewal];
        let changed = both(store.renew(renewals.clone()), model.renew(renewals)).await;
        self.same(changed);
    }

    async fn acknowledge(&mut self) {
        let model = self.model.clone();
        let Some(ack) = self.ack(model.time()) else {
            return;
        };
        let acks = vec![ack];
        let store = self.bench.store();
        let changed = both(store.acknowledge(acks.clone()), model.acknowledge(acks)).await;
        self.same(changed);
    }

    async fn requeue(&mut self) {
        let model = self.model.clone();
        let at = self.random.below(1 + self.dead.len() as u64) as usize;
        let id = self.dead.get(at).copied().unwrap_or_default();
        let places = both(self.bench.store().requeue(id), model.requeue(id)).await;
        assert_eq!(places[0], places[1]);
        self.changed(places);
    }

    async fn claim(&mut self) {
        let mut wants = [everything(1 + self.random.below(4) as u32); 2];
        let anew = self.random.one_in(4);
        for (want, cursor) in wants.iter_mut().zip(self.cursors) {
            want.bytes = 1 + (self.random.0 % 90) as usize;
            if !anew {
                want.from = cursor;
            }
        }
        let model = self.model.clone();
        let claims = both(self.bench.store().claim(wants[0]), model.claim(wants[1])).await;
        self.cursors = [claims[0].from, claims[1].from];
        self.same_claims(claims);
    }

    async fn bulk(&mut self) {
        let now = self.model.time();
        let tag = self.tag();
        let named = tag.clone().unwrap_or_default();
        let bulk = match self.random.below(5) {
            0 => Bulk::Cancel(named),
            1 => Bulk::Touch(named, self.moment(now)),
            2 => Bulk::Release(tag),
            3 => Bulk::Requeue(tag, now),
            _ => Bulk::Delete(tag, now.minus(Duration::from_secs(5))),
        };
        let limit = 1 + self.random.below(3) as u32;
        let mut name = None;
        let model = self.model.clone();
        // As often as there can be rows.
        for _ in 0..20 {
            let steps = both(
                self.bench.store().bulk(bulk.clone(), name.clone(), limit),
                model.bulk(bulk.clone(), name, limit),
            );
            let [store, model] = steps.await;
            assert_eq!(
                (store.count, store.first),
                (model.count, model.first),
                "{bulk:?}"
            );
            self.changed([store.first, model.first]);
            name = model.more;
            if name.is_none() {
                return;
            }
        }
    }

    /// Compares all that can be seen from outside.
    async fn compare(&self) {
        let store = self.bench.store();
        let model = &self.model;
        for search in [
            Search::new(100),
            Search::new(2),
            Search::new(100).tag("t1"),
            Search::new(100).key_prefix("k1"),
            Search::new(100).running(true),
        ] {
            let listed = both(store.list(search.clone()), model.list(search.clone())).await;
            assert_eq!(listed[0], listed[1], "{search:?}");
            let dead = both(store.dead(search.clone()), model.dead(search.clone())).await;
            assert_eq!(dead[0], dead[1], "{search:?}");
        }
        let mut pauses = both(store.pauses(), model.pauses()).await;
        pauses.iter_mut().for_each(|pauses| pauses.sort());
        assert_eq!(pauses[0], pauses[1]);
        for number in 0..6 {
            let name = Name::of_key(&format!("k{number}"));
            let found = both(store.get(name.clone()), model.get(name)).await;
            assert_eq!(found[0], found[1]);
        }
        let below = Place::before(StoreTime::MAX);
        let looks = both(store.look(below), model.look(below)).await;
        assert_eq!(looks[0].left, looks[1].left);
    }
}

/// Asks both, and returns both answers.
async fn both<A>(
    store: impl Future<Output = Result<A, crate::Error>>,
    model: impl Future<Output = Result<A, crate::Error>>,
) -> [A; 2] {
    let store = store.await.expect("the store answers");
    [store, model.await.expect("the model answers")]
}

/// Drives a store beside the model through random calls. The clocks of both must show the same.
pub(crate) async fn beside_the_model(bench: &impl Bench, seed: u64, steps: usize) {
    bench.clear().await;
    let clock = ManualClock::new();
    let model = Memory::new(clock.clone());
    let shown = bench.store().now().await.expect("the store has a clock");
    clock.advance(shown.since(model.time()));
    let mut pair = Pair {
        bench,
        model,
        clock,
        random: Random(seed),
        cursors: [Place::before(StoreTime::MIN); 2],
        claimed: Vec::new(),
        ids: 0,
        dead: Vec::new(),
    };
    for step in 0..steps {
        pair.step().await;
        if step % 8 == 0 {
            pair.compare().await;
        }
    }
    pair.compare().await;
}
