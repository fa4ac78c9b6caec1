//! Schemas, databases and roles that are not the usual ones.

use crate::server::connect;
use crate::{
    HOUR, SERVER, builder, client, ends, name, next, next_key, schedule, short, start, until,
};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::postgres::{PostgresServer, tables};
use tickwheel_durable::{Due, Durable, DurableBuilder, Entry, Error, Outcome, Search};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;
use tokio_postgres::Config;

/// Makes a database, and returns how to reach it.
async fn database(name: &str, more: &str) -> Config {
    let make = format!("CREATE DATABASE {name} {more}");
    client().await.batch_execute(&make).await.unwrap();
    let mut config = SERVER.config();
    config.dbname(name);
    config
}

/// Returns why a node does not start.
async fn refusal(builder: DurableBuilder<PostgresServer>) -> Error {
    let timer = Timer::builder().start().unwrap();
    let refused = builder.start(&timer, async |_| Outcome::Done).await;
    refused.unwrap_err()
}

/// Each acknowledges within a transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schemas_know_nothing_of_each_other() {
    let namespace = name();
    let mut client = client().await;
    let mut nodes = Vec::new();
    for schema in ["tickwheel", "Other"] {
        let timer = Timer::builder().start().unwrap();
        let (sender, mut fired) = unbounded_channel();
        let handler = move |due: Due| {
            let sender = sender.clone();
            async move {
                let mut client = connect(&SERVER.config()).await.unwrap();
                let own = client.transaction().await.unwrap();
                due.ack_in(&own).await.unwrap();
                own.commit().await.unwrap();
                sender.send(due).unwrap();
                Outcome::Done
            }
        };
        let node = builder(SERVER.config(), &namespace).schema(schema);
        let node = node.start(&timer, handler).await.unwrap();
        let own = client.transaction().await.unwrap();
        let entry = Entry::keyed("a", Duration::ZERO, schema);
        node.schedule_in(&own, entry).await.unwrap();
        let sql = format!("SELECT \"{schema}\".schedule($1, 'b', now() + interval '1 day', $2)");
        own.execute(&sql, &[&namespace, &schema.as_bytes()])
            .await
            .unwrap();
        own.commit().await.unwrap();
        assert_eq!(next(&mut fired).await.payload, schema.as_bytes());
        node.pause(Some(schema), HOUR).await.unwrap();
        nodes.push((schema, node, fired));
    }
    for (schema, node, mut fired) in nodes {
        let listed = node.list(Search::new(9)).await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].payload, schema.as_bytes());
        let pauses = node.pauses().await.unwrap();
        assert_eq!(pauses.len(), 1);
        assert_eq!(pauses[0].tag.as_deref(), Some(schema));
        node.drain().await;
        assert!(fired.try_recv().is_err(), "the other's");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_needs_no_rights_but_those_to_change_timers() {
    let mut config = database("prepared", "").await;
    let administrator = connect(&config).await.unwrap();
    administrator
        .batch_execute("CREATE ROLE app LOGIN")
        .await
        .unwrap();
    config.user("app");
    let told = refusal(builder(config.clone(), "some")).await.to_string();
    assert!(told.contains("permission denied for database"), "{told}");
    let tables = tables("tickwheel").unwrap();
    administrator.batch_execute(&tables).await.unwrap();
    administrator.batch_execute(&tables).await.unwrap_err();
    let told = refusal(builder(config.clone(), "some")).await.to_string();
    assert!(
        told.contains("permission denied for schema tickwheel"),
        "{told}"
    );
    let least = "GRANT USAGE ON SCHEMA tickwheel TO app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON tickwheel.timer, tickwheel.pause TO app";
    administrator.batch_execute(least).await.unwrap();
    let timer = Timer::builder().start().unwrap();
    let handler = async |due: Due| match due.attempt {
        1 => Outcome::RetryAt(Duration::ZERO.into(), String::new()),
        _ => Outcome::Dead("no".to_owned()),
    };
    // So that no renewal is late on a busy machine, which would count as an error.
    let node = Durable::postgres(config).lease(Duration::from_secs(60));
    let node = node.start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("a", HOUR, "x").tag("t"))
        .await
        .unwrap();
    node.pause(Some("t"), HOUR).await.unwrap();
    node.touch("a", Duration::ZERO).await.unwrap();
    node.resume(Some("t")).await.unwrap();
    until(async || node.stats().dead == 1).await;
    assert_eq!(node.dead(Search::new(10)).await.unwrap()[0].reason, "no");
    assert_eq!(node.requeue_all(None).await.unwrap(), 1);
    until(async || node.stats().dead == 2).await;
    assert_eq!(node.delete_dead(Some("t")).await.unwrap(), 1);
    node.drain().await;
    assert_eq!(node.stats().errors, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_why() {
    let long = "\u{e4}".repeat(257);
    let at = |namespace: &str| builder(SERVER.config(), namespace);
    for (builder, begins, has) in [
        (at(&long), "the namespace \"\u{e4}", "514 bytes"),
        (at("a\0b"), "the namespace \"a\\0b\"", "no zero byte"),
        (at("a").schema("a-b"), "the schema \"a-b\"", "letters"),
        (at("a").schema("a\"b"), "the schema \"a\\\"b\"", "letters"),
    ] {
        let error = refusal(builder).await;
        assert!(matches!(error, Error::BadName(_)), "{error:?}");
        let told = error.to_string();
        assert!(told.starts_with(begins) && told.contains(has), "{told}");
        assert!(told.chars().count() < 150, "{told}");
    }
    assert!(matches!(tables("a-b"), Err(Error::BadName(_))));
    for (user, database, why) in [
        ("stranger", "postgres", "role \"stranger\" does not exist"),
        ("postgres", "nowhere", "database \"nowhere\" does not exist"),
    ] {
        let mut config = SERVER.config();
        let config = config.user(user).dbname(database).clone();
        let error = refusal(builder(config, "a")).await;
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_too_few_connections_does_not_start() {
    drop(start(builder(SERVER.config(), &name())).await); // There are tables.
    let client = client().await;
    let make = "CREATE ROLE few LOGIN CONNECTION LIMIT 3;
        GRANT USAGE ON SCHEMA tickwheel TO few;
        GRANT ALL ON ALL TABLES IN SCHEMA tickwheel TO few";
    client.batch_execute(make).await.unwrap();
    let mut config = SERVER.config();
    config.user("few");
    let error = refusal(builder(config, &name())).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(
        error.to_string().contains("too many connections"),
        "{error}"
    );
}

/// A check refuses timers one by one, also where they share a batch with others. Of tables without
/// a primary key, whose changes are published, the server would let nobody change a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_may_refuse_timers_and_publish_all_tables() {
    let config = database("picky", "").await;
    let client = connect(&config).await.unwrap();
    let publish = "CREATE PUBLICATION everything FOR ALL TABLES";
    client.batch_execute(publish).await.unwrap();
    let (node, mut fired) = start(builder(config, "some")).await;
    let check = "ALTER TABLE tickwheel.timer ADD CHECK (name NOT LIKE 'kbad%')";
    client.batch_execute(check).await.unwrap();
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let node = node.clone();
        let is_bad = number % 25 == 7;
        let key = if is_bad { "bad" } else { "\u{96ea}" };
        let key = format!("{key} {number}");
        calls.spawn(async move {
            for delay in [HOUR, Duration::ZERO] {
                let error = node.schedule(Entry::keyed(&key, delay, "x")).await.err();
                let is_right = match error {
                    None => !is_bad,
                    Some(Error::Refused(_)) => is_bad,
                    Some(_) => false,
                };
                assert!(is_right, "{key}: {error:?}");
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    for _ in 0..96 {
        assert!(next_key(&mut fired).await.starts_with('\u{96ea}'));
    }
    for key in ["\u{e9}", "\u{e9}a", "\u{e9}\u{10ffff}", "\u{ea}", "z"] {
        schedule(&node, key, HOUR).await;
    }
    let prefixed = Search::new(9).key_prefix("\u{e9}");
    assert_eq!(node.list(prefixed).await.unwrap().len(), 3);
    for _ in 0..2 {
        node.pause(Some("a"), HOUR).await.unwrap();
    }
    node.resume(Some("a")).await.unwrap();
    node.drain().await;
}

/// Of other encodings nodes could not read each character: one such key would stop all claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_encoding_is_refused() {
    let other = "ENCODING 'EUC_TW' LOCALE 'C' TEMPLATE template0";
    let config = database("taiwan", other).await;
    let error = refusal(builder(config, "some")).await;
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("EUC_TW"), "{error}");
}

/// A call in a user's transaction waits for a row that another one has locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_gives_a_row_up_that_it_sees_and_may_not_lock() {
    let mut config = database("guarded", "").await;
    let administrator = connect(&config).await.unwrap();
    let tables = tables("tickwheel").unwrap();
    administrator.batch_execute(&tables).await.unwrap();
    let guard = "CREATE ROLE sees LOGIN;
        GRANT USAGE ON SCHEMA tickwheel TO sees;
        GRANT SELECT, INSERT, UPDATE, DELETE ON tickwheel.timer, tickwheel.pause TO sees;
        ALTER TABLE tickwheel.timer ENABLE ROW LEVEL SECURITY;
        CREATE POLICY sees ON tickwheel.timer FOR SELECT USING (true);
        SELECT tickwheel.schedule('some', 'a', now(), 'x')";
    administrator.batch_execute(guard).await.unwrap();
    config.user("sees");
    let client = connect(&config).await.unwrap();
    let cancel = client.execute("SELECT tickwheel.cancel('some', 'a')", &[]);
    let refused = ends(cancel).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "55P03");
}

/// An administrator may replace a function by one that answers nothing of use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_goes_on_after_answers_that_it_cannot_read() {
    let schema = "unreadable";
    let (node, mut fired) = start(short(SERVER.config(), &name()).schema(schema)).await;
    let client = client().await;
    for function in ["claim_batch", "ack_batch", "look"] {
        let sql = format!("SELECT pg_get_functiondef('{schema}.{function}'::regproc)");
        let former: String = client.query_one(&sql, &[]).await.unwrap().get(0);
        let (head, _) = former.split_once("AS $function$").unwrap();
        let nulls = match function {
            "claim_batch" => "DECLARE r unreadable.claimed; BEGIN RETURN NEXT r; END",
            "ack_batch" => "BEGIN RETURN NEXT; END",
            _ => "BEGIN END",
        };
        let unreadable = format!("{head} AS $function$ {nulls} $function$");
        let errors = node.stats().errors;
        client.batch_execute(&unreadable).await.unwrap();
        schedule(&node, function, Duration::ZERO).await;
        until(async || node.stats().errors > errors).await;
        client.batch_execute(&former).await.unwrap();
        while next_key(&mut fired).await != function {}
    }
    until(async || node.stats().in_flight == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_right_that_it_needs_does_not_start() {
    drop(start(builder(SERVER.config(), &name())).await); // There are tables.
    let make = "CREATE ROLE keeps LOGIN;
        GRANT USAGE ON SCHEMA tickwheel TO keeps;
        GRANT SELECT, INSERT, UPDATE ON tickwheel.timer, tickwheel.pause TO keeps;
        GRANT DELETE ON tickwheel.pause TO keeps";
    client().await.batch_execute(make).await.unwrap();
    let mut config = SERVER.config();
    config.user("keeps");
    let error = refusal(builder(config, &name())).await;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(
        error.to_string().contains("DELETE on tickwheel.timer"),
        "{error}"
    );
}

/// In the parts of a partitioned table different rows have the same place: a node fired the timers
/// of another namespace an hour early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_start_on_tables_that_are_not_plain_ones() {
    drop(start(builder(SERVER.config(), &name()).schema("odd")).await);
    let client = client().await;
    let make = "CREATE ROLE rows LOGIN;
        GRANT USAGE ON SCHEMA odd TO rows;
        GRANT SELECT, INSERT, UPDATE, DELETE ON odd.timer, odd.pause TO rows";
    client.batch_execute(make).await.unwrap();
    let mut config = SERVER.config();
    config.user("rows");
    for (odd, plain) in [
        (
            "ALTER TABLE odd.pause SET UNLOGGED",
            "ALTER TABLE odd.pause SET LOGGED",
        ),
        (
            "CREATE TABLE odd.child () INHERITS (odd.timer)",
            "DROP TABLE odd.child",
        ),
        (
            "ALTER TABLE odd.timer ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE odd.timer DISABLE ROW LEVEL SECURITY",
        ),
    ] {
        client.batch_execute(odd).await.unwrap();
        let error = refusal(builder(config.clone(), &name()).schema("odd")).await;
        assert!(
            error.to_string().contains("is not a plain table"),
            "{odd}: {error}"
        );
        client.batch_execute(plain).await.unwrap();
        drop(start(builder(config.clone(), &name()).schema("odd")).await);
    }
}
