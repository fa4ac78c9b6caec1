//! A network that takes a question and gives no answer, while the connection stays open.

use crate::proxy::Proxy;
use crate::{HOUR, SERVER, builder, ends, name, next_key, schedule, short, start};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::{Postgres, PostgresServer};
use tickwheel_durable::{Durable, DurableBuilder, Entry, Error, Outcome, Search};

/// Starts a node that fires nothing for the test.
async fn open(builder: DurableBuilder<PostgresServer>) -> Result<Durable<Postgres>, Error> {
    let timer = Timer::builder().start().unwrap();
    builder.start(&timer, async |_| Outcome::Done).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_answered_and_timers_fire_once_the_network_is_back() {
    let proxy = Proxy::start(&SERVER, None).await;
    let (node, mut fired) = start(short(proxy.config(), &name())).await;
    let second = Duration::from_secs(1);
    schedule(&node, "before", second).await;
    schedule(&node, "far", HOUR).await;
    node.list(Search::new(1)).await.unwrap(); // Lists have a connection by now.
    proxy.swallows.store(true, SeqCst);
    let asked = ends(node.schedule(Entry::keyed("a", second, "x"))).await;
    assert!(matches!(asked, Err(Error::Uncertain(_))), "{asked:?}");
    let answers = ends(async {
        tokio::join!(
            async { node.touch("far", HOUR).await.err() },
            async { node.cancel("none").await.err() },
            async { node.get("far").await.err() },
            async { node.list(Search::new(1)).await.err() },
            async { node.pause(Some("tag"), HOUR).await.err() },
        )
    })
    .await;
    for (number, error) in <[_; 5]>::from(answers).into_iter().enumerate() {
        // Some calls wait behind others, and are never sent.
        let is_lost = matches!(error, Some(Error::Uncertain(_) | Error::Unavailable(_)));
        assert!(is_lost, "{number}: {error:?}");
    }
    // No connection is made now.
    let refused = ends(node.get("far")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    proxy.swallows.store(false, SeqCst);
    ends(async { while node.get("far").await.is_err() {} }).await;
    schedule(&node, "after", Duration::ZERO).await;
    // What was claimed without an answer runs when its claim has run out. Of "a" nothing is known
    // but that the server had been asked.
    let mut left = vec!["before", "a", "after"];
    while !left.is_empty() {
        let key = next_key(&mut fired).await;
        left.retain(|it| *it != key);
    }
}

/// A future that is polled once, and then left, must not have a lock that other calls need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_polled_no_more_keep_no_other_one_waiting() {
    let proxy = Proxy::start(&SERVER, None).await;
    let (node, _fired) = start(short(proxy.config(), &name())).await;
    proxy.swallows.store(true, SeqCst);
    // Now there is no connection any more: the calls below make one.
    assert!(ends(node.get("a")).await.is_err());
    let mut left = Vec::new();
    for _ in 0..6 {
        let mut call = Box::pin(node.get("a"));
        let polled = tokio::time::timeout(Duration::from_millis(50), &mut call).await;
        assert!(polled.is_err(), "{polled:?}");
        left.push(call);
    }
    proxy.swallows.store(false, SeqCst);
    // The first try to connect may last until its end.
    ends(async { while node.get("b").await.is_err() {} }).await;
    ends(schedule(&node, "c", HOUR)).await;
    drop(left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_gives_up_and_one_without_notices_fires() {
    drop(open(builder(SERVER.config(), &name())).await.unwrap()); // There are tables.
    let tries = ["pg_proc", "version()", "current_setting("].map(async |word| {
        let proxy = Proxy::start(&SERVER, Some(word)).await;
        ends(open(builder(proxy.config(), &name()))).await
    });
    let [one, two, three] = tries;
    let (one, two, three) = tokio::join!(one, two, three);
    for refused in [one, two, three] {
        let refused = refused.unwrap_err();
        let is_lost = matches!(refused, Error::Unavailable(_) | Error::Uncertain(_));
        assert!(is_lost, "{refused}");
    }
    let proxy = Proxy::start(&SERVER, Some("LISTEN")).await;
    let (node, mut fired) = start(builder(proxy.config(), &name())).await;
    schedule(&node, "a", Duration::ZERO).await;
    assert_eq!(next_key(&mut fired).await, "a");
    node.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_makes_the_tables_and_is_cut_off_stops_nobody() {
    let schema = "cut_off_while_making";
    let proxy = Proxy::start(&SERVER, Some("CREATE SCHEMA")).await;
    let making = Durable::postgres(proxy.config()).schema(schema);
    let making = tokio::spawn(open(making));
    ends(proxy.asked.notified()).await;
    let other = open(Durable::postgres(SERVER.config()).schema(schema));
    ends(other).await.unwrap();
    let made = ends(making).await.unwrap();
    made.expect_err("it was not answered");
}

/// A caller's runtime may be driven no more in the midst of a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_from_a_runtime_that_stands_still_keeps_no_other_one_waiting() {
    let (node, _fired) = start(builder(SERVER.config(), &name())).await;
    node.list(Search::new(1)).await.unwrap();
    let other = node.clone();
    let stands_still = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            for _ in 0..20 {
                let call = other.list(Search::new(1));
                let _ = tokio::time::timeout(Duration::from_micros(100), call).await;
            }
        });
        runtime
    });
    let stands_still = stands_still.await.unwrap();
    for _ in 0..3 {
        node.list(Search::new(1)).await.unwrap();
    }
    stands_still.shutdown_background();
}
