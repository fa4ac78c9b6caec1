//! The store on PostgreSQL where somebody's open transaction has rows of it locked.

#[path = "common/postgres.rs"]
mod helpers;
#[path = "common/server.rs"]
mod server;

use helpers::{client, name, next, node, until};
use server::Server;
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::store::{KeyName, NewRow, NodeId, Place, Store};
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, OpenStore, Outcome, Search, StoreTime, Touched,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Client;

/// Runs all tests of this file on one server, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    an_open_transaction_keeps_no_other_timer_from_firing(&server).await;
    an_open_transaction_keeps_no_other_timer_from_ending(&server).await;
    an_index_of_dead_timers_that_is_built_keeps_none_from_ending(&server).await;
    who_lists_keeps_no_other_call_waiting(&server).await;
    an_open_transaction_keeps_no_other_call_waiting(&server).await;
    what_is_given_up_is_cancelled_on_the_server(&server).await;
    a_tag_is_moved_and_cancelled_to_its_end_beside_touches(&server).await;
    a_standby_that_is_away_takes_no_more_connections(&server).await;
    a_pause_that_ends_lets_go_what_is_just_put_off(&server).await;
    one_who_rests_is_told_of_each_timer(&server).await;
    one_who_rests_listens_again_when_it_was_cut_off(&server).await;
}

async fn count(client: &Client, sql: &str) -> i64 {
    client
        .query_one(&format!("SELECT count(*) FROM {sql}"), &[])
        .await
        .unwrap()
        .get(0)
}

const BACKENDS: &str = "pg_stat_activity WHERE backend_type = 'client backend'";
const WAITING: &str = "pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Ends a pause while a claim puts a timer off because of it, and has not committed.
/// Seen to fail, where the claim did not lock the pause: nothing let the timer go.
async fn a_pause_that_ends_lets_go_what_is_just_put_off(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let client = client(server).await;
    let block = "CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
        CREATE TRIGGER block BEFORE UPDATE ON tickwheel.timer FOR EACH ROW
            WHEN (NEW.tag = 'held') EXECUTE FUNCTION block();
        SELECT pg_advisory_lock(7)";
    client.batch_execute(block).await.unwrap();
    node.pause(Some("held"), Duration::from_secs(86_400))
        .await
        .unwrap();
    node.schedule(Entry::keyed("a", Duration::ZERO, "x").tag("held"))
        .await
        .unwrap();
    until("the claim is blocked", async || {
        count(&client, WAITING).await == 1
    })
    .await;
    let other = node.clone();
    let resume = tokio::spawn(async move { other.resume(Some("held")).await });
    let has_asked = async || resume.is_finished() || count(&client, WAITING).await == 2;
    until("it waits, or has ended", has_asked).await;
    client
        .batch_execute("SELECT pg_advisory_unlock(7)")
        .await
        .unwrap();
    assert_eq!(resume.await.unwrap().unwrap(), 1);
    assert_eq!(next(&mut fired).await.key.unwrap(), "a");
    client
        .batch_execute("DROP FUNCTION block CASCADE")
        .await
        .unwrap();
}

/// Seen to fail: a claim waited for the lock, and nothing fired for as long.
async fn an_open_transaction_keeps_no_other_timer_from_firing(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    // So late that it is locked before it is due, also where the machine is busy.
    let entry = |key: String| Entry::keyed(key, Duration::from_secs(10), "old");
    let mut entries: Vec<Entry> = (0..300).map(|n| entry(n.to_string())).collect();
    entries.push(entry("locked".to_owned()));
    node.schedule_many(entries).await.unwrap();
    let entry = Entry::keyed("locked", Duration::ZERO, "new");
    node.schedule_in(&transaction, entry).await.unwrap();
    for _ in 0..300 {
        assert_ne!(next(&mut fired).await.key.unwrap(), "locked");
    }
    transaction.commit().await.unwrap();
    let due = next(&mut fired).await;
    assert_eq!(
        (due.key.unwrap().as_str(), due.payload.as_slice()),
        ("locked", &b"new"[..])
    );
}

/// Seen to fail: each acknowledgement waited until the index was there.
async fn an_index_of_dead_timers_that_is_built_keeps_none_from_ending(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let mut client = client(server).await;
    let building = client.transaction().await.unwrap();
    building
        .batch_execute("CREATE INDEX ON tickwheel.dead (reason)")
        .await
        .unwrap();
    node.schedule(Entry::keyed("a", Duration::ZERO, ""))
        .await
        .unwrap();
    assert_eq!(next(&mut fired).await.key.as_deref(), Some("a"));
    until("it has ended", async || {
        node.get("a").await.unwrap().is_none()
    })
    .await;
    building.rollback().await.unwrap();
    node.drain().await;
}

/// Seen to fail: what was written waited behind two lists, and might have been done or not.
async fn who_lists_keeps_no_other_call_waiting(server: &Server) {
    let (node, _fired) = node(server, &name()).await;
    let mut locker = client(server).await;
    let (watch, lock) = (client(server).await, locker.transaction().await.unwrap());
    lock.batch_execute("LOCK TABLE tickwheel.dead IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let list = || {
        let node = node.clone();
        tokio::spawn(async move { node.dead(Search::new(1)).await })
    };
    let lists = [list(), list(), list()];
    until("one of them waits", async || {
        count(&watch, WAITING).await == 1
    })
    .await;
    for _ in 0..4 {
        node.schedule(Entry::keyed("a", Duration::from_secs(3_600), ""))
            .await
            .unwrap();
        assert!(node.get("a").await.unwrap().is_some());
    }
    assert!(lists.iter().all(|list| !list.is_finished()));
    lock.rollback().await.unwrap();
    for list in lists {
        list.await.unwrap().unwrap();
    }
    node.drain().await;
}

/// Has the transaction lock what a handler has, and is about to end.
/// Seen to fail: the acknowledgement waited for the lock, and those of others behind it.
async fn an_open_transaction_keeps_no_other_timer_from_ending(server: &Server) {
    let timer = Timer::builder().start().unwrap();
    let (end, ended) = watch::channel(false);
    let handler = move |due: Due| {
        let mut ended = ended.clone();
        async move {
            if due.key.as_deref() == Some("locked") {
                ended.wait_for(|ended| *ended).await.unwrap();
            }
            Outcome::Done
        }
    };
    let builder = Durable::postgres(server.config()).namespace(name());
    // So that no renewal is late on a busy machine, which would count as an error.
    let node = builder
        .lease(Duration::from_secs(60))
        .start(&timer, handler)
        .await
        .unwrap();
    node.schedule(Entry::keyed("locked", Duration::ZERO, "x"))
        .await
        .unwrap();
    until("it runs", || async { node.stats().claimed == 1 }).await;
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    let entry = Entry::keyed("locked", Duration::from_secs(3_600), "y");
    node.schedule_in(&transaction, entry).await.unwrap();
    end.send_replace(true);
    let soon = |n| Entry::keyed(format!("{n}"), Duration::ZERO, "x");
    node.schedule_many((0..300).map(soon).collect())
        .await
        .unwrap();
    until("the others end", || async { node.stats().done == 300 }).await;
    assert_eq!((node.stats().errors, node.stats().in_flight), (0, 1));
    transaction.rollback().await.unwrap();
    until("it ends", || async { node.stats().done == 301 }).await;
    assert!(node.get("locked").await.unwrap().is_none());
    assert_eq!(node.stats().errors, 0);
}

/// Locks a timer, and a key that has none before the commit; all calls are made at once.
/// Seen to fail: the others of their batches waited for five seconds, and failed as well.
async fn an_open_transaction_keeps_no_other_call_waiting(server: &Server) {
    let (node, _fired) = node(server, &name()).await;
    let far = |key: &str| Entry::keyed(key, Duration::from_secs(3_600), "x");
    node.schedule(far("locked")).await.unwrap();
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    for key in ["locked", "new"] {
        node.schedule_in(&transaction, far(key)).await.unwrap();
    }
    let mut others = JoinSet::new();
    let mut call = |key: String| {
        let node = node.clone();
        others.spawn(async move {
            node.schedule(far(&key)).await?;
            node.touch(&key, Duration::from_secs(7_200)).await?;
            node.cancel(&key).await
        });
    };
    (0..100).for_each(|n| call(format!("{n}")));
    let locked = async {
        tokio::join!(
            node.schedule(far("locked")),
            node.touch("locked", Duration::ZERO),
            node.cancel("locked"),
            node.schedule(far("new")),
            node.schedule_many(vec![far("beside"), far("new"), far("locked")]),
        )
    };
    let others = async {
        while let Some(answer) = others.join_next().await {
            assert_eq!(
                answer.unwrap().unwrap(),
                Cancelled::Cancelled(b"x".to_vec())
            );
        }
    };
    let (locked, ()) = tokio::join!(locked, others);
    let refused = |error: Option<Error>| matches!(error, Some(Error::Unavailable(_)));
    assert!(refused(locked.0.err()) && refused(locked.1.err()) && refused(locked.2.err()));
    assert!(refused(locked.3.err()) && refused(locked.4.err()));
    assert!(node.get("beside").await.unwrap().is_some());
    transaction.rollback().await.unwrap();
    assert!(node.get("new").await.unwrap().is_none(), "it was refused");
    assert_eq!(
        node.cancel("locked").await.unwrap(),
        Cancelled::Cancelled(b"x".to_vec())
    );
}

/// Has the whole table locked: so a statement that writes waits.
/// Seen to fail: what had been given up waited on in the server, one process of it for each.
async fn what_is_given_up_is_cancelled_on_the_server(server: &Server) {
    let (node, _fired) = node(server, &name()).await;
    let (mut client, watcher) = (client(server).await, client(server).await);
    node.schedule(Entry::keyed("locked", Duration::from_secs(3_600), "x"))
        .await
        .unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction
        .batch_execute("LOCK TABLE tickwheel.timer IN SHARE MODE")
        .await
        .unwrap();
    let backends = count(&watcher, BACKENDS).await;
    let touch = |node: Durable<Postgres>| async move { node.touch("locked", Duration::ZERO).await };
    let schedule = Entry::keyed("locked", Duration::ZERO, "z");
    let answers = tokio::join!(
        touch(node.clone()),
        node.schedule(schedule),
        touch(node.clone()),
        node.cancel("locked"),
        node.cancel_tag("none"),
    );
    assert!(matches!(
        answers.0,
        Err(Error::Uncertain(_) | Error::Unavailable(_))
    ));
    assert!(answers.1.is_err() && answers.2.is_err() && answers.3.is_err());
    until("no statement waits", || async {
        count(&watcher, WAITING).await == 0
    })
    .await;
    until("no more connections", || async {
        count(&watcher, BACKENDS).await <= backends
    })
    .await;
    transaction.commit().await.unwrap();
    // Nothing of what was given up takes effect now.
    assert_eq!(node.get("locked").await.unwrap().unwrap().payload, b"x");
    assert_eq!(
        node.touch("locked", Duration::from_secs(7_200))
            .await
            .unwrap(),
        Touched::Moved
    );
}

/// Has some of 5,000 timers touched while a step of a move, or of a cancel, finds them.
/// Seen to fail: the step found 1,000 and deleted 999, and was taken for the last.
async fn a_tag_is_moved_and_cancelled_to_its_end_beside_touches(server: &Server) {
    let (node, _fired) = node(server, &name()).await;
    let far = |n| Entry::keyed(format!("{n}"), Duration::from_secs(3_600), "x").tag("t");
    node.schedule_many((0..5_000).map(far).collect())
        .await
        .unwrap();
    let (mut client, watcher) = (client(server).await, client(server).await);
    let moved = "AND due < tickwheel.clock() + 5400 * 1000000::bigint";
    for (cancels, left) in [(false, moved), (true, "")] {
        let transaction = client.transaction().await.unwrap();
        let touch = "UPDATE tickwheel.timer SET due = due + 1 WHERE tag = 't' AND slot % 8 = 0";
        let touched = transaction.execute(touch, &[]).await.unwrap() as i64;
        assert!(touched > 100);
        let node = node.clone();
        let changing = tokio::spawn(async move {
            match cancels {
                true => node.cancel_tag("t").await,
                false => node.touch_tag("t", Duration::from_secs(7_200)).await,
            }
        });
        let left = format!("tickwheel.timer WHERE tag = 't' {left}");
        until("all others are changed", || async {
            count(&watcher, &left).await == touched
        })
        .await;
        transaction.commit().await.unwrap();
        assert_eq!(changing.await.unwrap().unwrap(), 5_000);
        assert_eq!(count(&watcher, &left).await, 0);
    }
}

/// Has each commit wait for a standby that does not come, while calls go on.
/// Seen to fail: each statement that was given up waited on in the server, until there were as many
/// as it takes.
async fn a_standby_that_is_away_takes_no_more_connections(server: &Server) {
    let watcher = client(server).await;
    let set = async |standby: &str| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{standby}'");
        watcher.batch_execute(&set).await.unwrap();
        watcher
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .unwrap();
    };
    let (node, mut fired) = node(server, &name()).await;
    let before = count(&watcher, BACKENDS).await;
    set("nobody").await;
    let mut calls = JoinSet::new();
    let (mut most, mut failed) = (0, 0);
    for number in 0..200 {
        let node = node.clone();
        calls.spawn(async move {
            node.schedule(Entry::keyed(format!("{number}"), Duration::ZERO, "x"))
                .await
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = most.max(count(&watcher, BACKENDS).await);
    }
    set("").await;
    while let Some(call) = calls.join_next().await {
        failed += usize::from(call.unwrap().is_err());
    }
    assert!(failed > 0, "the standby was there");
    // Six of the node, for each of them one that ends, and the watcher.
    assert!(most <= 13, "{most} connections instead of {before}");
    next(&mut fired).await;
}

/// Has a store told of timers that other connections write, in each way, and of no others.
async fn one_who_rests_is_told_of_each_timer(server: &Server) {
    let namespace = name();
    let open = || {
        Durable::postgres(server.config())
            .namespace(&namespace)
            .store()
            .open()
    };
    let (store, other) = (open().await.unwrap(), open().await.unwrap());
    let (node, _fired) = node(server, &namespace).await;
    let (rests, at) = (NodeId(7), |due: i64| {
        StoreTime::from_micros(32_000_000_000_000_000 + due)
    });
    let place = |due, id| Place {
        due: at(due),
        slot: other.slot(0),
        id,
    };
    let row = |due, id: i64| NewRow {
        place: place(due, id),
        key: Some(id.to_string()),
        ..NewRow::default()
    };
    let named = |id: i64| KeyName {
        slot: other.slot(0),
        key: id.to_string(),
    };
    let told = async || {
        let told = tokio::time::timeout(Duration::from_secs(60), store.told(rests)).await;
        told.expect("it is told").unwrap();
    };
    let silent = async || {
        let told = tokio::time::timeout(Duration::from_millis(200), store.told(rests)).await;
        assert!(told.is_err(), "of what is later");
    };
    assert!(store.rest(rests, StoreTime::MAX).await.unwrap());
    other.schedule(NodeId(0), vec![row(90, 1)]).await.unwrap();
    told().await;
    assert_eq!(store.first().await.unwrap().due, at(90));
    assert!(store.rest(rests, at(90)).await.unwrap());
    other
        .schedule(NodeId(0), vec![row(90, 2), row(91, 3)])
        .await
        .unwrap();
    other.touch(vec![(named(3), at(95))]).await.unwrap();
    silent().await;
    other.touch(vec![(named(3), at(80))]).await.unwrap();
    told().await;
    let mut client = client(server).await;
    let transaction = client.transaction().await.unwrap();
    let entry = Entry::keyed("own", SystemTime::from(at(85)), "x");
    node.schedule_in(&transaction, entry).await.unwrap();
    silent().await;
    transaction.commit().await.unwrap();
    told().await;
    // What began before one rested, and has not ended, may be earlier.
    let transaction = client.transaction().await.unwrap();
    transaction
        .batch_execute("SELECT txid_current()")
        .await
        .unwrap();
    assert!(store.rest(rests, StoreTime::MAX).await.unwrap());
    assert!(store.first().await.unwrap().open);
    transaction.commit().await.unwrap();
    assert!(!store.first().await.unwrap().open);
    // A connection that is cut is an error, and made anew.
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    client.batch_execute(cut).await.unwrap();
    let cut = tokio::time::timeout(Duration::from_secs(60), store.told(rests)).await;
    assert!(cut.expect("it is seen").is_err());
    assert!(store.rest(rests, StoreTime::MAX).await.unwrap());
    other.schedule(NodeId(0), vec![row(70, 4)]).await.unwrap();
    told().await;
    store.leave(rests).await.unwrap();
}

/// Seen to fail: it did not listen again, and looked again and again without a pause.
async fn one_who_rests_listens_again_when_it_was_cut_off(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let client = client(server).await;
    let listens = "pg_stat_activity WHERE query LIKE 'LISTEN%'";
    until("it rests", || async { count(&client, listens).await == 1 }).await;
    let cut = format!("SELECT pid FROM {listens} AND pg_terminate_backend(pid)");
    let former: i32 = client.query_one(&cut, &[]).await.unwrap().get(0);
    let others = format!("{listens} AND pid <> {former}");
    until("it listens again", || async {
        count(&client, &others).await == 1
    })
    .await;
    node.schedule(Entry::keyed("a", Duration::ZERO, "x"))
        .await
        .unwrap();
    assert_eq!(next(&mut fired).await.key.unwrap(), "a");
}
