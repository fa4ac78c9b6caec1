//! A node on a store in memory, in virtual time.

use crate::{Rig, seconds};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tickwheel_durable::store::memory::Memory;
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, Outcome, Scheduled, Search, Touched, When,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

#[tokio::test]
async fn a_timer_fires_at_its_time_and_once() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    assert_eq!(
        node.schedule(Entry::keyed("a", seconds(90), "x"))
            .await
            .unwrap(),
        Scheduled::New
    );
    rig.pass(Duration::from_millis(89_990)).await;
    assert_eq!(rig.fired(), Vec::<String>::new(), "early");
    rig.pass(Duration::from_millis(50)).await;
    assert_eq!(rig.fired(), ["a=x#1"]);
    rig.pass(seconds(700)).await;
    assert!(rig.fired().is_empty(), "twice");
    assert!(rig.store.is_empty());
}

#[tokio::test]
async fn a_later_schedule_replaces_and_a_cancel_is_certain() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("a", seconds(5), "old"))
        .await
        .unwrap();
    let again = Entry::keyed("a", seconds(10), "new");
    assert_eq!(node.schedule(again).await.unwrap(), Scheduled::Replaced);
    node.schedule(Entry::keyed("b", seconds(5), "y"))
        .await
        .unwrap();
    assert_eq!(
        node.cancel("b").await.unwrap(),
        Cancelled::Cancelled(b"y".to_vec())
    );
    assert_eq!(node.cancel("b").await.unwrap(), Cancelled::Unknown);
    rig.pass(seconds(9)).await;
    assert!(rig.fired().is_empty());
    rig.pass(seconds(2)).await;
    assert_eq!(rig.fired(), ["a=new#1"]);
}

#[tokio::test]
async fn a_touch_moves_both_ways_and_a_running_timer_stays() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    for (key, at) in [("later", 5), ("earlier", 3_000), ("slow", 1)] {
        node.schedule(Entry::keyed(key, seconds(at), "x"))
            .await
            .unwrap();
    }
    assert_eq!(
        node.touch("later", seconds(20)).await.unwrap(),
        Touched::Moved
    );
    assert_eq!(
        node.touch("earlier", seconds(2)).await.unwrap(),
        Touched::Moved
    );
    assert_eq!(
        node.touch("none", seconds(2)).await.unwrap(),
        Touched::Unknown
    );
    rig.pass(seconds(4)).await;
    assert_eq!(rig.fired(), ["slow=x#1", "earlier=x#1"]);
    assert_eq!(node.cancel("slow").await.unwrap(), Cancelled::Running);
    assert_eq!(
        node.touch("slow", seconds(9)).await.unwrap(),
        Touched::Running
    );
    assert!(node.get("slow").await.unwrap().unwrap().running);
    rig.pass(seconds(17)).await;
    assert_eq!(rig.fired(), ["later=x#1"]);
}

#[tokio::test]
async fn a_cancel_ends_what_is_running_with_that_run() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    for (key, payload) in [
        ("slow a", "again"),
        ("slow b", "retry"),
        ("slow c", "again"),
    ] {
        node.schedule(Entry::keyed(key, seconds(1), payload))
            .await
            .unwrap();
    }
    rig.pass(seconds(2)).await;
    assert_eq!(rig.fired().len(), 3);
    for key in ["slow a", "slow b", "slow c"] {
        assert_eq!(node.cancel(key).await.unwrap(), Cancelled::Running);
    }
    let anew = Entry::keyed("slow c", seconds(20), "anew");
    assert_eq!(node.schedule(anew).await.unwrap(), Scheduled::Replaced);
    rig.pass(seconds(60)).await;
    assert_eq!(rig.fired(), ["slow c=anew#1"]);
    assert!(rig.store.is_empty());
}

#[tokio::test]
async fn outcomes_say_what_becomes_of_a_timer() {
    let rig = Rig::new().await;
    let node = rig
        .node(|options| options.max_attempts(3).retry_after(seconds(1)))
        .await;
    for (key, payload) in [
        ("twice", "again"),
        ("bad", "retry"),
        ("worse", "panic"),
        ("x", "dead"),
    ] {
        node.schedule(Entry::keyed(key, Duration::ZERO, payload))
            .await
            .unwrap();
    }
    rig.pass(seconds(60)).await;
    let mut fired = rig.fired();
    fired.sort();
    let expected = [
        "bad=retry#1",
        "bad=retry#2",
        "bad=retry#3",
        "twice=again#1",
        "twice=last#1",
    ];
    assert_eq!(fired[..5], expected);
    assert_eq!(
        fired[5..],
        [
            "worse=panic#1",
            "worse=panic#2",
            "worse=panic#3",
            "x=dead#1"
        ]
    );
    let mut dead = node.dead(Search::new(10)).await.unwrap();
    dead.sort_by(|a, b| a.key.cmp(&b.key));
    let reasons: Vec<&str> = dead.iter().map(|dead| dead.reason.as_str()).collect();
    assert_eq!(
        (reasons[0], reasons[2]),
        ("3 attempts failed: not now", "no good")
    );
    assert!(reasons[1] == "3 attempts failed: it panicked: as it should");
    assert!(node.requeue(dead[2].id).await.unwrap());
    assert!(!node.requeue(dead[2].id).await.unwrap());
    rig.pass(seconds(2)).await;
    assert_eq!(rig.fired(), ["x=dead#1"]);
}

/// Each attempt is a while after the last, twice as long each time and up to a quarter longer.
#[tokio::test]
async fn what_fails_or_takes_too_long_is_tried_again_after_a_while() {
    let rig = Rig::new().await;
    let node = rig.node(|options| {
        options
            .max_attempts(3)
            .retry_after(seconds(4))
            .time_limit(seconds(3))
    });
    let node = node.await;
    let entries = ["fails", "slow"].map(|key| Entry::keyed(key, seconds(1), "fail").tag("some"));
    let fine = Entry::keyed("fine", seconds(1), "x");
    node.schedule_many(entries.into_iter().chain([fine]).collect())
        .await
        .unwrap();
    let first = rig.now() + seconds(1);
    for (attempt, wait, rest) in [(1, 2, 2), (2, 4, 4), (3, 8, 40)] {
        rig.pass(seconds(wait)).await;
        let mut fired = rig.fired();
        fired.retain(|fired| fired.starts_with("fails"));
        assert_eq!(fired, [format!("fails=fail#{attempt}")]);
        rig.pass(seconds(rest)).await;
    }
    let mut dead = node.dead(Search::new(10)).await.unwrap();
    dead.sort_by(|a, b| a.key.cmp(&b.key));
    let reasons: Vec<&str> = dead.iter().map(|dead| dead.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "3 attempts failed: no luck",
            "3 attempts failed: it took longer than 3s"
        ]
    );
    for (dead, least) in dead.iter().zip([12, 12 + 3 * 3]) {
        let died = SystemTime::from(dead.died);
        let tag = dead.tag.as_deref();
        assert!(died >= first + seconds(least), "{least}");
        assert!(died < first + seconds(least + least / 4 + 2) && tag == Some("some"));
    }
    assert_eq!(
        (node.stats().done, node.stats().panicked, rig.store.len()),
        (1, 0, dead.len())
    );
}

/// A slow handler's key takes one place, however often it is scheduled again.
#[tokio::test]
async fn a_key_that_is_scheduled_under_its_slow_handler_takes_one_place() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options.max_in_flight(2)).await;
    node.schedule(Entry::keyed("slow", Duration::ZERO, "0"))
        .await
        .unwrap();
    rig.pass(Duration::from_millis(50)).await;
    for n in 1..1_000 {
        let again = Entry::keyed("slow", Duration::ZERO, format!("{n}"));
        assert_eq!(node.schedule(again).await.unwrap(), Scheduled::Replaced);
        rig.pass(Duration::from_millis(4)).await;
    }
    assert_eq!((node.stats().in_flight, rig.store.len()), (1, 1));
    node.schedule(Entry::keyed("other", Duration::ZERO, "x"))
        .await
        .unwrap();
    rig.pass(Duration::from_millis(20)).await;
    assert_eq!(rig.fired(), ["slow=0#1", "other=x#1"]);
    rig.pass(seconds(1)).await;
    assert_eq!(
        rig.fired(),
        ["slow=999#1"],
        "the last one, when the first has ended"
    );
    node.schedule(Entry::keyed("slow", Duration::ZERO, "x"))
        .await
        .unwrap();
    let waiting = Cancelled::Cancelled(b"x".to_vec());
    assert_eq!(node.cancel("slow").await.unwrap(), waiting);
    rig.pass(seconds(20)).await;
    assert!(rig.fired().is_empty());
    assert!(rig.store.is_empty());
}

#[tokio::test]
async fn a_key_is_in_one_handler_at_a_time() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("slow", Duration::ZERO, "first"))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    // It runs; scheduled anew it waits until that has ended.
    let again = node
        .schedule(Entry::keyed("slow", Duration::ZERO, "second"))
        .await
        .unwrap();
    assert_eq!(again, Scheduled::Replaced);
    rig.pass(seconds(3)).await;
    assert_eq!(rig.fired(), ["slow=first#1"]);
    rig.pass(seconds(10)).await;
    assert_eq!(rig.fired(), ["slow=second#1"]);
}

#[tokio::test]
async fn calls_on_one_key_that_are_made_at_once_are_answered() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let entry = |payload| Entry::keyed("a", seconds(100), payload);
    let calls = async move {
        let (first, second) = tokio::join!(
            node.schedule(entry("first")),
            node.schedule(entry("second"))
        );
        assert_eq!(
            (first.unwrap(), second.unwrap()),
            (Scheduled::New, Scheduled::Replaced)
        );
        let (first, second) =
            tokio::join!(node.touch("a", seconds(200)), node.touch("a", seconds(300)));
        assert_eq!(
            (first.unwrap(), second.unwrap()),
            (Touched::Moved, Touched::Moved)
        );
        let (first, second) = tokio::join!(node.cancel("a"), node.cancel("a"));
        assert_eq!(first.unwrap(), Cancelled::Cancelled(b"second".to_vec()));
        assert_eq!(second.unwrap(), Cancelled::Unknown);
    };
    let calls = tokio::spawn(calls);
    rig.pass(seconds(1)).await;
    assert!(calls.is_finished(), "one waits");
    calls.await.unwrap();
}

#[tokio::test]
async fn tags_and_bad_names() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let now = rig.now();
    let due = |seconds: u64| When::At(now + Duration::from_secs(seconds));
    let entries = (0..2_500).map(|n| Entry::unkeyed(due(100 + n / 500), "x").tag("t"));
    node.schedule_many(entries.collect()).await.unwrap();
    node.schedule(Entry::unkeyed(due(101), "x")).await.unwrap();
    assert_eq!(node.cancel_tag("t").await.unwrap(), 2_500);
    assert_eq!(rig.store.len(), 1);
    for name in ["a\0b".to_owned(), "x".repeat(513)] {
        assert!(matches!(node.cancel(&name).await, Err(Error::BadName(_))));
        let entry = Entry::unkeyed(due(1), "x").tag(name);
        assert!(matches!(node.schedule(entry).await, Err(Error::BadName(_))));
    }
    let long = Entry::unkeyed(due(1), vec![0; (1 << 20) + 1]);
    assert!(matches!(
        node.schedule(long).await,
        Err(Error::PayloadTooLong(_))
    ));
    let far = Entry::keyed("far", Duration::MAX, "x");
    assert_eq!(node.schedule(far).await.unwrap(), Scheduled::New);
    let twice = ["1", "2", "3"]
        .map(|n| Entry::keyed("k", due(1), n))
        .to_vec();
    node.schedule_many(twice).await.unwrap();
    assert_eq!(node.get("k").await.unwrap().unwrap().payload, b"3");
}

fn drain(node: &Durable<Memory>) -> JoinHandle<()> {
    let node = node.clone();
    tokio::spawn(async move { node.drain().await })
}

#[tokio::test]
async fn a_drained_node_has_nothing_in_flight_and_refuses() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("slow", Duration::ZERO, "x"))
        .await
        .unwrap();
    node.schedule(Entry::keyed("later", seconds(100), "x"))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    // A drain that is polled once and then left does not keep the other one waiting.
    let mut left = pin!(node.drain());
    let polled = tokio::time::timeout(Duration::ZERO, &mut left).await;
    assert!(polled.is_err(), "a handler runs");
    let drained = drain(&node);
    rig.pass(seconds(2)).await;
    assert!(!drained.is_finished(), "a handler runs");
    rig.pass(seconds(4)).await;
    drained.await.unwrap();
    assert_eq!(rig.store.len(), 1);
    let refused = node.schedule(Entry::keyed("x", seconds(1), "x")).await;
    assert!(matches!(refused, Err(Error::Closed)));
    assert_eq!(node.stats().in_flight, 0);
    let other = rig.node(|options| options).await;
    rig.fired();
    rig.pass(seconds(100)).await;
    assert_eq!(rig.fired(), ["later=x#1"]);
    drop(other);
}

struct Brittle;

impl Drop for Brittle {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// The drop of the handler panics, and what it has spawned goes on.
#[tokio::test]
async fn a_handler_that_a_drain_drops_has_not_failed_and_has_lost_its_claim() {
    let rig = Rig::new().await;
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |due: Due| {
        tell.send(due).unwrap();
        async {
            let _brittle = Brittle;
            std::future::pending().await
        }
    };
    let node = Durable::memory(rig.store.clone()).max_attempts(1);
    let node = node.start(&rig.timer, handler).await.unwrap();
    node.schedule(Entry::keyed("a", Duration::ZERO, "x"))
        .await
        .unwrap();
    rig.pass(seconds(60)).await;
    let due = told.recv().await.unwrap();
    assert!(!due.is_lost());
    let leaving = node.clone();
    let left = tokio::spawn(async move { leaving.drain_within(seconds(1)).await });
    rig.pass(seconds(2)).await;
    assert!(left.is_finished() && due.is_lost());
    assert_eq!((node.stats().panicked, node.stats().dead), (0, 0));
    let listed = node.get("a").await.unwrap().unwrap();
    assert_eq!((listed.attempts, listed.running), (0, false));
}

#[tokio::test]
async fn a_drain_ends_in_time_though_the_timer_was_shut_down() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("a", Duration::ZERO, "hang"))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    rig.timer.shutdown();
    let drained = node.drain_within(seconds(3));
    let drained = tokio::time::timeout(seconds(60), drained).await;
    assert!(drained.is_ok());
}

/// Otherwise it fails, and its attempt counts.
#[tokio::test]
async fn a_handler_may_call_its_node_while_a_drain_waits_for_it() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options.max_attempts(1)).await;
    node.schedule(Entry::keyed("slow", Duration::ZERO, "follow"))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    let drained = drain(&node);
    rig.pass(seconds(6)).await;
    drained.await.unwrap();
    assert_eq!((node.stats().done, node.stats().panicked), (1, 0));
    assert!(node.get("next").await.unwrap().is_some());
}

#[tokio::test]
async fn a_node_refuses_once_its_timer_was_shut_down() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    rig.timer.shutdown();
    let refused = node.schedule(Entry::keyed("x", seconds(1), "x")).await;
    assert!(matches!(refused, Err(Error::Closed)));
}

/// Nobody would run it, as after an outage of those who claim.
#[tokio::test]
async fn a_timer_that_has_expired_is_not_kept() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options.max_in_flight(0)).await;
    let keep = || {
        let entry = Entry::keyed("a", seconds(1), "x").keep_existing();
        node.schedule(entry.expires_after(seconds(1)))
    };
    assert_eq!(keep().await.unwrap(), Scheduled::New);
    rig.pass(seconds(2)).await;
    assert_eq!(keep().await.unwrap(), Scheduled::Kept);
    rig.pass(seconds(1)).await;
    assert_eq!(keep().await.unwrap(), Scheduled::Replaced);
}

#[tokio::test]
async fn a_handler_has_its_node_and_does_not_keep_it() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("a", seconds(1), "follow").tag("both"))
        .await
        .unwrap();
    rig.pass(seconds(3)).await;
    let listed = node.list(Search::new(9).tag("both")).await.unwrap();
    assert_eq!((listed.len(), &*listed[0].payload), (1, &b"x"[..]));
    rig.pass(seconds(4)).await;
    assert_eq!(rig.fired(), ["a=follow#1", "next=x#1"]);
    assert!(
        rig.node_of_kept()
            .is_some_and(|node| node.stats().done == 2)
    );
    drop(node);
    assert!(rig.node_of_kept().is_none());
}

/// Seen to fail: the first claim was made before there was a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_handlers_have_their_node() {
    for _ in 0..200 {
        let rig = Rig::new().await;
        let seeds = Durable::memory(rig.store.clone()).max_in_flight(0);
        let seeds = seeds.start(&rig.timer, |_| async { Outcome::Done });
        let due = (0..100).map(|_| Entry::unkeyed(Duration::ZERO, "x"));
        let seeds = seeds.await.unwrap();
        seeds.schedule_many(due.collect()).await.unwrap();
        let (tell, mut told) = mpsc::unbounded_channel();
        let handler = move |due: Due| {
            tell.send(due.node::<Memory>().is_some()).unwrap();
            async { Outcome::Done }
        };
        let node = Durable::memory(rig.store.clone());
        let _node = node.start(&rig.timer, handler).await.unwrap();
        for _ in 0..100 {
            assert_eq!(told.recv().await, Some(true));
        }
    }
}

/// A handler's future. It does what it says, and panics where it is dropped.
struct Falls(Vec<u8>);

impl Future for Falls {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Outcome> {
        match self.0.as_slice() {
            b"ends" => Poll::Ready(Outcome::Done),
            b"panics" => panic!("as it should"),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Falls {
    fn drop(&mut self) {
        panic!("it falls")
    }
}

/// Seen to fail: the timers of the first two stayed in flight without end.
#[tokio::test]
async fn a_handler_whose_drop_panics_has_failed() {
    let rig = Rig::new().await;
    let node = Durable::memory(rig.store.clone()).time_limit(seconds(1));
    let handler = |due: Due| Falls(due.payload);
    let node = node.max_attempts(1).start(&rig.timer, handler).await;
    let node = node.unwrap();
    for payload in ["ends", "panics", "hangs"] {
        let entry = Entry::keyed(payload, Duration::ZERO, payload);
        node.schedule(entry).await.unwrap();
    }
    rig.pass(seconds(2)).await;
    let dead = node.dead(Search::new(9)).await.unwrap();
    assert_eq!(dead.len(), 3);
    assert!(dead.iter().all(|it| it.reason.ends_with("it falls")));
    assert_eq!((node.stats().panicked, node.stats().in_flight), (3, 0));
}

/// Handlers do not go on beside those of the node that took their timers over.
#[tokio::test]
async fn a_node_that_is_dropped_drops_its_handlers() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("slow", Duration::ZERO, "follow"))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    drop(node);
    rig.pass(seconds(20)).await;
    assert_eq!(rig.fired(), ["slow=follow#1"]);
    assert_eq!(rig.store.len(), 1, "it has scheduled nothing");
}
