//! Nodes that share a namespace.

use crate::{
    Fired, HOUR, SERVER, builder, client, count, ends, name, next_key, node, schedule, short,
    start, until,
};
use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Cancelled, Durable, Entry, Search};

/// Starts a node that runs nothing.
async fn idle(namespace: &str) -> Durable<Postgres> {
    let node = builder(SERVER.config(), namespace).max_in_flight(0);
    start(node).await.0
}

/// Returns which connections of a node of this name listen for notices.
fn listens(node: &str) -> String {
    format!("pg_stat_activity WHERE application_name = '{node}' AND query ~ 'LISTEN'")
}

/// Schedules by another node until a timer fires soon: without a notice each waits for about a
/// second, as the one before has just been claimed.
async fn is_told(fired: &mut Fired, schedule: impl AsyncFn(String)) {
    let soon = async {
        for number in 0.. {
            let asked = Instant::now();
            schedule(number.to_string()).await;
            while next_key(fired).await != number.to_string() {}
            if asked.elapsed() < Duration::from_millis(500) {
                return;
            }
        }
    };
    ends(soon).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_wakes_another_node() {
    let namespace = name();
    let other = idle(&namespace).await;
    let mut config = SERVER.config();
    config.application_name("listens");
    let (_node, mut fired) = start(builder(config, &namespace)).await;
    let client = client().await;
    let listens = listens("listens");
    until(async || count(&client, &listens).await == 1).await;
    let now = |key| Entry::keyed(key, Duration::ZERO, "x");
    let schedule_here = async |key| {
        other.schedule(now(key)).await.unwrap();
    };
    is_told(&mut fired, schedule_here).await;
    let move_here = async |key: String| {
        schedule(&other, &key, HOUR).await;
        other.touch(&key, Duration::ZERO).await.unwrap();
    };
    is_told(&mut fired, move_here).await;
    let by_sql = async |key: String| {
        let sql = "SELECT tickwheel.schedule($1, $2, now(), 'x')";
        client.execute(sql, &[&namespace, &key]).await.unwrap();
    };
    is_told(&mut fired, by_sql).await;
    // A connection that is cut is made anew.
    let cut = format!("SELECT pid, pg_terminate_backend(pid) FROM {listens}");
    let former: i32 = client.query_one(&cut, &[]).await.unwrap().get(0);
    let anew = format!("{listens} AND pid <> {former}");
    until(async || count(&client, &anew).await == 1).await;
    is_told(&mut fired, schedule_here).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_reaches_the_nodes_of_its_schema() {
    let namespace = name();
    let mut config = SERVER.config();
    config.application_name("hears");
    let node = builder(config, &namespace).schema("told");
    let (_node, mut fired) = start(node).await;
    let node = builder(SERVER.config(), &namespace).schema("told");
    let (other, _) = start(node.max_in_flight(0)).await;
    let client = client().await;
    until(async || count(&client, &listens("hears")).await == 1).await;
    let schedule_here = async |key: String| {
        schedule(&other, &key, Duration::ZERO).await;
    };
    is_told(&mut fired, schedule_here).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_asks_another_one_does() {
    let namespace = name();
    let (node, mut fired) = node(&namespace).await;
    let other = idle(&namespace).await;
    other.pause(Some("t"), HOUR).await.unwrap();
    other.pause(Some("u"), HOUR).await.unwrap();
    let now = |key: &str| Entry::keyed(key, Duration::ZERO, key);
    node.schedule(now("held").tag("t")).await.unwrap();
    other.schedule(now("held too").tag("t")).await.unwrap();
    other.schedule(now("held longer").tag("u")).await.unwrap();
    other.schedule(now("free")).await.unwrap();
    assert_eq!(next_key(&mut fired).await, "free");
    let tags = |node: Durable<Postgres>| async move {
        let pauses = node.pauses().await.unwrap();
        pauses
            .into_iter()
            .map(|pause| pause.tag.unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(tags(node.clone()).await, ["t", "u"]);
    // By the claim that has met it, it is due at the end of the pause.
    let is_held = async |key: &str| {
        let pending = node.get(key).await.unwrap().unwrap();
        SystemTime::from(pending.at) > SystemTime::now() + HOUR / 2
    };
    for key in ["held", "held too", "held longer"] {
        until(async || is_held(key).await).await;
    }
    assert_eq!(other.resume(Some("t")).await.unwrap(), 2);
    let keys = HashSet::from([next_key(&mut fired).await, next_key(&mut fired).await]);
    assert_eq!(
        keys,
        HashSet::from(["held".to_owned(), "held too".to_owned()])
    );
    assert_eq!(tags(node.clone()).await, ["u"]);
    let cancelled = other.cancel("held longer").await.unwrap();
    assert_eq!(cancelled, Cancelled::Cancelled(b"held longer".to_vec()));
    assert!(fired.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_taken_over_and_one_that_leaves_hands_over() {
    let namespace = name();
    let timer = Timer::builder().start().unwrap();
    let hangs = short(SERVER.config(), &namespace).max_in_flight(20);
    let hangs = hangs
        .start(&timer, |_| std::future::pending())
        .await
        .unwrap();
    let entries = (0..50).map(|n| Entry::keyed(n.to_string(), Duration::ZERO, "x"));
    hangs.schedule_many(entries.collect()).await.unwrap();
    until(async || hangs.stats().in_flight == 20).await;
    let (first, mut fired) = node(&namespace).await;
    let mut keys = HashSet::new();
    while keys.len() < 30 {
        keys.insert(next_key(&mut fired).await);
    }
    drop(hangs);
    while keys.len() < 50 {
        assert!(
            keys.insert(next_key(&mut fired).await),
            "it was done before"
        );
    }
    assert!(first.stats().taken_over >= 20);
    let (second, mut fired) = node(&namespace).await;
    schedule(&second, "last", Duration::from_secs(1)).await;
    first.drain().await;
    assert_eq!(next_key(&mut fired).await, "last");
    until(async || second.list(Search::new(1)).await.unwrap().is_empty()).await;
}

/// What a look from the first row on meets under a snapshot that is held for hours: a statement
/// that takes too long, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_whole_looks_take_too_long_starts_and_takes_over() {
    let timer = Timer::builder().start().unwrap();
    let hangs = short(SERVER.config(), "some").schema("dead_rows");
    let hangs = hangs
        .start(&timer, |_| std::future::pending())
        .await
        .unwrap();
    schedule(&hangs, "a", Duration::ZERO).await;
    until(async || hangs.stats().in_flight == 1).await;
    let slow = "ALTER FUNCTION dead_rows.look RENAME TO short_look;
        CREATE FUNCTION dead_rows.look(
            namespace text, dues bigint, claims bigint, above bigint
        ) RETURNS TABLE (
            now bigint, due bigint, id bigint, held boolean, oldest bigint, has_ended boolean,
            running bigint, number bigint, started bigint
        ) LANGUAGE plpgsql AS $$ BEGIN
            IF dues = 0 THEN
                RAISE 'it takes too long' USING ERRCODE = 'query_canceled';
            END IF;
            RETURN QUERY SELECT * FROM dead_rows.short_look(namespace, dues, claims, above);
        END $$";
    client().await.batch_execute(slow).await.unwrap();
    let other = short(SERVER.config(), "some").schema("dead_rows");
    let (_other, mut fired) = start(other).await;
    drop(hangs);
    assert_eq!(next_key(&mut fired).await, "a");
}
