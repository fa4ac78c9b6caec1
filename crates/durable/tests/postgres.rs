//! The store on PostgreSQL: beside the store in memory, in transactions, and when it fails.

#[path = "common/postgres.rs"]
mod helpers;
#[path = "common/cases.rs"]
mod cases;
#[path = "common/poison.rs"]
mod poison;
#[path = "common/stores.rs"]
mod stores;
#[path = "common/server.rs"]
mod server;

use cases::cases;
use helpers::{client, keep_awake, name, next, node};
use poison::a_poison_takes_no_neighbour_along;
use quickcheck::{Arbitrary, Gen};
use server::{Server, connect};
use std::time::Duration;
use stores::{Driven, Wrapped, compare};
use tickwheel::{SystemClock, Timer};
use tickwheel_durable::store::memory::Memory;
use tickwheel_durable::store::postgres::{VERSION, migration};
use tickwheel_durable::store::{Claim, NewRow, NodeId, Owned, Place, Store};
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, OpenStore, Outcome, Scheduled, Search, StoreTime,
};
use tokio::sync::mpsc::unbounded_channel;

/// Runs all tests of this file on one server, one after the other. It does without `fsync`: what
/// crashes here is the server and not the machine, which keeps what was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let server = Server::start(&["fsync=off"]).expect("PostgreSQL is installed");
    many_nodes_start_at_once_on_an_empty_database(&server).await;
    an_unknown_schema_is_refused(&server).await;
    transactions_take_timers_along(&server).await;
    a_cut_connection_and_a_crash_lose_nothing(&server).await;
    a_dead_node_is_taken_over(&server).await;
    who_is_about_to_leave_shares_no_more_and_tells_what_it_gives_up(&server).await;
    one_poison_timer_takes_no_neighbour_along(&server).await;
    it_needs_no_rights_but_those_listed(&server).await;
    a_namespace_keeps_its_number(&server).await;
    an_answer_has_so_many_bytes(&server).await;
    what_a_database_does_not_take_is_refused_alone(&server).await;
    an_error_says_why_the_server_refused(&server).await;
    slots_that_are_deleted_are_made_anew(&server).await;
    it_answers_as_the_store_in_memory_does(&server).await;
    none_is_taken_twice_of_many(&server).await;
}

async fn it_answers_as_the_store_in_memory_does(server: &Server) {
    let mut random = Gen::new(25);
    let random = (0..30).map(|_| Wrapped::arbitrary(&mut random).0);
    let schemas = ["tickwheel", "Other"].into_iter().cycle();
    for (steps, schema) in [cases(), cases()].into_iter().chain(random).zip(schemas) {
        let store = Durable::postgres(server.config())
            .namespace(name())
            .schema(schema)
            .store();
        compare(
            Memory::new(1_024, SystemClock),
            store.open().await.unwrap(),
            &steps,
        )
        .await;
    }
}

async fn none_is_taken_twice_of_many(server: &Server) {
    let store = Durable::postgres(server.config())
        .namespace(name())
        .store()
        .open()
        .await
        .unwrap();
    let mut driven = Driven::new(store).await;
    driven.dead_ones_are_brought_back_or_deleted_once().await;
    driven.timers_are_moved_once().await;
}

async fn many_nodes_start_at_once_on_an_empty_database(server: &Server) {
    let namespace = name();
    let start = || node(server, &namespace);
    let nodes = tokio::join!(start(), start(), start());
    keep_awake(server, &namespace).await;
    let nodes = [&nodes.0.0, &nodes.1.0, &nodes.2.0];
    let shares = || nodes.map(|node| node.stats().slots);
    while shares().iter().sum::<u64>() != 1_024 || shares().iter().any(|share| *share > 342) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn an_unknown_schema_is_refused(server: &Server) {
    let client = client(server).await;
    for unknown in [6, 77] {
        let change = format!("UPDATE tickwheel.version SET version = {unknown}");
        client.batch_execute(&change).await.unwrap();
        let opened = Durable::postgres(server.config()).store().open().await;
        for refused in [opened.map(drop), migration("tickwheel", unknown).map(drop)] {
            let Err(Error::UnknownSchema {
                found,
                known: VERSION,
            }) = refused
            else {
                panic!("{refused:?}");
            };
            assert_eq!(found, unknown);
        }
    }
    let back = format!("UPDATE tickwheel.version SET version = {VERSION}");
    client.batch_execute(&back).await.unwrap();
}

async fn transactions_take_timers_along(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let mut client = client(server).await;
    for (key, commits) in [("rolled back", false), ("committed", true)] {
        let transaction = client.transaction().await.unwrap();
        let entry = Entry::keyed(key, Duration::from_millis(300), "x");
        let answer = node.schedule_in(&transaction, entry).await.unwrap();
        assert_eq!(answer, Scheduled::New);
        assert!(
            node.get(key).await.unwrap().is_none(),
            "not before the commit"
        );
        if commits {
            transaction.commit().await.unwrap();
        }
    }
    assert_eq!(next(&mut fired).await.key.unwrap(), "committed");
    assert_eq!(
        node.cancel("rolled back").await.unwrap(),
        Cancelled::Unknown
    );
    assert_eq!(
        node.stats().scheduled,
        2,
        "the node is not told of the rollback"
    );
}

async fn a_cut_connection_and_a_crash_lose_nothing(server: &Server) {
    let (node, mut fired) = node(server, &name()).await;
    let entries =
        (0..200).map(|n| Entry::keyed(format!("{n}"), Duration::from_millis(500 + 10 * n), "x"));
    node.schedule_many(entries.collect()).await.unwrap();
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    client(server).await.batch_execute(cut).await.unwrap();
    tokio::time::sleep(Duration::from_millis(800)).await;
    tokio::task::block_in_place(|| {
        server.crash().unwrap();
        server.go(&["fsync=off"]).unwrap();
    });
    let mut keys = std::collections::HashSet::new();
    while keys.len() < 200 {
        keys.insert(next(&mut fired).await.key.unwrap());
    }
    assert!(node.stats().errors > 0);
}

async fn a_dead_node_is_taken_over(server: &Server) {
    let namespace = name();
    let (first, fired) = node(server, &namespace).await;
    let (second, mut fired_later) = node(server, &namespace).await;
    keep_awake(server, &namespace).await;
    while second.stats().slots != 512 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop((first, fired));
    for n in 0..50 {
        let entry = Entry::keyed(format!("{n}"), Duration::from_millis(100), "x");
        second.schedule(entry).await.unwrap();
    }
    let mut keys = std::collections::HashSet::new();
    while keys.len() < 50 {
        keys.insert(next(&mut fired_later).await.key.unwrap());
    }
    while second.stats().slots != 1_024 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Checks the rights that the README lists, on tables that an administrator has made.
async fn it_needs_no_rights_but_those_listed(server: &Server) {
    client(server)
        .await
        .batch_execute("CREATE DATABASE migrated")
        .await
        .unwrap();
    let mut config = server.config();
    config.dbname("migrated");
    let mut administrator = connect(&config).await.unwrap();
    for (from, refused) in [
        (0, None),
        (0, Some("the tables are not of version 0")),
        (VERSION, None),
    ] {
        let change = administrator.transaction().await.unwrap();
        let done = change
            .batch_execute(&migration("tickwheel", from).unwrap())
            .await;
        let told = done
            .err()
            .map(|error| error.as_db_error().unwrap().message().to_owned());
        assert_eq!(told.as_deref(), refused);
        change.commit().await.unwrap();
    }
    let least = "CREATE ROLE app LOGIN;
        GRANT USAGE ON SCHEMA tickwheel TO app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON tickwheel.member, tickwheel.slot, tickwheel.timer,
            tickwheel.inbox, tickwheel.dead, tickwheel.pause TO app;
        GRANT SELECT, INSERT ON tickwheel.namespace TO app;
        GRANT SELECT ON tickwheel.version TO app;";
    administrator.batch_execute(least).await.unwrap();
    config.user("app");
    let timer = Timer::builder().start().unwrap();
    let (sender, mut fired) = unbounded_channel();
    let handler = move |due: Due| {
        let _ = sender.send(due.clone());
        async { Outcome::Dead("no".to_owned()) }
    };
    // So that no renewal is late on a busy machine, which would count as an error.
    let builder = Durable::postgres(config)
        .namespace(name())
        .lease(Duration::from_secs(60));
    let node = builder.start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("a", Duration::from_millis(100), "x"))
        .await
        .unwrap();
    assert_eq!(next(&mut fired).await.key.unwrap(), "a");
    node.drain().await;
    assert_eq!(node.dead(Search::new(10)).await.unwrap().len(), 1);
    assert_eq!(node.stats().errors, 0);
}

/// Seen to fail: each start drew a number, and after so many the slots were another's.
async fn a_namespace_keeps_its_number(server: &Server) {
    let client = client(server).await;
    let (mut numbers, name) = (Vec::new(), name());
    for _ in 0..3 {
        let store = Durable::postgres(server.config()).namespace(&name).store();
        drop(store.open().await.unwrap());
        let sql = "SELECT last_value FROM pg_sequences WHERE schemaname = 'tickwheel'
            AND sequencename = 'namespace_id_seq'";
        numbers.push(client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0));
    }
    assert_eq!(numbers, [numbers[0]; 3]);
    let far = "INSERT INTO tickwheel.namespace (id, name) OVERRIDING SYSTEM VALUE VALUES ($1, $2)";
    for (number, is_there) in [(2_097_150, true), (2_097_151, false), (4_194_304, false)] {
        let name = format!("{name} {number}");
        client.execute(far, &[&number, &name]).await.unwrap();
        let store = Durable::postgres(server.config())
            .namespace(name)
            .store()
            .open()
            .await;
        assert_eq!(store.is_ok(), is_there, "{number}");
    }
}

/// Has a database whose encoding has few characters.
/// Seen to fail: whatever shared a batch with what it does not take was refused as well, and
/// acknowledged never.
async fn what_a_database_does_not_take_is_refused_alone(server: &Server) {
    let make = "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    client(server).await.batch_execute(make).await.unwrap();
    let timer = Timer::builder().start().unwrap();
    let handler = |_| async { Outcome::Dead("雪 and é".to_owned()) };
    let node = Durable::postgres(server.config().dbname("latin").clone());
    let node = node.start(&timer, handler).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (node, bad) = (node.clone(), number % 50 == 7);
        let key = if bad {
            format!("雪 {number}")
        } else {
            format!("{number}")
        };
        calls.spawn(async move {
            let far = Duration::from_secs(3_600);
            let answers = [
                node.schedule(Entry::keyed(&key, far, "x")).await.err(),
                node.touch(&key, far * 2).await.err(),
                node.cancel(&key).await.err(),
                node.schedule(Entry::keyed(&key, Duration::ZERO, "x"))
                    .await
                    .err(),
            ];
            answers.into_iter().for_each(|error| match error {
                None => assert!(!bad),
                Some(error) => assert!(bad && matches!(error, Error::Refused(_)), "{error}"),
            });
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    while node.stats().dead < 196 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        node.dead(Search::new(1)).await.unwrap()[0].reason,
        "\\u{96ea} and \\u{e9}"
    );
}

/// Has more bytes due at once than go over a slow link while anybody waits for an answer.
/// Seen to fail: one answer had all of them.
async fn an_answer_has_so_many_bytes(server: &Server) {
    let store = Durable::postgres(server.config()).namespace(name()).store();
    let mut driven = Driven::new(store.open().await.unwrap()).await;
    let claimed = driven.claim_of_bytes(&[300_000; 12]).await;
    assert_eq!(claimed, [4, 4, 4]);
    let claimed = driven
        .claim_of_bytes(&[1 << 20, 1 << 20, 5, (1 << 20) - 6, 1, 1])
        .await;
    assert_eq!(claimed, [1, 1, 3, 1]);
    let (node, mut fired) = node(server, &name()).await;
    let entry = |_| Entry::unkeyed(Duration::ZERO, vec![0; 300_000]);
    node.schedule_many((0..50).map(entry).collect())
        .await
        .unwrap();
    for _ in 0..50 {
        assert_eq!(next(&mut fired).await.attempt, 1);
    }
    node.drain().await;
    assert!(fired.try_recv().is_err());
}

/// Checks that an error holds what the server said.
/// Seen to fail: it was "db error".
async fn an_error_says_why_the_server_refused(server: &Server) {
    client(server)
        .await
        .batch_execute("CREATE ROLE nobody LOGIN")
        .await
        .unwrap();
    for (user, database, why) in [
        (
            "nobody",
            "postgres",
            "permission denied for schema tickwheel",
        ),
        ("stranger", "postgres", "role \"stranger\" does not exist"),
        ("postgres", "nowhere", "database \"nowhere\" does not exist"),
    ] {
        let mut config = server.config();
        let refused = Durable::postgres(config.user(user).dbname(database).clone()).store();
        let told = refused.open().await.unwrap_err().to_string();
        assert!(told.contains(why), "{told}");
    }
}

/// Seen to fail: schedules were `Ok`, and nothing of them fired, nor what had been claimed before.
async fn slots_that_are_deleted_are_made_anew(server: &Server) {
    let (client, name) = (client(server).await, name());
    let store = Durable::postgres(server.config())
        .namespace(&name)
        .store()
        .open()
        .await
        .unwrap();
    let truncate = async || {
        client
            .batch_execute("TRUNCATE tickwheel.slot")
            .await
            .unwrap()
    };
    let (id, slot) = (NodeId(81), store.slot(0));
    let place = Place {
        due: StoreTime::MIN,
        slot,
        id: 1,
    };
    let rows = || {
        vec![NewRow {
            place,
            ..NewRow::default()
        }]
    };
    let claims = |owned: Vec<Owned>| {
        let epoch = owned.iter().find(|owned| owned.slot == slot).unwrap().epoch;
        vec![Claim { place, epoch }]
    };
    store.join(id, Duration::from_secs(60)).await.unwrap();
    store.schedule(id, rows()).await.unwrap();
    let first = claims(store.take(id, 1_024).await.unwrap());
    assert_eq!(
        store.claim(id, first.clone(), 0).await.unwrap().rows.len(),
        1
    );
    truncate().await;
    assert!(
        store.schedule(id, rows()).await.is_err(),
        "it would not fire"
    );
    truncate().await;
    assert!(store.survey(id).await.is_err(), "it says so");
    truncate().await;
    assert!(store.first().await.is_err(), "it says so");
    let survey = store.survey(id).await.unwrap();
    assert_eq!(
        (survey.slots, survey.free, survey.owned.len()),
        (1_024, 1_024, 0)
    );
    let second = claims(store.take(id, 1_024).await.unwrap());
    assert!(second[0].epoch > first[0].epoch);
    let answer = store.claim(id, second, 1).await.unwrap();
    assert_eq!((answer.rows.len(), answer.rows[0].attempts), (1, 2));
    store.leave(id).await.unwrap();
    client
        .batch_execute("DELETE FROM tickwheel.timer")
        .await
        .unwrap();
    a_node_fires_what_was_there(server, &name).await;
}

/// Deletes all slots after one timer was scheduled, and before another one is.
async fn a_node_fires_what_was_there(server: &Server, name: &str) {
    let (client, (node, mut fired)) = (client(server).await, node(server, name).await);
    node.schedule(Entry::keyed("before", Duration::from_secs(2), "x"))
        .await
        .unwrap();
    client
        .batch_execute("TRUNCATE tickwheel.slot")
        .await
        .unwrap();
    assert_eq!(next(&mut fired).await.key.unwrap(), "before");
    assert!(node.stats().errors > 0);
    while node
        .schedule(Entry::keyed("after", Duration::ZERO, "x"))
        .await
        .is_err()
    {}
    assert_eq!(next(&mut fired).await.key.unwrap(), "after");
}

async fn who_is_about_to_leave_shares_no_more_and_tells_what_it_gives_up(server: &Server) {
    let store = Durable::postgres(server.config())
        .namespace(name())
        .store()
        .open()
        .await
        .unwrap();
    let [leaves, stays] = [NodeId(71), NodeId(72)];
    for node in [leaves, stays] {
        store.join(node, Duration::from_secs(60)).await.unwrap();
    }
    let owned = store.take(leaves, 2).await.unwrap();
    assert_eq!(store.survey(stays).await.unwrap().live, 2);
    let until = store
        .survey(stays)
        .await
        .unwrap()
        .next_end
        .expect("another node is there");
    assert!(until <= Duration::from_secs(60));
    for (given, retires) in owned.iter().zip([true, false]) {
        store.release(leaves, vec![*given]).await.unwrap();
        let told = store.hints(stays).await.unwrap().places;
        assert_eq!(
            told.iter().map(|place| place.slot).collect::<Vec<_>>(),
            [given.slot]
        );
        assert!(
            store.hints(leaves).await.unwrap().places.is_empty(),
            "it knows"
        );
        if retires {
            store.retire(leaves).await.unwrap();
        }
    }
    let survey = store.survey(stays).await.unwrap();
    assert_eq!((survey.live, survey.free), (1, 1_024));
    store.leave(leaves).await.unwrap();
    store.leave(stays).await.unwrap();
}

async fn one_poison_timer_takes_no_neighbour_along(server: &Server) {
    let namespace = name();
    a_poison_takes_no_neighbour_along(|| {
        Durable::postgres(server.config())
            .namespace(&namespace)
            .lease(Duration::from_secs(1))
    })
    .await;
}
