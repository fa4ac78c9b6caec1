//! What every store must do: the table of states, cell by cell, and random calls beside the plain
//! model.

use crate::entry::{Cancelled, Scheduled, Search, Touched};
use crate::store::memory::Memory;
use crate::store::{
    Ack, Bulk, Changed, Claimed, Claims, Ending, Name, NewTimer, Operations, Place, Renewal, Want,
};
use crate::when::{Moment, StoreTime};
use std::fmt::Debug;
use std::time::Duration;
use tickwheel::ManualClock;

/// A store whose clock a test sets. The clock begins where [`Memory`]'s does, and each microsecond
/// passes only by [`pass`](Self::pass).
pub(crate) trait Bench {
    type Store: Operations;

    fn store(&self) -> &Self::Store;

    async fn pass(&self, time: Duration);

    /// Deletes all rows and pauses.
    async fn clear(&self);

    /// Reads the row of a name: its state in the words of `states.md`, without regard to dead ones.
    async fn state(&self, name: &Name) -> &'static str;
}

const LEASE: Duration = Duration::from_secs(5);
/// When timers of the table are due.
const SOON: Duration = Duration::from_secs(10);
/// Beyond all due times and terms of the table.
const LATER: Duration = Duration::from_secs(20);

fn after(delay: Duration) -> Moment {
    Moment {
        after: delay,
        ..Moment::default()
    }
}

fn timer(name: &Name, id: i64, delay: Duration) -> NewTimer {
    NewTimer {
        name: name.clone(),
        id,
        when: after(delay),
        max_wait: None,
        expires_after: None,
        tag: None,
        payload: id.to_string().into_bytes(),
        keep: false,
    }
}

fn everything(limit: u32) -> Want {
    Want {
        from: Place::before(StoreTime::MIN),
        limit,
        bytes: usize::MAX,
        lease: LEASE,
    }
}

/// One row on its way through a cell of the table.
struct Cell<'a, B> {
    bench: &'a B,
    name: Name,
    token: i64,
    id: i64,
    expires: bool,
}

impl<B: Bench> Cell<'_, B> {
    async fn schedule(&mut self, delay: Duration, change: impl FnOnce(&mut NewTimer)) -> Scheduled {
        self.id += 1;
        let mut timer = timer(&self.name, self.id, delay);
        timer.expires_after = self.expires.then_some(Duration::from_secs(1));
        change(&mut timer);
        let changed = self.bench.store().schedule(vec![timer], false).await;
        one(changed.expect("the store schedules"))
    }

    async fn cancel(&self) -> Cancelled {
        let changed = self.bench.store().cancel(vec![self.name.clone()]).await;
        one(changed.expect("the store cancels"))
    }

    /// Claims what is due; returns whether the row was among that.
    async fn claim(&mut self) -> bool {
        let claims = self.bench.store().claim(everything(100)).await;
        self.note(claims.expect("the store claims"))
    }

    async fn take_over(&mut self) -> bool {
        let claims = self.bench.store().take_over(100, 100, LEASE).await;
        self.note(claims.expect("the store takes over"))
    }

    fn note(&mut self, claims: Claims) -> bool {
        let own = claims.rows.iter().find(|row| row.name == self.name);
        self.token = own.map_or(self.token, |row| row.token);
        own.is_some()
    }

    async fn end(&self, ending: Ending) -> bool {
        let ack = Ack {
            name: self.name.clone(),
            token: self.token,
            ending,
        };
        let changed = self.bench.store().acknowledge(vec![ack]).await;
        one(changed.expect("the store acknowledges"))
    }

    /// Brings the row into a state.
    async fn reach(&mut self, state: &str) {
        match state {
            "none" => return,
            "free" => {
                self.schedule(SOON, |_| ()).await;
                return;
            }
            _ => {
                self.schedule(Duration::ZERO, |_| ()).await;
                assert!(self.claim().await);
            }
        }
        match state {
            "free, marked" => {
                assert_eq!(self.cancel().await, Cancelled::Running);
                assert!(self.end(Ending::GiveBack).await);
            }
            "claimed" => {}
            "claimed, marked" => assert_eq!(self.cancel().await, Cancelled::Running),
            "claimed, next" => {
                self.schedule(SOON, |_| ()).await;
            }
            "claimed, replaced" => {
                self.schedule(SOON, |_| ()).await;
                let payload = self.id.to_string().into_bytes();
                assert_eq!(self.cancel().await, Cancelled::Cancelled(payload));
            }
            "dead" => assert!(self.end(Ending::Dead("so it is".to_owned())).await),
            state => panic!("an unknown state: {state}"),
        }
    }

    /// Makes a call, and returns the answer in the words of the table.
    async fn call(&mut self, call: &str) -> String {
        let told = |answer: &dyn Debug| format!("{answer:?}");
        let run = |runs| if runs { "run" } else { "-" }.to_owned();
        let ended = |ended| if ended { "ended" } else { "fenced" }.to_owned();
        match call {
            "schedule" => told(&self.schedule(SOON, |_| ()).await),
            "keep" => told(&self.schedule(SOON, |timer| timer.keep = true).await),
            "debounce" => {
                let wait = Some(Duration::from_secs(60));
                told(&self.schedule(SOON, |timer| timer.max_wait = wait).await)
            }
            "touch" => {
                let moves = vec![(self.name.clone(), after(SOON))];
                let changed = self.bench.store().touch(moves, false).await;
                told(&one(changed.expect("the store moves")))
            }
            "cancel" => match self.cancel().await {
                Cancelled::Cancelled(_) => "Cancelled".to_owned(),
                answer => told(&answer),
            },
            "claim" => {
                self.bench.pass(SOON).await;
                run(self.claim().await)
            }
            "claim ran out" => {
                self.bench.pass(LEASE).await;
                run(self.take_over().await)
            }
            "expired, claim" => {
                self.bench.pass(LATER).await;
                run(self.claim().await)
            }
            "expired, ran out" => {
                self.bench.pass(LATER).await;
                run(self.take_over().await)
            }
            "paused, claim" => {
                let until = Some(after(Duration::from_secs(3_600)));
                let paused = self.bench.store().pause(None, until).await;
                paused.expect("the store pauses");
                self.bench.pass(LATER).await;
                run(self.claim().await)
            }
            "done" => ended(self.end(Ending::Done).await),
            "retry" => ended(self.end(Ending::Retry(after(SOON))).await),
            "again" => ended(
                self.end(Ending::Again(after(SOON), b"again".to_vec()))
                    .await,
            ),
            "death" => ended(self.end(Ending::Dead("so it is".to_owned())).await),
            "given back" => ended(self.end(Ending::GiveBack).await),
            "put back" => ended(self.end(Ending::PutBack(SOON)).await),
            "requeue" => {
                let place = self.bench.store().requeue(self.id).await;
                told(&place.expect("the store requeues").is_some())
            }
            call => panic!("an unknown call: {call}"),
        }
    }

    /// Returns the state after a call, in the words of the table.
    async fn state(&self) -> String {
        let dead = self.bench.store().dead(Search::new(10)).await;
        let is_dead = !dead.expect("the store lists").is_empty();
        match (is_dead, self.bench.state(&self.name).await) {
            (false, state) => state.to_owned(),
            (true, "none") => "dead".to_owned(),
            (true, state) => format!("dead, {state}"),
        }
    }
}

fn one<A>(changed: Changed<A>) -> A {
    let answer = changed.answers.into_iter().next().flatten();
    answer.expect("nobody has locked the row")
}

/// Drives a store through each cell of the table.
pub(crate) async fn table(bench: &impl Bench) {
    let mut calls = Vec::new();
    let mut driven = 0;
    for line in include_str!("states.md").lines() {
        let Some(line) = line.strip_prefix("| ") else {
            continue;
        };
        let cells = line.trim_end_matches('|').split('|').map(str::trim);
        let cells: Vec<&str> = cells.collect();
        if cells[0] == "state" {
            calls = cells[1..].to_vec();
            continue;
        }
        if calls == ["what it means"] {
            continue;
        }
        for (call, wanted) in calls.iter().zip(&cells[1..]) {
            bench.clear().await;
            let mut cell = Cell {
                bench,
                name: Name::of_key("key"),
                token: 1,
                id: 0,
                expires: call.starts_with("expired"),
            };
            cell.reach(cells[0]).await;
            let answer = cell.call(call).await;
            let found = format!("{}: {answer}", cell.state().await);
            assert_eq!(found, *wanted, "{call} where the row is {}", cells[0]);
            driven += 1;
        }
    }
    assert_eq!(driven, 8 * (5 + 8 + 4));
}

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
        let store = self.bench.store();
        let model = self.model.clone();
        let now = model.time();
        match self.random.below(22) {
            0..=4 => {
                let names = self.names().into_iter();
                let timers = names.map(|name| self.new_timer(name, now));
                let timers: Vec<NewTimer> = timers.collect();
                let changed = both(
                    store.schedule(timers.clone(), false),
                    model.schedule(timers, false),
                );
                let changed = changed.await;
                self.same(changed);
            }
            5 => {
                let names = self.names();
                let changed = both(store.cancel(names.clone()), model.cancel(names)).await;
                self.same::<Cancelled>(changed);
            }
            6 | 7 => {
                let names = self.names().into_iter();
                let moves = names.map(|name| (name, self.moment(now)));
                let moves: Vec<(Name, Moment)> = moves.collect();
                let changed = both(store.touch(moves.clone(), false), model.touch(moves, false));
                let changed = changed.await;
                self.same::<Touched>(changed);
            }
            8..=11 => self.claim().await,
            12 => {
                let most = self.random.below(6) as u32;
                let limit = 1 + self.random.below(4) as u32;
                let claims = both(
                    store.take_over(most, limit, LEASE),
                    model.take_over(most, limit, LEASE),
                );
                let claims = claims.await;
                self.changed([claims[0].next, claims[1].next]);
                self.same_claims(claims);
            }
            13 => {
                let Some(claimed) = self.claimed.last().cloned() else {
                    return;
                };
                let renewal = Renewal {
                    name: claimed.name,
                    token: claimed.token - i64::from(self.random.one_in(4)),
                    term: self.random.delay(),
                };
                let changed = both(
                    store.renew(vec![renewal.clone()]),
                    model.renew(vec![renewal]),
                );
                let changed = changed.await;
                self.same(changed);
            }
            14..=16 => {
                let Some(ack) = self.ack(now) else { return };
                let acks = vec![ack];
                let changed = both(store.acknowledge(acks.clone()), model.acknowledge(acks)).await;
                self.same(changed);
            }
            17 => {
                let at = self.random.below(1 + self.dead.len() as u64) as usize;
                let id = self.dead.get(at).copied().unwrap_or_default();
                let places = both(store.requeue(id), model.requeue(id)).await;
                assert_eq!(places[0], places[1]);
                self.changed(places);
            }
            18 => self.bulk(now).await,
            19 => {
                let tag = self.tag();
                let until = self.random.one_in(2).then(|| after(self.random.delay()));
                both(store.pause(tag.clone(), until), model.pause(tag, until)).await;
            }
            _ => {
                let time = self.random.delay() / 2;
                self.bench.pass(time).await;
                self.clock.advance(time);
            }
        }
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

    async fn bulk(&mut self, now: StoreTime) {
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
