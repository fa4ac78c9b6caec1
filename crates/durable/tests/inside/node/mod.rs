//! Nodes on a store that fails, in virtual time.

pub(crate) mod faulty;
mod fleet;

use crate::durable::{Durable, DurableBuilder};
use crate::entry::{Due, Entry, Error, Outcome, Search};
use crate::store::memory::{Memory, pass};
use crate::store::{Ending, Name};
use crate::sync::{Mutex, lock};
use faulty::{Fault, Faulty, refused};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::{ManualClock, Timer};

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

struct Rig {
    clock: ManualClock,
    timer: Timer,
    memory: Memory,
    fired: Arc<Mutex<Vec<String>>>,
}

impl Rig {
    fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .clock(clock.clone())
            .build()
            .expect("it is right");
        Rig {
            memory: Memory::new(clock.clone()),
            clock,
            timer,
            fired: Arc::default(),
        }
    }

    fn store(&self) -> Faulty {
        Faulty::new(&self.memory, &self.timer)
    }

    /// Starts a node, whose handler does what the payload says.
    async fn node(
        &self,
        store: &Faulty,
        set: impl FnOnce(DurableBuilder<Faulty>) -> DurableBuilder<Faulty>,
    ) -> Durable<Faulty> {
        let fired = Arc::clone(&self.fired);
        let timer = self.timer.clone();
        let handler = move |due: Due| {
            let fired = Arc::clone(&fired);
            let timer = timer.clone();
            async move {
                let key = due.key.clone().unwrap_or_default();
                lock(&fired).push(format!("{key}#{}", due.attempt));
                match due.payload.as_slice() {
                    b"dead" => return Outcome::Dead("no good".to_owned()),
                    b"slow" => drop(timer.sleep(seconds(20)).await),
                    b"asks" => {
                        while !due.is_lost() {
                            let _ = timer.sleep(Duration::from_millis(10)).await;
                        }
                        lock(&fired).push(format!("{key} is lost"));
                    }
                    _ => {}
                }
                Outcome::Done
            }
        };
        let node = set(DurableBuilder::new(store.clone()));
        let node = node.start(&self.timer, handler).await.expect("no fault");
        self.pass(Duration::from_millis(10)).await;
        node
    }

    async fn pass(&self, time: Duration) {
        pass(&self.clock, &self.timer, time).await;
    }

    fn fired(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.fired))
    }
}

fn now(key: &str, payload: &str) -> Entry {
    Entry::keyed(key, Duration::ZERO, payload)
}

/// Refuses the deaths of more timers than there are places, and at last their return as well.
#[tokio::test]
async fn outcomes_that_are_refused_hold_nobody_up() {
    for put_back_too in [false, true] {
        let rig = Rig::new();
        let store = rig.store();
        *lock(&store.refuses) = Some(Box::new(move |ack| match ack.ending {
            Ending::Dead(_) => Some(refused()),
            Ending::PutBack(_) => put_back_too.then(refused),
            _ => None,
        }));
        let node = rig.node(&store, |it| it.max_in_flight(10)).await;
        let bad = (0..50).map(|n| now(&format!("bad {n}"), "dead"));
        let good = (0..200).map(|n| now(&format!("good {n}"), "x"));
        let mut entries: Vec<Entry> = bad.chain(good).collect();
        entries.sort_by_key(|it| it.key.as_ref().map(|key| key.len()));
        node.schedule_many(entries).await.expect("no fault");
        rig.pass(seconds(2)).await;
        assert_eq!(node.stats().done, 200, "{:?}", node.stats());
        rig.pass(seconds(2)).await;
        // One place of ten tries ten times: the others are free.
        assert!(node.stats().in_flight <= 1, "{:?}", node.stats());
        assert!(node.stats().refused >= 49);
        rig.fired();
        if put_back_too {
            rig.pass(seconds(30)).await;
            assert!(!rig.fired().is_empty(), "they are taken over");
            continue;
        }
        rig.pass(seconds(12)).await;
        assert_eq!((node.stats().refused, node.stats().in_flight), (50, 0));
        *lock(&store.refuses) = None;
        rig.pass(seconds(3_610)).await;
        let fired = rig.fired();
        assert_eq!(fired.len(), 50);
        assert!(fired.iter().all(|it| it.ends_with("#2")));
        assert_eq!(node.stats().dead, 50);
    }
}

/// Lets the first call for each outcome fail, as at the end of an outage.
#[tokio::test]
async fn an_outcome_that_meets_an_outage_is_not_refused() {
    let rig = Rig::new();
    let store = rig.store();
    let met = Mutex::new(HashSet::new());
    *lock(&store.refuses) = Some(Box::new(move |ack| {
        let is_first = lock(&met).insert(ack.name.clone());
        is_first.then(|| Error::unavailable("unreachable"))
    }));
    let node = rig.node(&store, |it| it.max_in_flight(10)).await;
    for key in ["a", "b"] {
        node.schedule(now(key, "x")).await.expect("no fault");
        rig.pass(Duration::from_millis(50)).await;
    }
    rig.pass(seconds(5)).await;
    assert_eq!((node.stats().done, node.stats().refused), (2, 0));
}

/// Lets each statement fail in each way.
#[tokio::test]
async fn a_failure_of_each_statement_loses_nothing() {
    let late = Fault::Late(seconds(4));
    let faults = [
        Fault::Refused,
        Fault::Unreachable,
        Fault::Lost,
        Fault::LostAnswer,
        late,
    ];
    for operation in ["claim", "take_over", "look", "renew", "acknowledge"] {
        for fault in faults {
            let rig = Rig::new();
            let store = rig.store();
            let dead = rig.node(&store, |it| it).await;
            dead.schedule(now("left", "slow")).await.expect("no fault");
            rig.pass(seconds(1)).await;
            drop(dead);
            let node = rig.node(&store, |it| it).await;
            store.inject(operation, fault, 3);
            for key in ["a", "b", "slow"] {
                node.schedule(now(key, key)).await.expect("no fault");
            }
            rig.pass(seconds(300)).await;
            let told = format!("{operation} {fault:?}");
            assert!(lock(&store.faults)[operation].len() < 3, "{told}");
            assert!(rig.memory.is_empty(), "{told}: {:?}", rig.fired());
            let mut fired = rig.fired();
            fired.sort();
            fired.dedup_by_key(|it| it.split('#').next().map(str::to_owned));
            assert_eq!(fired.len(), 4, "{told}: {fired:?}");
            assert!(node.stats().errors > 0 || fault == late, "{told}");
        }
    }
}

/// A lost answer of a claim is a crash at worst; one that is late is given back, and counts
/// nothing.
#[tokio::test]
async fn a_late_claim_is_given_back_and_the_next_ones_ask_for_less() {
    let rig = Rig::new();
    let store = rig.store();
    let node = rig.node(&store, |it| it.lease(seconds(2))).await;
    store.inject("claim", Fault::Late(Duration::from_millis(1_500)), 3);
    let entries = (0..100).map(|n| now(&format!("{n}"), "x"));
    node.schedule_many(entries.collect())
        .await
        .expect("no fault");
    rig.pass(Duration::from_millis(1_400)).await;
    assert_eq!((rig.fired().len(), node.claims_share(1_000)), (0, 1_000));
    rig.pass(seconds(3)).await;
    assert_eq!((rig.fired().len(), node.claims_share(1_000)), (0, 250));
    rig.pass(Duration::from_millis(300)).await;
    let fired = rig.fired();
    assert_eq!((fired.len(), node.claims_share(1_000)), (100, 250));
    assert!(fired.iter().all(|it| it.ends_with("#1")), "{fired:?}");
    for key in ["a", "b"] {
        node.schedule(now(key, "x")).await.expect("no fault");
        rig.pass(seconds(3)).await;
    }
    let stats = node.stats();
    assert_eq!((stats.taken_over, stats.done), (0, 102));
    assert_eq!(node.claims_share(1_000), 1_000);
}

#[tokio::test]
async fn a_handler_is_told_that_its_claim_is_lost_and_its_outcome_changes_nothing() {
    let rig = Rig::new();
    let cut_off = rig.store();
    let first = rig.node(&cut_off, |it| it).await;
    first.schedule(now("a", "asks")).await.expect("no fault");
    rig.pass(Duration::from_millis(100)).await;
    let second = rig.node(&rig.store(), |it| it).await;
    cut_off.inject("renew", Fault::Unreachable, 100);
    cut_off.inject("acknowledge", Fault::Unreachable, 10);
    rig.pass(Duration::from_millis(4_800)).await;
    assert_eq!(rig.fired(), ["a#1"]);
    rig.pass(seconds(3)).await;
    assert_eq!(rig.fired(), ["a is lost", "a#1"]);
    rig.pass(seconds(3)).await;
    assert_eq!(
        (first.stats().claims_lost, second.stats().claims_lost),
        (1, 0)
    );
    assert_eq!((first.stats().done, second.stats().in_flight), (0, 1));
}

/// Has a node take its own claim over, which ran out as nobody could renew it.
#[tokio::test]
async fn a_node_that_takes_its_own_timer_over_waits_for_its_handler() {
    for drains in [false, true] {
        let rig = Rig::new();
        let store = rig.store();
        let node = rig.node(&store, |it| it).await;
        let told = format!("drains: {drains}");
        node.schedule(now("a", "slow")).await.expect("no fault");
        rig.pass(Duration::from_millis(100)).await;
        // A refusal is an answer: the node is not cut off, and may take over.
        store.inject("renew", Fault::Refused, 6);
        rig.pass(seconds(14)).await;
        assert_eq!(node.stats().taken_over, 1, "{told}");
        assert_eq!(rig.fired(), ["a#1"], "{told}");
        if !drains {
            rig.pass(seconds(28)).await;
            assert_eq!(rig.fired(), ["a#1"]);
            assert!(rig.memory.is_empty());
            assert_eq!(node.stats().claims_lost, 0, "nobody else has taken it");
            continue;
        }
        let drained = tokio::spawn(async move { node.drain().await });
        rig.pass(seconds(7)).await;
        assert!(drained.is_finished());
        // It was given back, so that nobody waits for its lease.
        let _other = rig.node(&rig.store(), |it| it).await;
        rig.pass(Duration::from_millis(100)).await;
        assert_eq!(rig.fired(), ["a#1"]);
    }
}

#[tokio::test]
async fn a_claim_that_cannot_be_renewed_holds_no_other_one_up() {
    let rig = Rig::new();
    let store = rig.store();
    let node = rig.node(&store, |it| it).await;
    *lock(&store.spoilt) = Some(Name::of_key("7"));
    let entries = (0..20).map(|n| now(&n.to_string(), "asks"));
    node.schedule_many(entries.collect())
        .await
        .expect("no fault");
    rig.pass(seconds(1)).await;
    assert_eq!(rig.fired().len(), 20);
    rig.pass(seconds(9)).await;
    assert_eq!(rig.fired(), ["7 is lost"]);
}

/// As where many schedule one key again and again: each of them has it locked for a moment.
#[tokio::test]
async fn a_claim_whose_row_is_locked_most_of_the_time_is_renewed() {
    let rig = Rig::new();
    let store = rig.store();
    let node = rig.node(&store, |it| it).await;
    node.schedule(now("a", "asks")).await.expect("no fault");
    rig.pass(Duration::from_millis(100)).await;
    for _ in 0..150 {
        lock(&store.locked).push(Name::of_key("a"));
        rig.pass(Duration::from_millis(370)).await;
        lock(&store.locked).clear();
        rig.pass(Duration::from_millis(30)).await;
    }
    assert_eq!(rig.fired(), ["a#1"]);
    assert_eq!(node.stats().taken_over, 0);
}

/// Starts two nodes, of which the first one has had a slow timer for six seconds.
async fn two_with_a_slow_timer(rig: &Rig) -> ([Faulty; 2], [Durable<Faulty>; 2]) {
    let stores = [rig.store(), rig.store()];
    let nodes = [
        rig.node(&stores[0], |it| it).await,
        rig.node(&stores[1], |it| it).await,
    ];
    nodes[0].schedule(now("a", "slow")).await.expect("no fault");
    rig.pass(seconds(6)).await;
    (stores, nodes)
}

/// After an outage the living renew their claims before anybody takes them over.
#[tokio::test]
async fn nobody_takes_over_what_could_not_be_renewed_in_an_outage() {
    let rig = Rig::new();
    let (stores, nodes) = two_with_a_slow_timer(&rig).await;
    for store in &stores {
        *lock(&store.draw) = Some(Box::new(move |_| Some(Fault::Unreachable)));
    }
    rig.pass(seconds(12)).await;
    stores.iter().for_each(|store| *lock(&store.draw) = None);
    rig.pass(seconds(20)).await;
    assert_eq!(rig.fired(), ["a#1"]);
    assert!(rig.memory.is_empty());
    assert!(nodes.iter().all(|node| node.stats().claims_lost == 0));
}

/// Behind a pooler calls fail once, and then hang until the end of the outage. Seen to fail: that
/// time counted as one without failures.
#[tokio::test]
async fn nobody_takes_over_just_after_calls_have_hung() {
    let rig = Rig::new();
    let (stores, nodes) = two_with_a_slow_timer(&rig).await;
    // The other node is answered first.
    for (store, kept) in stores.iter().zip([14, 12]) {
        let mut has_failed = false;
        *lock(&store.draw) = Some(Box::new(move |_| {
            let fails = !std::mem::replace(&mut has_failed, true);
            Some(match fails {
                true => Fault::Unreachable,
                false => Fault::Kept(seconds(kept)),
            })
        }));
    }
    rig.pass(seconds(12)).await;
    stores.iter().for_each(|store| *lock(&store.draw) = None);
    rig.pass(seconds(30)).await;
    assert_eq!(rig.fired(), ["a#1"]);
    assert!(nodes.iter().all(|node| node.stats().claims_lost == 0));
}

#[tokio::test]
async fn locked_rows_are_tried_again_for_five_seconds_and_hold_no_batch_up() {
    let rig = Rig::new();
    let store = rig.store();
    let node = rig.node(&store, |it| it).await;
    lock(&store.locked).push(Name::of_key("a"));
    let calls = ["a", "b"].map(|key| {
        let node = node.clone();
        tokio::spawn(async move { node.schedule(now(key, "x")).await })
    });
    rig.pass(seconds(1)).await;
    assert_eq!(rig.fired(), ["b#1"]);
    rig.pass(seconds(5)).await;
    let [a, b] = calls;
    assert!(matches!(
        a.await.expect("no panic"),
        Err(Error::Unavailable(_))
    ));
    assert!(b.await.expect("no panic").is_ok());
    lock(&store.locked).clear();
    node.schedule_many(vec![now("a", "x"), now("c", "x")])
        .await
        .expect("no fault");
    lock(&store.locked).push(Name::of_key("a"));
    rig.pass(seconds(4)).await;
    assert_eq!(
        (rig.fired().len(), node.stats().done, node.stats().in_flight),
        (2, 2, 1)
    );
    lock(&store.locked).clear();
    rig.pass(seconds(2)).await;
    assert_eq!((node.stats().done, rig.memory.len()), (3, 0));
}

#[tokio::test]
async fn one_call_that_is_refused_refuses_no_other_of_its_batch() {
    let rig = Rig::new();
    let store = rig.store();
    let node = rig.node(&store, |it| it).await;
    store.inject("schedule", Fault::Refused, 4);
    let calls: Vec<_> = (0..8)
        .map(|n| {
            let node = node.clone();
            tokio::spawn(async move { node.schedule(now(&format!("{n}"), "x")).await })
        })
        .collect();
    rig.pass(seconds(1)).await;
    let mut refused = 0;
    for call in calls {
        refused += usize::from(call.await.expect("no panic").is_err());
    }
    // Of eight, four, two, and then one.
    assert_eq!((refused, rig.fired().len()), (1, 7));
    assert_eq!(store.calls("schedule"), 7);
}

/// Each answer takes longer than a call may wait, so that batches become small.
#[tokio::test]
async fn no_call_waits_for_all_those_before_it_while_the_store_hangs() {
    let rig = Rig::new();
    let store = rig.store();
    let node = rig.node(&store, |it| it).await;
    *lock(&store.draw) = Some(Box::new(|operation| {
        (operation == "schedule").then_some(Fault::Late(seconds(5)))
    }));
    let mut calls = Vec::new();
    for number in 0..1_200 {
        let node = node.clone();
        let clock = rig.timer.clone();
        calls.push(tokio::spawn(async move {
            let asked = clock.now();
            let _ = node.schedule(now(&number.to_string(), "x")).await; // It may fail.
            clock.now() - asked
        }));
        rig.pass(Duration::from_millis(50)).await;
    }
    rig.pass(seconds(11)).await;
    let mut longest = Duration::ZERO;
    for call in calls {
        assert!(call.is_finished(), "after {longest:?}");
        longest = longest.max(call.await.expect("no panic"));
    }
    assert!(longest > seconds(4) && longest < seconds(11), "{longest:?}");
}

/// A reason is cut to what a store takes.
#[tokio::test]
async fn a_reason_is_cut_and_has_no_zero_byte() {
    let rig = Rig::new();
    let handler = |_| async { Outcome::Dead(format!("\0{}", "\u{e9}".repeat(1 << 20))) };
    let node = Durable::memory(rig.memory.clone())
        .start(&rig.timer, handler)
        .await;
    let node = node.expect("no fault");
    node.schedule(now("a", "x")).await.expect("no fault");
    rig.pass(seconds(1)).await;
    let dead = node.dead(Search::new(1)).await.expect("no fault");
    assert_eq!(dead[0].reason, "\u{e9}".repeat(4 << 10));
}

impl Durable<Faulty> {
    fn claims_share(&self, all: usize) -> usize {
        self.node().claims.of(all)
    }
}
