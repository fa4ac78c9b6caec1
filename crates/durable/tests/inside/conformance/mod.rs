//! What every store must do: the table of states, cell by cell; crashes in groups; and random calls
//! beside the plain model, with a ledger of each timer's life.

pub(crate) mod beside;
mod ledger;

use crate::entry::{Cancelled, Scheduled, Search};
use crate::store::states::{Row, State, Then};
use crate::store::{Ack, Bulk, Changed, Claims, Ending, Name, NewTimer, Operations, Place, Want};
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

/// A store whose rows somebody else can lock.
#[cfg(feature = "postgres")]
pub(crate) trait Locks: Bench {
    /// Locks a row, as a transaction does that has not ended.
    async fn lock(&self, name: &Name);

    /// Ends that transaction, without a change.
    async fn unlock(&self);
}

const LEASE: Duration = Duration::from_secs(5);
/// When timers of the table are due.
const SOON: Duration = Duration::from_secs(10);
/// Beyond all due times and terms of the table.
const LATER: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn after(delay: Duration) -> Moment {
    Moment {
        after: delay,
        ..Moment::default()
    }
}

/// Returns the seeds of random tests: as many as `TICKWHEEL_SEEDS` says, otherwise `count`.
pub(crate) fn seeds(count: u64) -> std::ops::RangeInclusive<u64> {
    let wanted = std::env::var("TICKWHEEL_SEEDS").ok();
    1..=wanted.and_then(|it| it.parse().ok()).unwrap_or(count)
}

/// Numbers that look random, the same for each seed: those of a [`ManualClock`], of which nobody
/// asks the time.
pub(crate) struct Random(ManualClock);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(ManualClock::seeded(seed))
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.0.random() % end
    }

    fn one_in(&self, end: u64) -> bool {
        self.below(end) == 0
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.below(8) * self.below(1_500_000))
    }
}

pub(crate) fn timer(name: &Name, id: i64, delay: Duration) -> NewTimer {
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

pub(crate) fn everything(limit: u32) -> Want {
    Want {
        from: Place::before(StoreTime::MIN),
        limit,
        holds: 100,
        bytes: usize::MAX,
        lease: LEASE,
    }
}

/// Returns what a batch answered for a row, in the words of the table.
fn told<A: Debug>(answer: Option<A>) -> String {
    answer.map_or("locked".to_owned(), |answer| format!("{answer:?}"))
}

/// One row on its way through a cell of the table.
struct Cell<'a, B> {
    bench: &'a B,
    name: Name,
    token: i64,
    id: i64,
    expires: bool,
}

impl<'a, B: Bench> Cell<'a, B> {
    fn new(bench: &'a B, call: &str) -> Self {
        Cell {
            bench,
            name: Name::of_key("key"),
            token: 1,
            id: 0,
            expires: call.starts_with("expired"),
        }
    }

    async fn schedule(
        &mut self,
        delay: Duration,
        change: impl FnOnce(&mut NewTimer),
    ) -> Option<Scheduled> {
        self.id += 1;
        let mut timer = timer(&self.name, self.id, delay);
        timer.expires_after = self.expires.then_some(Duration::from_secs(1));
        change(&mut timer);
        let changed = self.bench.store().schedule(vec![timer], false).await;
        one(changed.expect("the store schedules"))
    }

    async fn cancel(&self) -> Option<Cancelled> {
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

    async fn end(&self, ending: Ending) -> Option<bool> {
        let ack = Ack {
            name: self.name.clone(),
            token: self.token,
            ending,
        };
        let changed = self.bench.store().acknowledge(vec![ack]).await;
        one(changed.expect("the store acknowledges"))
    }

    async fn pause(&self, until: Option<Moment>) {
        let paused = self.bench.store().pause(None, until).await;
        paused.expect("the store pauses");
    }

    /// Brings the row into a state.
    async fn reach(&mut self, state: &str) {
        match state {
            "none" => {}
            "free" => drop(self.schedule(SOON, |_| ()).await),
            _ => {
                self.schedule(Duration::ZERO, |_| ()).await;
                assert!(self.claim().await);
            }
        }
        match state {
            "none" | "free" | "claimed" => {}
            "claimed, marked" => drop(self.cancel().await),
            "free, marked" => {
                self.cancel().await;
                self.end(Ending::GiveBack).await;
            }
            "claimed, next" => drop(self.schedule(SOON, |_| ()).await),
            "claimed, replaced" => {
                self.schedule(SOON, |_| ()).await;
                let payload = self.id.to_string().into_bytes();
                let answer = self.cancel().await;
                assert_eq!(answer, Some(Cancelled::Cancelled(payload)));
            }
            "dead" => drop(self.end(Ending::Dead("so it is".to_owned())).await),
            state => panic!("an unknown state: {state}"),
        }
        assert_eq!(self.state().await, state);
    }

    /// Makes a call, and returns the answer in the words of the table.
    async fn call(&mut self, call: &str) -> String {
        match call {
            "schedule" => told(self.schedule(SOON, |_| ()).await),
            "keep" => told(self.schedule(SOON, |timer| timer.keep = true).await),
            "debounce" => {
                let wait = Some(Duration::from_secs(60));
                told(self.schedule(SOON, |timer| timer.max_wait = wait).await)
            }
            "touch" => {
                let moves = vec![(self.name.clone(), after(SOON))];
                let changed = self.bench.store().touch(moves, false).await;
                told(one(changed.expect("the store moves")))
            }
            "cancel" => match self.cancel().await {
                Some(Cancelled::Cancelled(_)) => "Cancelled".to_owned(),
                answer => told(answer),
            },
            "claim" => self.claim_after(SOON).await,
            "expired, claim" => self.claim_after(LATER).await,
            "claim ran out" => self.take_over_after(LEASE).await,
            "expired, ran out" => self.take_over_after(LATER).await,
            "paused, claim" => {
                self.pause(Some(after(HOUR))).await;
                self.claim_after(LATER).await
            }
            "resumed" => self.resume().await,
            "requeue" => {
                let one = Bulk::RequeueOne(self.id);
                let step = self.bench.store().bulk(one, None, 1).await;
                (step.expect("the store requeues").count == 1).to_string()
            }
            call => self.end_by(call).await,
        }
    }

    async fn claim_after(&mut self, time: Duration) -> String {
        self.bench.pass(time).await;
        if self.claim().await { "run" } else { "-" }.to_owned()
    }

    async fn take_over_after(&mut self, time: Duration) -> String {
        self.bench.pass(time).await;
        if self.take_over().await { "run" } else { "-" }.to_owned()
    }

    /// Pauses, has a claim put the row off, and ends the pause.
    async fn resume(&mut self) -> String {
        self.pause(Some(after(HOUR))).await;
        self.claim_after(LATER).await;
        self.pause(None).await;
        let step = self
            .bench
            .store()
            .bulk(Bulk::Release(None), None, 100)
            .await;
        match step.expect("the store releases").count {
            0 => "-".to_owned(),
            1 => "released".to_owned(),
            count => panic!("one row, and {count} are released"),
        }
    }

    async fn end_by(&self, call: &str) -> String {
        let ending = match call {
            "done" => Ending::Done,
            "retry" => Ending::Retry(after(SOON)),
            "again" => Ending::Again(after(SOON), b"again".to_vec()),
            "death" => Ending::Dead("so it is".to_owned()),
            "given back" => Ending::GiveBack,
            "put back" => Ending::PutBack(SOON),
            call => panic!("an unknown call: {call}"),
        };
        match self.end(ending).await {
            Some(true) => "ended".to_owned(),
            Some(false) => "fenced".to_owned(),
            None => "locked".to_owned(),
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

fn one<A>(changed: Changed<A>) -> Option<A> {
    changed.answers.into_iter().next().flatten()
}

/// Returns the cells of the table: the state before, the call, and what comes of it.
fn cells() -> Vec<[&'static str; 3]> {
    let mut all = Vec::new();
    let mut calls = Vec::new();
    for line in include_str!("../../../src/store/states.md").lines() {
        let Some(line) = line.strip_prefix("| ") else {
            continue;
        };
        let cells = line.trim_end_matches('|').split('|').map(str::trim);
        let cells: Vec<&str> = cells.collect();
        match (cells[0], &calls[..]) {
            ("state", _) => calls = cells[1..].to_vec(),
            (_, ["what it means"]) => {}
            (state, _) => {
                assert_eq!(calls.len(), cells.len() - 1, "{line}");
                let row = calls.iter().zip(&cells[1..]);
                all.extend(row.map(|(call, wanted)| [state, *call, *wanted]));
            }
        }
    }
    assert_eq!(all.len(), 8 * (5 + 8 + 5));
    all
}

/// Drives a store through each cell of the table.
pub(crate) async fn table(bench: &impl Bench) {
    for [state, call, wanted] in cells() {
        bench.clear().await;
        let mut cell = Cell::new(bench, call);
        cell.reach(state).await;
        let answer = cell.call(call).await;
        let found = format!("{}: {answer}", cell.state().await);
        assert_eq!(found, wanted, "{call} where the row is {state}");
    }
}

/// Drives a store through the cells of the table in which the key has a row, while somebody has
/// locked that row: nothing changes, and a batch says so.
#[cfg(feature = "postgres")]
pub(crate) async fn locked(bench: &impl Locks) {
    let has_row = |cell: &[&str; 3]| !["none", "dead"].contains(&cell[0]);
    for [state, call, _] in cells().into_iter().filter(has_row) {
        bench.clear().await;
        let mut cell = Cell::new(bench, call);
        cell.reach(state).await;
        bench.lock(&cell.name).await;
        let answer = cell.call(call).await;
        let after = cell.state().await;
        bench.unlock().await;
        let wanted = match call {
            "claim" | "claim ran out" | "paused, claim" | "resumed" => "-",
            "expired, claim" | "expired, ran out" => "-",
            "requeue" => "false",
            _ => "locked",
        };
        let found = (&*after, &*answer);
        assert_eq!(found, (state, wanted), "{call} where the row is locked");
    }
}

/// Has a store take over what has crashed together, in groups that get smaller with each crash.
pub(crate) async fn groups(bench: &impl Bench) {
    bench.clear().await;
    let store = bench.store();
    let timers = (0..25).map(|id| timer(&Name::of_key(&id.to_string()), id, Duration::ZERO));
    let scheduled = store.schedule(timers.collect(), false).await;
    scheduled.expect("the store schedules");
    let claims = store.claim(everything(100)).await;
    assert_eq!(claims.expect("the store claims").rows.len(), 25);
    // How many crashes at most, and the limit; how many rows then, their crashes and attempts.
    for (number, takeovers) in [
        vec![(0, 20, 20, 1, 1), (0, 20, 5, 1, 1), (9, 20, 0, 0, 0)],
        vec![(0, 20, 0, 0, 0), (1, 20, 2, 2, 1), (9, 11, 2, 2, 1)],
        // Those with the fewest crashes come first: by now 21 with one, and 4 with two.
        vec![(9, 300, 21, 2, 1), (9, 300, 3, 3, 1), (9, 300, 1, 3, 1)],
        // A timer that has crashed alone begins another attempt.
        vec![(9, 9_999, 21, 3, 1), (2, 9_999, 0, 0, 0), (3, 1, 1, 4, 2)],
    ]
    .into_iter()
    .enumerate()
    {
        bench.pass(LEASE).await;
        for (most, limit, count, crashes, attempts) in takeovers {
            let claims = store.take_over(most, limit, LEASE).await;
            let claims = claims.expect("the store takes over");
            assert_eq!(claims.rows.len(), count, "{number}: {most}, {limit}");
            for row in claims.rows {
                assert_eq!((row.crashes, row.attempts), (crashes, attempts), "{number}");
            }
        }
    }
}

impl Row {
    /// Returns the row's state, as the table of states calls it.
    pub(super) fn state(&self) -> &'static str {
        match &self.state {
            State::Free if self.timer.marked => "free, marked",
            State::Free => "free",
            State::Claimed { then, .. } => match then {
                Then::Outcome if self.timer.marked => "claimed, marked",
                Then::Outcome => "claimed",
                Then::Next(_) => "claimed, next",
                Then::Nothing => "claimed, replaced",
            },
            State::Dead { .. } => "dead",
        }
    }
}
