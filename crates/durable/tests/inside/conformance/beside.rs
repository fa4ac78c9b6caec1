//! Random calls to a store, beside the plain model and a ledger.

use super::ledger::Ledger;
use super::{Bench, LEASE, Random, after, everything};
use crate::entry::{Error, Scheduled, Search, Touched};
use crate::store::memory::Memory;
use crate::store::{
    Ack, Bulk, Changed, Claimed, Claims, Ending, Name, NewTimer, Operations, Place, Renewal, Want,
};
use crate::when::{Moment, StoreTime};
use std::fmt::Debug;
use std::time::Duration;
use tickwheel::ManualClock;

/// A store and the model, side by side.
struct Pair<'a, B> {
    bench: &'a B,
    model: Memory,
    clock: ManualClock,
    /// Of the store.
    ledger: Ledger,
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
        // So that no two timers have the same.
        let mut payload = self.ids.to_string().into_bytes();
        payload.resize(payload.len() + self.random.below(40) as usize, b'x');
        NewTimer {
            name,
            id: self.ids,
            when: self.moment(now),
            max_wait: self.random.one_in(4).then(|| seconds(self.random.below(9))),
            expires_after: self.random.one_in(4).then(|| seconds(self.random.below(5))),
            tag: self.tag(),
            payload,
            keep: self.random.one_in(5),
        }
    }

    /// Compares answers of a batch, and notes what can be claimed; returns the store's answers.
    fn same<A: Debug + PartialEq>(&mut self, changed: [Changed<A>; 2]) -> Vec<A> {
        let [store, model] = changed;
        assert_eq!(store, model);
        self.note([store.first, model.first]);
        let answers = store.answers.into_iter();
        answers.map(|it| it.expect("no row is locked")).collect()
    }

    fn note(&mut self, firsts: [Option<Place>; 2]) {
        for (cursor, first) in self.cursors.iter_mut().zip(firsts) {
            *cursor = first.map_or(*cursor, |first| first.min(*cursor));
        }
    }

    async fn same_claims(&mut self, claims: [Claims; 2], is_takeover: bool) {
        let [mut store, mut model] = claims;
        self.ledger.begin(&store, is_takeover, LEASE);
        store.rows.sort_by(|one, other| one.name.cmp(&other.name));
        model.rows.sort_by(|one, other| one.name.cmp(&other.name));
        assert_eq!(store.rows, model.rows);
        assert_eq!(store.now, model.now);
        assert_eq!(store.expired, model.expired);
        assert_eq!(store.next, model.next);
        assert!(
            store.more || !model.more,
            "a store may be wrong that there is more"
        );
        self.claimed.extend(model.rows);
        let more = self.claimed.len().saturating_sub(12);
        self.claimed.drain(..more);
        self.settle().await;
    }

    /// Compares the store's lists with the ledger.
    async fn settle(&mut self) {
        let store = self.bench.store();
        let listed = store.list(Search::new(1_000)).await;
        let dead = store.dead(Search::new(1_000)).await;
        let now = self.model.time();
        self.ledger.settle(
            &listed.expect("the store lists"),
            &dead.expect("the store lists"),
            now,
        );
    }

    async fn pass(&mut self, time: Duration) {
        self.bench.pass(time).await;
        self.clock.advance(time);
    }

    async fn step(&mut self) {
        match self.random.below(22) {
            0..=4 => self.schedule().await,
            5..=7 => self.cancel_or_touch().await,
            8..=11 => self.claim().await,
            12 => {
                let most = self.random.below(6) as u32;
                self.take_over(most).await;
            }
            13 => self.renew().await,
            14..=16 => self.acknowledge().await,
            17 => self.requeue().await,
            18 => self.bulk().await,
            19 => {
                let tag = self.tag();
                let until = self.random.one_in(2).then(|| self.random.delay());
                self.pause(tag, until).await;
            }
            _ => {
                let time = self.time();
                self.pass(time).await;
            }
        }
    }

    /// Returns for how long nothing is called.
    fn time(&mut self) -> Duration {
        // Whole microseconds, so that both clocks show the same.
        let some = Duration::from_micros(self.random.delay().as_micros() as u64 / 2);
        if self.random.one_in(2) {
            return some;
        }
        // Up to a moment at which something changes, or a little less.
        let now = self.model.time();
        let mut edges = self.ledger.edges();
        edges.retain(|edge| *edge > now);
        let at = self.random.below(1 + edges.len() as u64) as usize;
        let less = Duration::from_micros(self.random.below(4));
        edges
            .get(at)
            .map_or(some, |edge| edge.minus(less).since(now))
    }

    async fn schedule(&mut self) {
        let now = self.model.time();
        let names = self.names().into_iter();
        let timers = names.map(|name| self.new_timer(name, now));
        let timers: Vec<NewTimer> = timers.collect();
        let changed = both(
            self.bench.store().schedule(timers.clone(), false),
            self.model.schedule(timers.clone(), false),
        );
        let changed = changed.await;
        let first = changed[0].first;
        let mut written = Vec::new();
        for (timer, answer) in timers.into_iter().zip(self.same(changed)) {
            if answer != Scheduled::Kept {
                written.push(timer.name.clone());
            }
            self.ledger.schedule(timer, answer, now);
        }
        assert_eq!(first, self.ledger.first(&written));
    }

    async fn cancel_or_touch(&mut self) {
        let store = self.bench.store();
        let now = self.model.time();
        let names = self.names();
        if self.random.one_in(3) {
            let model = self.model.cancel(names.clone());
            let changed = both(store.cancel(names.clone()), model).await;
            for (name, answer) in names.iter().zip(self.same(changed)) {
                self.ledger.cancel(name, &answer);
            }
            return;
        }
        let moves = names.into_iter().map(|name| (name, self.moment(now)));
        let moves: Vec<(Name, Moment)> = moves.collect();
        let model = self.model.touch(moves.clone(), false);
        let changed = both(store.touch(moves.clone(), false), model).await;
        let first = changed[0].first;
        let mut moved = Vec::new();
        for ((name, moment), answer) in moves.into_iter().zip(self.same(changed)) {
            self.ledger.touch(&name, &moment, answer, now);
            if answer == Touched::Moved {
                moved.push(name);
            }
        }
        assert_eq!(first, self.ledger.first(&moved));
    }

    async fn claim(&mut self) {
        let mut wants = [everything(0); 2];
        // Which of the rows before one that is too long are put off is each store's own affair.
        let pauses = self.model.pauses().await.expect("the model has pauses");
        let bytes = match pauses.is_empty() {
            true => 1 + self.random.below(90) as usize,
            false => usize::MAX,
        };
        let limit = self.random.below(5) as u32;
        // No node asks for nothing at all.
        let holds = u32::from(limit == 0) + self.random.below(4) as u32;
        let anew = self.random.one_in(4);
        for (want, cursor) in wants.iter_mut().zip(self.cursors) {
            want.limit = limit;
            want.holds = holds;
            want.bytes = bytes;
            if !anew {
                want.from = cursor;
            }
        }
        self.claim_these(wants).await;
    }

    async fn claim_these(&mut self, [want, models]: [Want; 2]) {
        // So that the clock alone says what a token is: on a clock that stands still the model
        // counts on from the greatest token of all names, a database from that of the row.
        self.pass(Duration::from_micros(1)).await;
        let claims = both(self.bench.store().claim(want), self.model.claim(models)).await;
        if want.limit > 0 {
            self.cursors = [claims[0].from, claims[1].from];
        }
        let listed = self.bench.store().list(Search::new(1_000)).await;
        let listed = listed.expect("the store lists");
        self.ledger.compare_claim(&want, &claims[0], &listed);
        self.same_claims(claims, false).await;
        let looks = both(self.bench.store().look(), self.model.look()).await;
        assert_eq!(looks[0].held, looks[1].held);
        if looks[0].held {
            // What was passed over lies before the cursors.
            self.note(looks.map(|look| look.first));
        }
    }

    async fn take_over(&mut self, most: u32) {
        self.pass(Duration::from_micros(1)).await;
        // All of a group: those with the same token are in no order.
        let limit = 1_000;
        let claims = both(
            self.bench.store().take_over(most, limit, LEASE),
            self.model.take_over(most, limit, LEASE),
        );
        let claims = claims.await;
        self.note([claims[0].next, claims[1].next]);
        self.same_claims(claims, true).await;
    }

    async fn renew(&mut self) {
        let now = self.model.time();
        let mut renewals: Vec<Renewal> = Vec::new();
        for claimed in self.claimed.iter().rev().take(3) {
            if renewals.iter().all(|other| other.name != claimed.name) {
                renewals.push(Renewal {
                    name: claimed.name.clone(),
                    token: claimed.token - i64::from(self.random.one_in(4)),
                    term: self.random.delay(),
                });
            }
        }
        if renewals.is_empty() {
            return;
        }
        let changed = both(
            self.bench.store().renew(renewals.clone()),
            self.model.renew(renewals.clone()),
        );
        let changed = changed.await;
        for (renewal, answer) in renewals.iter().zip(self.same(changed)) {
            self.ledger.renew(renewal, answer, now);
        }
    }

    fn ack(&mut self) -> Option<Ack> {
        let now = self.model.time();
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

    async fn acknowledge(&mut self) {
        let mut acks: Vec<Ack> = Vec::new();
        for _ in 0..=self.random.below(3) {
            let ack = self.ack();
            acks.extend(ack.filter(|ack| acks.iter().all(|other| other.name != ack.name)));
        }
        self.end(acks).await;
    }

    async fn end(&mut self, acks: Vec<Ack>) {
        if acks.is_empty() {
            return; // No node asks for nothing.
        }
        let now = self.model.time();
        let changed = both(
            self.bench.store().acknowledge(acks.clone()),
            self.model.acknowledge(acks.clone()),
        );
        let changed = changed.await;
        for (ack, answer) in acks.iter().zip(self.same(changed)) {
            self.ledger.end(ack, answer, now);
        }
    }

    async fn requeue(&mut self) {
        let at = self.random.below(1 + self.dead.len() as u64) as usize;
        let id = self.dead.get(at).copied().unwrap_or_default();
        let one = || Bulk::RequeueOne(id);
        let bulk = self.bench.store().bulk(one(), None, 1);
        let steps = both(bulk, self.model.bulk(one(), None, 1)).await;
        let places = steps.map(|step| step.first);
        assert_eq!(places[0], places[1]);
        self.note(places);
        self.ledger.requeue(id, places[0], self.model.time());
    }

    async fn pause(&mut self, tag: Option<String>, time: Option<Duration>) {
        let paused = both(
            self.bench.store().pause(tag.clone(), time.map(after)),
            self.model.pause(tag.clone(), time.map(after)),
        );
        paused.await;
        let now = self.model.time();
        self.ledger.pause(tag, time.map(|time| now.plus(time)));
    }

    async fn bulk(&mut self) {
        let now = self.model.time();
        let tag = self.tag();
        let named = tag.clone().unwrap_or_default();
        let bulk = match self.random.below(5) {
            0 => Bulk::Cancel(named),
            1 => Bulk::Touch(named, self.moment(now)),
            2 => Bulk::Release(tag),
            3 => Bulk::Requeue(tag),
            _ => Bulk::Delete(tag),
        };
        let limit = 1 + self.random.below(3) as u32;
        self.change(bulk, limit).await;
    }

    /// Makes a change to many, in steps.
    async fn change(&mut self, bulk: Bulk, limit: u32) {
        let mut count = 0;
        let mut name = None;
        loop {
            let steps = both(
                self.bench.store().bulk(bulk.clone(), name.clone(), limit),
                self.model.bulk(bulk.clone(), name, limit),
            );
            let [store, model] = steps.await;
            let found = (store.count, store.first);
            assert_eq!(found, (model.count, model.first), "{bulk:?}");
            self.note([store.first, model.first]);
            count += store.count;
            name = model.more;
            if name.is_none() {
                break;
            }
        }
        self.ledger.bulk(&bulk, count, self.model.time());
    }

    /// Ends all pauses, and runs all timers to their ends: none is lost.
    async fn drain(&mut self) {
        for tag in [None, Some("t1".to_owned()), Some("t2".to_owned())] {
            self.pause(tag, None).await;
        }
        self.change(Bulk::Release(None), 1_000).await;
        for _ in 0..50 {
            if self.ledger.is_over() {
                return;
            }
            self.pass(Duration::from_secs(30)).await;
            self.claimed.clear();
            self.take_over(u32::MAX).await;
            self.claim_these([everything(1_000); 2]).await;
            let acks = self.claimed.drain(..).map(|claimed| Ack {
                name: claimed.name,
                token: claimed.token,
                ending: Ending::Done,
            });
            let acks = acks.collect();
            self.end(acks).await;
        }
        panic!("timers do not end: {:?}", self.ledger);
    }

    /// Compares all that can be seen from outside.
    async fn compare(&mut self) {
        self.settle().await;
        let store = self.bench.store();
        let model = &self.model;
        for search in [
            Search::new(100),
            Search::new(2),
            Search::new(100).tag("t1"),
            Search::new(100).key_prefix("k1"),
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
        let looks = both(store.look(), model.look()).await;
        assert_eq!(looks[0].lapsed, looks[1].lapsed);
        assert_eq!(looks[0].first, looks[1].first);
        assert_eq!(looks[0].lapsed, self.ledger.has_lapsed(model.time()));
    }
}

/// Asks both, and returns both answers.
async fn both<A>(
    store: impl Future<Output = Result<A, Error>>,
    model: impl Future<Output = Result<A, Error>>,
) -> [A; 2] {
    let store = store.await.expect("the store answers");
    [store, model.await.expect("the model answers")]
}

/// Drives a store beside the model through random calls. The clocks of both must show the same.
pub(crate) async fn beside_the_model(bench: &impl Bench, seed: u64, steps: usize) {
    // Shown if the test fails.
    println!("seed {seed}");
    bench.clear().await;
    let clock = ManualClock::new();
    let model = Memory::new(clock.clone());
    let shown = bench
        .store()
        .look()
        .await
        .expect("the store has a clock")
        .now;
    clock.advance(shown.since(model.time()));
    let mut pair = Pair {
        bench,
        model,
        clock,
        ledger: Ledger::default(),
        random: Random::new(seed),
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
    pair.drain().await;
}
