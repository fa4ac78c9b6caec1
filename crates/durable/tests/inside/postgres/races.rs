//! A change of the row that is committed between a statement's snapshot and its lock: the statement
//! acts as if it came before that, or after it, or says that the row was locked.

use super::{Set, open};
use crate::entry::Search;
use crate::store::conformance::{Bench, everything};
use crate::store::memory::Memory;
use crate::store::{Ack, Bulk, Ending, Name, NewTimer, Operations, Renewal, Want};
use crate::when::Moment;
use std::time::Duration;
use tickwheel::ManualClock;
use tokio_postgres::Client;

const LEASE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
enum Call {
    Schedule { after: u64, keep: bool },
    Cancel,
    Touch(u64),
    Claim,
    TakeOver,
    Renew,
    End(Ending),
    Bulk(Bulk),
    Requeue,
    Pass(u64),
}
use Call::{Cancel, Claim, End, Pass, Renew, Requeue, Schedule, TakeOver, Touch};

const NOW: Call = Schedule {
    after: 0,
    keep: false,
};

fn later(seconds: u64) -> Moment {
    Moment {
        after: Duration::from_secs(seconds),
        ..Moment::default()
    }
}

/// Calls with the key `a`, whose claim has this token; returns what was answered.
async fn call<S: Operations>(store: &S, call: &Call, id: i64, token: &mut i64) -> String {
    let name = Name::of_key("a");
    let names = (name.clone(), *token);
    match call.clone() {
        Schedule { after, keep } => {
            let timer = NewTimer {
                name,
                id,
                when: later(after),
                max_wait: None,
                expires_after: None,
                tag: Some("t".to_owned()),
                payload: id.to_string().into_bytes(),
                keep,
            };
            format!("{:?}", store.schedule(vec![timer], true).await)
        }
        Cancel => format!("{:?}", store.cancel(vec![name]).await),
        Touch(after) => format!("{:?}", store.touch(vec![(name, later(after))], true).await),
        Claim => {
            let want = Want {
                bytes: 1_000,
                lease: LEASE,
                ..everything(10)
            };
            let claims = store.claim(want).await.unwrap();
            *token = claims.rows.first().map_or(*token, |row| row.token);
            // A row that was passed over is met again by its next look.
            format!("{:?}", claims.rows)
        }
        TakeOver => {
            let claims = store.take_over(9, 10, LEASE).await.unwrap();
            format!("{:?}", claims.rows)
        }
        Renew => {
            let (name, token) = names;
            let term = LEASE * 2;
            format!(
                "{:?}",
                store.renew(vec![Renewal { name, token, term }]).await
            )
        }
        End(ending) => {
            let (name, token) = names;
            format!(
                "{:?}",
                store
                    .acknowledge(vec![Ack {
                        name,
                        token,
                        ending
                    }])
                    .await
            )
        }
        Call::Bulk(bulk) => format!("{:?}", store.bulk(bulk, None, 10).await.unwrap().count),
        Requeue => {
            let step = store.bulk(Bulk::RequeueOne(1), None, 1).await;
            format!("{:?}", step.unwrap().first)
        }
        Pass(_) => String::new(),
    }
}

async fn state<S: Operations>(store: &S) -> String {
    let all = || Search::new(10);
    format!(
        "{:?} {:?}",
        store.list(all()).await,
        store.dead(all()).await
    )
}

/// The plain model after these calls: what the last one of `told` answered, and the state.
async fn model(begin: &[Call], then: &[Call], told: usize) -> (String, String) {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone());
    let mut answers = Vec::new();
    let mut token = 1;
    for (number, one) in begin.iter().enumerate() {
        if let Pass(time) = one {
            clock.advance(Duration::from_millis(*time));
        }
        call(&memory, one, number as i64 + 1, &mut token).await;
    }
    for (number, one) in then.iter().enumerate() {
        let mut known = token;
        // The stalled statement's own timer has the same id, whenever it comes.
        let id = if number == told {
            200
        } else {
            100 + number as i64
        };
        answers.push(call(&memory, one, id, &mut known).await);
    }
    (answers.swap_remove(told), state(&memory).await)
}

fn begins() -> Vec<Vec<Call>> {
    let dies = End(Ending::Dead("why".to_owned()));
    vec![
        vec![],
        vec![NOW],
        vec![Schedule {
            after: 5,
            keep: false,
        }],
        vec![NOW, Claim],
        vec![NOW, Claim, Cancel],
        vec![NOW, Claim, NOW],
        vec![NOW, Claim, NOW, Cancel],
        vec![NOW, Claim, Pass(2_000)],
        vec![NOW, Claim, Cancel, Pass(2_000)],
        vec![NOW, Claim, NOW, Pass(2_000)],
        vec![NOW, Claim, dies],
    ]
}

fn changes() -> Vec<Vec<Call>> {
    let ends = |ending| vec![End(ending)];
    vec![
        vec![NOW],
        vec![Cancel],
        vec![Touch(9)],
        vec![Touch(0)],
        vec![Claim],
        vec![TakeOver],
        vec![Renew],
        ends(Ending::Done),
        ends(Ending::Retry(later(0))),
        ends(Ending::Dead("so".to_owned())),
        vec![End(Ending::Done), NOW],
        vec![Cancel, NOW],
        vec![Requeue],
    ]
}

fn statements() -> Vec<Call> {
    let tag = || Some("t".to_owned());
    vec![
        Schedule {
            after: 7,
            keep: false,
        },
        Schedule {
            after: 7,
            keep: true,
        },
        Cancel,
        Touch(3),
        Claim,
        TakeOver,
        Renew,
        End(Ending::Done),
        End(Ending::Retry(later(3))),
        End(Ending::Again(later(3), b"again".to_vec())),
        End(Ending::Dead("dead".to_owned())),
        End(Ending::GiveBack),
        Call::Bulk(Bulk::Cancel("t".to_owned())),
        Call::Bulk(Bulk::Touch("t".to_owned(), later(3))),
        Call::Bulk(Bulk::Requeue(tag())),
        Call::Bulk(Bulk::Delete(None)),
        Requeue,
    ]
}

async fn stalls(client: &Client) {
    let sql = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted";
    while client.query(sql, &[]).await.unwrap().is_empty() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_between_snapshot_and_lock_is_seen() {
    let set = Set::start().await;
    let stalled = open(&set.server, "stalled").await;
    let mut wrong = Vec::new();
    let mut seen = 0;
    for begin in begins() {
        for change in changes() {
            for statement in statements() {
                set.begin_anew().await;
                let mut token = 1;
                for (number, one) in begin.iter().enumerate() {
                    if let Pass(time) = one {
                        set.pass(Duration::from_millis(*time)).await;
                    }
                    call(&set.postgres, one, number as i64 + 1, &mut token).await;
                }
                set.client
                    .batch_execute("SELECT pg_advisory_lock(7)")
                    .await
                    .unwrap();
                let mut known = token;
                let answer = call(&stalled, &statement, 200, &mut known);
                let meanwhile = async {
                    stalls(&set.client).await;
                    for (number, one) in change.iter().enumerate() {
                        let mut known = token;
                        call(&set.postgres, one, 100 + number as i64, &mut known).await;
                    }
                    let sql = "SELECT pg_advisory_unlock(7)";
                    set.client.batch_execute(sql).await.unwrap();
                };
                let (answer, ()) = tokio::join!(answer, meanwhile);
                let found = (answer, state(&set.postgres).await);
                let after: Vec<Call> = change.iter().chain([&statement]).cloned().collect();
                let before: Vec<Call> = [&statement].into_iter().chain(&change).cloned().collect();
                let last = change.len();
                let mut right = vec![model(&begin, &after, last).await];
                // The numbers of the timers are those of the calls, wherever the statement stands.
                let first = model_first(&begin, &before).await;
                right.push(first);
                seen += 1;
                if right.contains(&found) || is_nothing(&begin, &change, &found).await {
                    continue;
                }
                wrong.push(format!(
                    "{begin:?} + {change:?} | {statement:?}:\n found {found:?}\n right {right:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {seen}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// The model where the statement comes first: the changes have their own numbers.
async fn model_first(begin: &[Call], then: &[Call]) -> (String, String) {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone());
    let mut token = 1;
    for (number, one) in begin.iter().enumerate() {
        if let Pass(time) = one {
            clock.advance(Duration::from_millis(*time));
        }
        call(&memory, one, number as i64 + 1, &mut token).await;
    }
    let mut known = token;
    let answer = call(&memory, &then[0], 200, &mut known).await;
    for (number, one) in then[1..].iter().enumerate() {
        let mut known = token;
        call(&memory, one, 100 + number as i64, &mut known).await;
    }
    (answer, state(&memory).await)
}

/// Whether the statement has passed the row over, and said so.
async fn is_nothing(begin: &[Call], change: &[Call], found: &(String, String)) -> bool {
    let passes = ["[None]", "[]", "0", "None"];
    let has_passed = passes.iter().any(|nothing| {
        found.0 == *nothing || found.0.ends_with(&format!("answers: {nothing} }})"))
    });
    let mut calls = change.to_vec();
    calls.push(Pass(0));
    has_passed && model(begin, &calls, change.len()).await.1 == found.1
}
