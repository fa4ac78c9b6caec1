//! Several nodes on a store in memory, in virtual time.

use crate::{Rig, seconds};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Outcome, Search};

/// Has a node die with half of the timers in its handlers.
#[tokio::test]
async fn only_what_a_dead_node_had_in_its_handlers_waits_for_its_lease() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(3)));
    let [first, second] = [start().await, start().await];
    rig.pass(seconds(4)).await;
    let slow = (0..50).map(|n| Entry::keyed(format!("slow {n}"), seconds(1), "x"));
    let free = (0..50).map(|n| Entry::keyed(format!("{n}"), seconds(2), "x"));
    first
        .schedule_many(slow.chain(free).collect())
        .await
        .unwrap();
    rig.pass(Duration::from_millis(1_100)).await;
    assert_eq!(rig.fired().len(), 50);
    let left = first.stats().in_flight as usize;
    drop(first);
    rig.pass(seconds(1)).await;
    let fired = rig.fired();
    assert_eq!(fired.len(), 50, "the others are on time");
    assert!(fired.iter().all(|fired| !fired.starts_with("slow")));
    rig.pass(seconds(3)).await;
    assert_eq!(rig.fired().len(), left, "a lease and up to a second later");
    assert_eq!(second.stats().taken_over as usize, left);
    rig.pass(seconds(10)).await;
    assert!(rig.store.is_empty());
    assert_eq!((rig.fired().len(), second.stats().claims_lost), (0, 0));
}

/// A long handler's claim lasts up to a minute, which costs few renewals.
#[tokio::test]
async fn a_handler_runs_for_hours_and_nobody_takes_it_over() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(1)));
    let [first, second] = [start().await, start().await];
    first
        .schedule(Entry::keyed("a", seconds(1), "hang"))
        .await
        .unwrap();
    rig.pass(seconds(7_200)).await;
    assert_eq!(rig.fired(), ["a=hang#1"]);
    assert_eq!(first.stats().in_flight + second.stats().in_flight, 1);
    assert_eq!(first.stats().taken_over + second.stats().taken_over, 0);
    drop(first);
    rig.pass(seconds(63)).await;
    // On either node it runs now, once.
    assert!(rig.fired().len() <= 1);
    assert_eq!(second.stats().in_flight, 1);
}

/// Fills the places of one node, which tells the other one.
#[tokio::test]
async fn what_a_node_has_no_room_for_another_one_has_at_once() {
    let rig = Rig::new().await;
    let first = rig.node(|options| options.max_in_flight(1)).await;
    let second = rig.node(|options| options.max_in_flight(1)).await;
    rig.pass(Duration::from_millis(500)).await; // Each claims once a second.
    for n in 0..2 {
        let slow = Entry::keyed(format!("slow {n}"), Duration::ZERO, "x");
        first.schedule(slow).await.unwrap();
        rig.pass(Duration::from_millis(150)).await;
    }
    assert_eq!(rig.fired().len(), 2);
    assert_eq!((first.stats().in_flight, second.stats().in_flight), (1, 1));
    assert_eq!(first.stats().swept + second.stats().swept, 0);
}

#[tokio::test]
async fn nodes_share_the_work_and_no_timer_fires_twice() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.max_in_flight(10));
    let nodes = [start().await, start().await, start().await];
    let entries = (0..1_000).map(|n| Entry::unkeyed(seconds(1 + n % 3), format!("{n}")));
    nodes[0].schedule_many(entries.collect()).await.unwrap();
    rig.pass(seconds(10)).await;
    let mut fired = rig.fired();
    assert_eq!(fired.len(), 1_000);
    fired.sort();
    fired.dedup();
    assert_eq!(fired.len(), 1_000, "twice");
    assert!(rig.store.is_empty());
    assert!(nodes.iter().all(|node| node.stats().claimed > 0));
    assert!(rig.most_at_once() <= 30, "{}", rig.most_at_once());
}

/// Has a node leave whose last handler takes a while, and timers due meanwhile.
#[tokio::test]
async fn nobody_waits_for_a_node_that_leaves() {
    let rig = Rig::new().await;
    let leaving = rig.node(|options| options).await;
    leaving
        .schedule(Entry::keyed("slow", Duration::ZERO, "x"))
        .await
        .unwrap();
    rig.pass(Duration::from_millis(100)).await;
    let other = rig.node(|options| options).await;
    let left = tokio::spawn(async move { leaving.drain().await });
    rig.pass(Duration::from_millis(100)).await;
    let entries = (0..100).map(|n| Entry::keyed(format!("{n}"), Duration::ZERO, "x"));
    other.schedule_many(entries.collect()).await.unwrap();
    rig.pass(Duration::from_millis(100)).await;
    assert_eq!((rig.fired().len(), left.is_finished()), (101, false));
    rig.pass(seconds(5)).await;
    assert!(left.is_finished());
    left.await.unwrap();
    assert!(rig.store.is_empty());
}

/// What a node's handlers have not ended in time begins again elsewhere, and nobody waits for a
/// lease. The attempts do not count: with one more the timers would be dead.
#[tokio::test]
async fn a_drain_ends_in_time_and_its_timers_begin_again_elsewhere() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.max_attempts(1).lease(seconds(60)));
    let leaving = start().await;
    let hanging = ["a", "b"].map(|key| Entry::keyed(key, Duration::ZERO, "hang"));
    leaving.schedule_many(hanging.to_vec()).await.unwrap();
    rig.pass(Duration::from_millis(100)).await;
    assert_eq!(rig.fired(), ["a=hang#1", "b=hang#1"]);
    let other = start().await;
    let left = tokio::spawn(async move { leaving.drain_within(seconds(3)).await });
    rig.pass(Duration::from_millis(2_900)).await;
    assert!(rig.fired().is_empty() && !left.is_finished());
    rig.pass(Duration::from_millis(1_200)).await;
    assert!(left.is_finished());
    assert_eq!(rig.fired(), ["a=hang#1", "b=hang#1"]);
    assert_eq!((other.stats().in_flight, other.stats().taken_over), (2, 0));
}

/// `Running` promises a run, also where the node dies that had it.
#[tokio::test]
async fn a_cancelled_run_is_taken_over_once_and_ends() {
    let rig = Rig::new().await;
    let first = rig.node(|options| options).await;
    let entries = (0..20).map(|n| Entry::keyed(format!("slow {n}"), seconds(3), "retry"));
    first.schedule_many(entries.collect()).await.unwrap();
    rig.pass(seconds(4)).await;
    assert_eq!(rig.fired().len(), 20);
    drop(first);
    let second = rig.node(|options| options).await;
    for n in 0..10 {
        let answer = second.cancel(&format!("slow {n}")).await.unwrap();
        assert_eq!(answer, Cancelled::Running);
    }
    let anew = Entry::keyed("slow 0", Duration::ZERO, "x");
    second.schedule(anew).await.unwrap();
    rig.pass(seconds(11)).await;
    let again = rig.fired();
    let anew = again.iter().filter(|fired| *fired == "slow 0=x#1").count();
    assert_eq!((again.len(), anew), (20, 1));
    rig.pass(seconds(5)).await;
    assert_eq!(
        rig.store.len(),
        10,
        "only those that were not cancelled are tried again"
    );
}

/// The first crashes may be another timer's; then it is alone, and they are its own where the
/// process has lived without it for twelve leases before, and twice as long each time.
#[tokio::test]
async fn a_crash_counts_as_an_attempt() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(1)).max_attempts(2));
    let node = start().await;
    node.schedule(Entry::keyed("slow", Duration::ZERO, "x"))
        .await
        .unwrap();
    rig.pass(Duration::from_millis(100)).await;
    drop(node);
    for life in [1_500, 1_500, 1_500, 11_000, 14_000] {
        rig.pass(seconds(10)).await; // Its claim runs out.
        let node = start().await;
        rig.pass(Duration::from_millis(life)).await;
        drop(node);
    }
    assert_eq!(
        rig.fired(),
        ["slow=x#1", "slow=x#1", "slow=x#1", "slow=x#1", "slow=x#2"]
    );
    let node = start().await;
    rig.pass(seconds(23)).await;
    assert_eq!(node.stats().dead, 0);
    rig.pass(seconds(3)).await;
    assert!(rig.fired().is_empty());
    let dead = node.dead(Search::new(10)).await.unwrap();
    assert_eq!(dead[0].reason, "2 attempts crashed or failed");
    assert_eq!(rig.store.len(), dead.len());
}

/// Lets processes go down for a reason of their own, again and again, before any handler ends.
#[tokio::test]
async fn processes_that_go_down_again_and_again_make_no_timer_dead() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(1)).max_attempts(3));
    let node = start().await;
    let entries = (0..3).map(|n| Entry::keyed(format!("slow {n}"), Duration::ZERO, "x"));
    node.schedule_many(entries.collect()).await.unwrap();
    rig.pass(Duration::from_millis(500)).await;
    drop(node);
    for _ in 0..30 {
        let node = start().await;
        rig.pass(Duration::from_millis(1_500)).await;
        drop(node);
    }
    let node = start().await;
    rig.pass(seconds(200)).await;
    assert_eq!(node.dead(Search::new(100)).await.unwrap(), []);
    assert!(rig.store.is_empty(), "each has its turn");
}

/// What was in no crash waits for none of them.
#[tokio::test]
async fn what_was_in_a_crash_runs_again_a_hundred_at_a_time() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(1)));
    let node = start().await;
    let entries = (0..250).map(|n| Entry::keyed(format!("slow {n}"), Duration::ZERO, "x"));
    node.schedule_many(entries.collect()).await.unwrap();
    rig.pass(seconds(1)).await;
    assert_eq!(rig.fired().len(), 250);
    drop(node);
    let node = start().await;
    rig.pass(seconds(3)).await;
    assert_eq!(rig.fired().len(), 100);
    assert_eq!(node.stats().in_flight, 100);
    node.schedule(Entry::keyed("another", Duration::ZERO, "y"))
        .await
        .unwrap();
    rig.pass(Duration::from_millis(100)).await;
    assert_eq!(rig.fired(), ["another=y#1"], "it waits for none of them");
    rig.pass(seconds(15)).await;
    assert_eq!(rig.fired().len(), 150);
    assert!(rig.store.is_empty());
}

/// Was in four crashes of others' making, and runs for hours, alone at first.
#[tokio::test]
async fn a_long_handler_that_was_in_crashes_keeps_no_other_dead_node_s_timers_waiting() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(1)));
    let node = start().await;
    node.schedule(Entry::keyed("long", Duration::ZERO, "hang"))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    drop(node);
    for _ in 0..3 {
        let node = start().await;
        rig.pass(seconds(100)).await;
        drop(node);
    }
    let node = start().await;
    rig.pass(seconds(300)).await;
    assert_eq!(node.stats().in_flight, 1, "the long one");
    rig.fired();
    let other = start().await;
    let entries = (0..20).map(|n| Entry::keyed(format!("slow {n}"), Duration::ZERO, "x"));
    other.schedule_many(entries.collect()).await.unwrap();
    rig.pass(Duration::from_millis(500)).await;
    let left = other.stats().in_flight;
    assert!(left > 0, "the other node has some of them");
    drop(other);
    rig.pass(seconds(20)).await;
    assert!(node.stats().taken_over > left);
    assert_eq!(rig.store.len(), 1, "only the long one is left");
}

/// Lets a process go down again and again, until it is found which timer brings it down.
#[tokio::test]
async fn what_was_in_more_crashes_runs_again_ten_at_a_time_and_then_alone() {
    let rig = Rig::new().await;
    let start = || rig.node(|options| options.lease(seconds(1)));
    let node = start().await;
    let entries = (0..25).map(|n| Entry::keyed(format!("slow {n}"), Duration::ZERO, "x"));
    node.schedule_many(entries.collect()).await.unwrap();
    rig.pass(seconds(1)).await;
    drop(node);
    let mut counts = vec![rig.fired().len()];
    for _ in 0..5 {
        rig.pass(seconds(10)).await; // The claims run out.
        let node = start().await;
        rig.pass(seconds(4)).await;
        drop(node);
        counts.push(rig.fired().len());
    }
    // First all of them; then those in one crash ten at a time, of which no ten are left at last.
    assert_eq!(counts, [25, 25, 10, 10, 5, 1]);
}

/// A claim for a timer that was cancelled finds nothing, whichever node has cancelled it.
#[tokio::test]
async fn cancelled_timers_make_no_other_one_late() {
    for count in [1, 3] {
        let rig = Rig::new().await;
        let late = Arc::new(Mutex::new(Vec::new()));
        let mut nodes = Vec::new();
        for _ in 0..count {
            let late = Arc::clone(&late);
            let handler = move |due: Due| {
                late.lock().unwrap().push(due.late_by);
                async { Outcome::Done }
            };
            let node = Durable::memory(rig.store.clone());
            nodes.push(node.start(&rig.timer, handler).await.unwrap());
        }
        for n in 0..100 {
            let [one, other] = [n, n + 1].map(|n| &nodes[n % count]);
            let far = Duration::from_millis(300);
            one.schedule(Entry::keyed("fires", far, "x")).await.unwrap();
            for key in ["a", "b", "c"] {
                let entry = Entry::keyed(key, far / 2, "x");
                one.schedule(entry).await.unwrap();
            }
            rig.pass(far / 3).await;
            for key in ["a", "b", "c"] {
                other.cancel(key).await.unwrap();
            }
            rig.pass(far).await;
        }
        let late = late.lock().unwrap();
        assert_eq!(late.len(), 100);
        let latest = late.iter().max().unwrap();
        assert!(*latest < Duration::from_millis(5), "{latest:?}");
    }
}
