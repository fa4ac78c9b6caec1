//! What every store must do: the table of states, cell by cell, and random calls beside the plain
//! model.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod beside;

use crate::entry::{Cancelled, Scheduled, Search};
use crate::store::{Ack, Changed, Claims, Ending, Name, NewTimer, Operations, Place, Want};
use crate::when::{Moment, StoreTime};
use std::fmt::Debug;
use std::time::Duration;

/// A store whose clock a test sets. The clock begins where the store in memory's does, and each
/// microsecond passes only by [`pass`](Self::pass).
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
