//! How a user steers timers: kept, debounced, moved, paused, many at a time.

use crate::{Rig, seconds};
use std::collections::HashSet;
use std::time::{Duration, SystemTime};
use tickwheel_durable::{Cancelled, Entry, Scheduled, Search, Touched, When};

#[tokio::test]
async fn a_key_that_is_there_is_kept() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let kept = |key| Entry::keyed(key, seconds(9), "later").keep_existing();
    assert_eq!(node.schedule(kept("slow")).await.unwrap(), Scheduled::New);
    rig.pass(seconds(5)).await;
    assert_eq!(node.schedule(kept("slow")).await.unwrap(), Scheduled::Kept);
    rig.pass(seconds(6)).await;
    assert_eq!(rig.fired(), ["slow=later#1"]);
    // Also while it runs, but not where it ends with that run.
    assert_eq!(node.schedule(kept("slow")).await.unwrap(), Scheduled::Kept);
    assert_eq!(node.cancel("slow").await.unwrap(), Cancelled::Running);
    assert_eq!(
        node.schedule(kept("slow")).await.unwrap(),
        Scheduled::Replaced
    );
    rig.pass(seconds(20)).await;
    assert_eq!(rig.fired(), ["slow=later#1"]);
    assert_eq!(node.schedule(kept("slow")).await.unwrap(), Scheduled::New);
    assert_eq!(node.stats().scheduled, 3);
}

/// Schedules a key again each second, which puts it off, until the first one's maximum wait.
#[tokio::test]
async fn a_debounce_puts_off_up_to_its_maximum_and_a_touch_fires_at_once() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let debounced = |n| Entry::keyed("a", seconds(3), format!("{n}")).debounce(seconds(10));
    for round in 0..2 {
        for n in 0..10 {
            node.schedule(debounced(n)).await.unwrap();
            rig.pass(seconds(1)).await;
            // The last one's pause is over with the maximum wait.
            let fired = if n == 9 {
                vec!["a=9#1".to_owned()]
            } else {
                vec![]
            };
            rig.pass(Duration::from_millis(if n == 9 { 50 } else { 0 }))
                .await;
            assert_eq!(rig.fired(), fired, "{round} {n}");
        }
    }
    node.schedule(debounced(0)).await.unwrap();
    rig.pass(Duration::from_millis(2_900)).await;
    assert!(rig.fired().is_empty());
    assert_eq!(
        node.touch("a", Duration::ZERO).await.unwrap(),
        Touched::Moved
    );
    rig.pass(Duration::from_millis(50)).await;
    assert_eq!(rig.fired(), ["a=0#1"]);
    // What it fails to do is debounced anew, and what replaces it is not at all.
    node.schedule(Entry::keyed("a", Duration::ZERO, "retry").debounce(seconds(1)))
        .await
        .unwrap();
    rig.pass(seconds(1)).await;
    node.schedule(debounced(1)).await.unwrap();
    rig.pass(Duration::from_millis(2_900)).await;
    assert_eq!(rig.fired(), ["a=retry#1"]);
    node.schedule(Entry::keyed("a", seconds(20), "x"))
        .await
        .unwrap();
    rig.pass(seconds(19)).await;
    assert!(rig.fired().is_empty());
    rig.pass(seconds(2)).await;
    assert_eq!(rig.fired(), ["a=x#1"]);
}

#[tokio::test]
async fn a_debounce_whose_wait_is_over_is_due_now() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.pause(Some("a"), seconds(3_600)).await.unwrap();
    let debounced = || Entry::keyed("a", seconds(1), "x").debounce(seconds(2));
    node.schedule(debounced().tag("a")).await.unwrap();
    rig.pass(seconds(30)).await;
    node.schedule(debounced()).await.unwrap();
    assert_eq!(node.get("a").await.unwrap().unwrap().at, rig.store.time());
    rig.pass(Duration::from_millis(50)).await;
    assert_eq!(rig.fired(), ["a=x#1"]);
}

#[tokio::test]
async fn the_dead_of_a_tag_are_brought_back_or_deleted_and_timers_of_a_tag_moved() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let entries = |key: &'static str, count: u32, payload| {
        let keys = (0..count).map(move |n| format!("{key} {n}"));
        keys.map(move |name| Entry::keyed(name, seconds(3_600), payload).tag(key))
            .collect()
    };
    node.schedule_many(entries("a", 2_500, "dead"))
        .await
        .unwrap();
    node.schedule_many(entries("b", 10, "dead")).await.unwrap();
    assert_eq!(node.touch_tag("a", Duration::ZERO).await.unwrap(), 2_500);
    rig.pass(seconds(2)).await;
    assert_eq!(
        (rig.fired().len(), rig.store.len(), node.stats().dead),
        (2_500, 2_510, 2_500)
    );
    node.touch_tag("b", Duration::ZERO).await.unwrap();
    rig.pass(seconds(1)).await;
    // One whose key has a timer again stays dead.
    node.schedule(Entry::keyed("a 7", seconds(3_600), "x"))
        .await
        .unwrap();
    assert_eq!(node.requeue_all(Some("a")).await.unwrap(), 2_499);
    rig.pass(seconds(2)).await;
    assert_eq!(rig.fired().len(), 10 + 2_499);
    assert_eq!(node.delete_dead(Some("a")).await.unwrap(), 2_500);
    let dead = node.dead(Search::new(100)).await.unwrap();
    assert!(dead.len() == 10 && dead.iter().all(|dead| dead.tag.as_deref() == Some("b")));
    assert_eq!(node.requeue_all(None).await.unwrap(), 10);
    rig.pass(seconds(1)).await;
    assert_eq!(
        (rig.fired().len(), node.delete_dead(None).await.unwrap()),
        (10, 10)
    );
    assert_eq!(
        (
            node.dead(Search::new(1)).await.unwrap().len(),
            node.stats().scheduled
        ),
        (0, 2_511)
    );
}

fn tagged(tag: &'static str, delay: Duration) -> impl Iterator<Item = Entry> {
    (0..50).map(move |n| Entry::keyed(format!("{tag} {n}"), delay, "x").tag(tag))
}

#[tokio::test]
async fn what_is_paused_waits_and_is_not_counted_as_late() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let both = tagged("a", seconds(30)).chain(tagged("b", seconds(30)));
    node.schedule_many(both.collect()).await.unwrap();
    let end = rig.now() + seconds(1_000);
    node.pause(Some("a"), end).await.unwrap();
    let [paused] = &node.pauses().await.unwrap()[..] else {
        panic!("it is paused")
    };
    assert_eq!(paused.tag.as_deref(), Some("a"));
    assert_eq!(SystemTime::from(paused.until), end);
    rig.pass(seconds(31)).await;
    let fired = rig.fired();
    assert_eq!(fired.len(), 50);
    assert!(fired.iter().all(|fired| fired.starts_with('b')));
    drop(node); // A restart.
    let node = rig.node(|options| options).await;
    let more = Entry::keyed("a", Duration::ZERO, "x").tag("a");
    node.schedule(more).await.unwrap();
    let rest = end.duration_since(rig.now()).unwrap();
    rig.pass(rest - Duration::from_millis(1)).await;
    assert!(rig.fired().is_empty());
    rig.pass(Duration::from_millis(100)).await;
    assert_eq!(rig.fired().len(), 51);
    assert!(node.pauses().await.unwrap().is_empty(), "it is over");
    let late = node.stats().lateness.bars().last().unwrap().0;
    assert!(late < Duration::from_millis(100), "{late:?}");
}

#[tokio::test]
async fn a_timer_ends_unrun_where_nobody_has_begun_with_it_in_time() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    let expires = |key: &str, at| Entry::keyed(key, seconds(at), "x").expires_after(seconds(10));
    let entries = [
        expires("in time", 5),
        expires("out", 5),
        expires("moved", 5),
    ];
    node.schedule_many(entries.into()).await.unwrap();
    drop(node);
    rig.pass(seconds(10)).await;
    let node = rig.node(|options| options).await;
    rig.pass(Duration::from_millis(100)).await;
    assert_eq!(rig.fired().len(), 3, "late, but not too late");
    let entries = [expires("out", 5), expires("moved", 5)];
    node.schedule_many(entries.into()).await.unwrap();
    drop(node);
    rig.pass(seconds(20)).await;
    let other = rig.node(|options| options.max_in_flight(1)).await;
    assert_eq!(
        other.touch("moved", Duration::ZERO).await.unwrap(),
        Touched::Unknown
    );
    rig.pass(seconds(5)).await;
    assert!(rig.fired().is_empty());
    assert!(rig.store.is_empty());
    assert_eq!(other.stats().expired, 2);
}

#[tokio::test]
async fn a_pause_is_ended_shortened_and_lies_in_another_one() {
    let rig = Rig::new().await;
    let nodes = [
        rig.node(|options| options).await,
        rig.node(|options| options).await,
    ];
    let node = &nodes[0];
    let both = tagged("a", seconds(1)).chain(tagged("b", seconds(1)));
    node.schedule_many(both.collect()).await.unwrap();
    node.pause(None, seconds(3_600)).await.unwrap();
    rig.pass(seconds(100)).await;
    node.pause(Some("a"), seconds(100)).await.unwrap();
    rig.pass(Duration::from_millis(100)).await;
    assert!(rig.fired().is_empty());
    let tags = async || -> Vec<Option<String>> {
        node.pauses()
            .await
            .unwrap()
            .into_iter()
            .map(|pause| pause.tag)
            .collect()
    };
    assert_eq!(tags().await, [None, Some("a".to_owned())]);
    assert_eq!(nodes[1].resume(None).await.unwrap(), 100);
    assert_eq!(tags().await, [Some("a".to_owned())]);
    rig.pass(seconds(4)).await;
    let fired = rig.fired();
    assert!(
        fired.len() == 50 && fired.iter().all(|fired| fired.starts_with('b')),
        "{fired:?}"
    );
    // What is moved is held as all others.
    assert_eq!(
        node.touch("a 7", Duration::ZERO).await.unwrap(),
        Touched::Moved
    );
    rig.pass(seconds(4)).await;
    assert!(rig.fired().is_empty());
    node.pause(Some("a"), seconds(3)).await.unwrap();
    rig.pass(seconds(2)).await;
    assert!(rig.fired().is_empty());
    rig.pass(seconds(2)).await;
    assert_eq!(rig.fired().len(), 50);
    assert_eq!(nodes[1].resume(Some("a")).await.unwrap(), 0);
    // One that ends soon is in time as well.
    node.pause(None, seconds(5)).await.unwrap();
    node.schedule_many(tagged("c", seconds(1)).collect())
        .await
        .unwrap();
    rig.pass(Duration::from_millis(4_990)).await;
    assert!(rig.fired().is_empty());
    rig.pass(Duration::from_millis(200)).await;
    assert_eq!(rig.fired().len(), 50);
    assert!(rig.store.is_empty());
}

/// Has nobody there from 25 s to 60 s after the beginning.
#[tokio::test]
async fn a_series_keeps_its_times_and_makes_up_for_missed_runs_by_its_policy() {
    let made_up: [(&str, &[&str]); 3] = [
        ("once", &["10", "20", "30", "70", "80"]),
        ("skip", &["10", "20", "-30", "70", "80"]),
        ("all", &["10", "20", "30", "40", "50", "60", "70", "80"]),
    ];
    for (policy, expected) in made_up {
        let rig = Rig::new().await;
        let first = When::At(rig.now() + seconds(10));
        let node = rig.node(|options| options).await;
        node.schedule(Entry::keyed("series", first, policy))
            .await
            .unwrap();
        rig.pass(seconds(25)).await;
        drop(node);
        rig.pass(seconds(35)).await;
        let node = rig.node(|options| options).await;
        rig.pass(seconds(25)).await;
        assert_eq!(rig.fired(), expected, "{policy}");
        assert!(matches!(
            node.cancel("series").await.unwrap(),
            Cancelled::Cancelled(_)
        ));
    }
}

#[tokio::test]
async fn a_series_that_is_brought_back_or_moved_begins_anew() {
    let rig = Rig::new().await;
    let first = When::At(rig.now() + seconds(10));
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("series", first, "dies"))
        .await
        .unwrap();
    rig.pass(seconds(34)).await;
    assert_eq!(rig.fired(), ["10"]);
    assert_eq!(node.requeue_all(None).await.unwrap(), 1);
    rig.pass(seconds(23)).await;
    assert_eq!(rig.fired(), ["34", "44", "54"]);
    assert_eq!(
        node.touch("series", seconds(2)).await.unwrap(),
        Touched::Moved
    );
    rig.pass(seconds(14)).await;
    assert_eq!(rig.fired(), ["59", "69"]);
}

#[tokio::test]
async fn a_series_with_jitter_keeps_its_times_and_runs_some_time_after_each() {
    let rig = Rig::new().await;
    let first = When::Spread(rig.now() + seconds(10), seconds(9));
    let node = rig.node(|options| options).await;
    node.schedule(Entry::keyed("series", first, "jitter"))
        .await
        .unwrap();
    rig.pass(seconds(300)).await;
    let fired = rig.fired();
    let runs: Vec<(u64, u64)> = fired
        .iter()
        .map(|run| {
            let (planned, spread) = run.split_once('+').unwrap();
            (planned.parse().unwrap(), spread.parse().unwrap())
        })
        .collect();
    assert!(
        runs.iter()
            .map(|run| run.0)
            .eq((1..).map(|n| 10 * n).take(runs.len())),
        "{fired:?}"
    );
    let spreads: HashSet<u64> = runs.iter().map(|run| run.1).collect();
    assert!(
        runs.len() >= 28 && spreads.len() > 2 && spreads.iter().all(|it| *it < 9),
        "{fired:?}"
    );
}

#[tokio::test]
async fn what_another_pause_holds_is_put_off_to_the_end_of_that() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.pause(None, seconds(3_600)).await.unwrap();
    node.pause(Some("a"), seconds(7_200)).await.unwrap();
    node.schedule_many(tagged("a", seconds(1)).collect())
        .await
        .unwrap();
    rig.pass(seconds(10)).await;
    for _ in 0..2 {
        assert_eq!(node.resume(Some("a")).await.unwrap(), 50);
        rig.pass(Duration::from_millis(100)).await;
        let end = node.get("a 7").await.unwrap().unwrap().at;
        assert!(end.since(rig.store.time()) > seconds(3_500), "{end:?}");
    }
    rig.pass(seconds(3_580)).await;
    assert!(rig.fired().is_empty());
    rig.pass(seconds(20)).await;
    assert_eq!(rig.fired().len(), 50);
}

#[tokio::test]
async fn many_that_a_pause_holds_are_passed_over_and_put_off_soon() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.pause(Some("a"), seconds(3_600)).await.unwrap();
    let held = (0..6_000).map(|n| Entry::keyed(format!("a {n}"), seconds(1), "x").tag("a"));
    let other = Entry::keyed("other", Duration::from_millis(1_001), "x");
    node.schedule_many(held.chain([other]).collect())
        .await
        .unwrap();
    rig.pass(Duration::from_millis(1_100)).await;
    assert_eq!(rig.fired(), ["other=x#1"]);
    rig.pass(seconds(3)).await;
    let first = node.list(Search::new(1)).await.unwrap();
    assert!(first[0].at.since(rig.store.time()) > seconds(3_500));
    assert_eq!(node.resume(Some("a")).await.unwrap(), 6_000);
    rig.pass(seconds(10)).await;
    assert_eq!(rig.fired().len(), 6_000);
}

#[tokio::test]
async fn a_pause_without_end_is_ended() {
    let rig = Rig::new().await;
    let node = rig.node(|options| options).await;
    node.pause(None, Duration::MAX).await.unwrap();
    node.schedule(Entry::keyed("a", seconds(1), "x"))
        .await
        .unwrap();
    rig.pass(seconds(3_600)).await;
    assert!(rig.fired().is_empty());
    assert_eq!(node.resume(None).await.unwrap(), 1);
    rig.pass(seconds(1)).await;
    assert_eq!(rig.fired(), ["a=x#1"]);
}
