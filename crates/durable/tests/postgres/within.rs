//! Timers inside transactions of users' own, by Rust and by SQL.

use crate::server::connect;
use crate::{HOUR, SERVER, builder, client, name, next, next_key, node, schedule, until};
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, Outcome, Scheduled, Search, Touched,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::error::SqlState;
use tokio_postgres::{IsolationLevel, Transaction};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_changes_is_so_if_it_commits() {
    let (node, mut fired) = node(&name()).await;
    let mut client = client().await;
    for key in ["a", "b"] {
        schedule(&node, key, HOUR).await;
    }
    for commits in [false, true] {
        let own = client.transaction().await.unwrap();
        let cancelled = node.cancel_in(&own, "a").await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled(b"x".to_vec()));
        assert_eq!(node.cancel_in(&own, "a").await.unwrap(), Cancelled::Unknown);
        let moved = node.touch_in(&own, "b", Duration::ZERO).await.unwrap();
        assert_eq!(moved, Touched::Moved);
        let unknown = node.touch_in(&own, "c", HOUR).await.unwrap();
        assert_eq!(unknown, Touched::Unknown);
        let scheduled = node.schedule_in(&own, Entry::keyed("c", HOUR, "y")).await;
        assert_eq!(scheduled.unwrap(), Scheduled::New);
        let kept = Entry::keyed("c", HOUR, "z").keep_existing();
        let kept = node.schedule_in(&own, kept).await;
        assert_eq!(kept.unwrap(), Scheduled::Kept);
        assert!(node.get("a").await.unwrap().is_some() && node.get("c").await.unwrap().is_none());
        match commits {
            true => own.commit().await.unwrap(),
            false => own.rollback().await.unwrap(),
        }
    }
    assert_eq!(next_key(&mut fired).await, "b");
    assert_eq!(node.get("a").await.unwrap(), None);
    assert_eq!(node.get("c").await.unwrap().unwrap().payload, b"y");
    assert!(fired.try_recv().is_err());
    // The transaction goes on after what was never asked of it.
    let own = client.transaction().await.unwrap();
    for bad in ["x".repeat(513), "a\0b".to_owned()] {
        let cancelled = node.cancel_in(&own, &bad).await;
        assert!(matches!(cancelled, Err(Error::BadName(_))));
        let touched = node.touch_in(&own, &bad, HOUR).await;
        assert!(matches!(touched, Err(Error::BadName(_))));
        let scheduled = node.schedule_in(&own, Entry::keyed(bad, HOUR, "")).await;
        assert!(matches!(scheduled, Err(Error::BadName(_))));
    }
    let long = Entry::unkeyed(HOUR, vec![0; (1 << 20) + 1]);
    let scheduled = node.schedule_in(&own, long).await;
    assert!(matches!(scheduled, Err(Error::PayloadTooLong(_))));
    assert_eq!(
        node.touch_in(&own, "c", HOUR).await.unwrap(),
        Touched::Moved
    );
    own.commit().await.unwrap();
}

/// Makes a call, by Rust or by SQL; returns the code with which the database refuses it.
async fn refused(
    node: &Durable<Postgres>,
    own: &Transaction<'_>,
    call: &str,
    key: &str,
) -> Option<SqlState> {
    let entry = Entry::keyed(key, HOUR, "z");
    let failed = match call {
        "schedule_in" => node.schedule_in(own, entry).await.err()?,
        "touch_in" => node.touch_in(own, key, HOUR).await.err()?,
        "cancel_in" => node.cancel_in(own, key).await.err()?,
        sql => {
            let sql = format!("SELECT tickwheel.{sql}");
            return own.execute(&sql, &[]).await.err()?.code().cloned();
        }
    };
    let Error::Unavailable(cause) = failed else {
        panic!("{failed:?}");
    };
    let cause: &tokio_postgres::Error = cause.downcast_ref()?;
    cause.code().cloned()
}

/// Above `READ COMMITTED` a call fails whose key has changed since the transaction's snapshot, and
/// does when the transaction is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_a_strict_level_fails_and_may_be_repeated() {
    let namespace = name();
    let (node, mut fired) = node(&namespace).await;
    let mut client = client().await;
    let calls = ["schedule_in", "touch_in", "cancel_in"].map(str::to_owned);
    let hour = "now() + interval '1 hour'";
    let by_sql = [
        format!("schedule('{namespace}', 'key', {hour}, 'z')"),
        format!("touch('{namespace}', 'key', {hour})"),
        format!("cancel('{namespace}', 'key')"),
    ];
    let crossed = Some(SqlState::T_R_SERIALIZATION_FAILURE);
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        for call in calls.iter().chain(&by_sql) {
            schedule(&node, "key", HOUR).await;
            for is_repeated in [false, true] {
                let own = client.build_transaction().isolation_level(level);
                let own = own.start().await.unwrap();
                own.batch_execute("SELECT").await.unwrap(); // Its snapshot.
                if is_repeated {
                    assert_eq!(refused(&node, &own, call, "key").await, None, "{call}");
                    own.commit().await.unwrap();
                    break;
                }
                schedule(&node, "key", HOUR).await;
                assert_eq!(refused(&node, &own, call, "key").await, crossed, "{call}");
                own.rollback().await.unwrap();
            }
        }
        // A key that is new since then: a schedule sees it, and the others do not.
        let own = client.build_transaction().isolation_level(level);
        let own = own.start().await.unwrap();
        own.batch_execute("SELECT").await.unwrap();
        schedule(&node, "new", HOUR).await;
        assert_eq!(
            node.cancel_in(&own, "new").await.unwrap(),
            Cancelled::Unknown
        );
        assert_eq!(refused(&node, &own, "schedule_in", "new").await, crossed);
        own.rollback().await.unwrap();
        // One that nobody disturbs fires.
        let own = client.build_transaction().isolation_level(level);
        let own = own.start().await.unwrap();
        node.touch_in(&own, "new", Duration::ZERO).await.unwrap();
        own.commit().await.unwrap();
        assert_eq!(next_key(&mut fired).await, "new");
        until(async || node.get("new").await.unwrap().is_none()).await;
    }
}

/// The other transaction deletes the key's row and inserts another one, while a call waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_meets_the_timer_that_has_come_meanwhile() {
    let namespace = name();
    let (node, _fired) = node(&namespace).await;
    let mut first = client().await;
    let mut second = client().await;
    let watcher = client().await;
    schedule(&node, "key", HOUR).await;
    for call in ["cancel", "touch"] {
        let other = first.transaction().await.unwrap();
        node.cancel_in(&other, "key").await.unwrap();
        let entry = Entry::keyed("key", HOUR, call);
        node.schedule_in(&other, entry).await.unwrap();
        let own = second.transaction().await.unwrap();
        let pid: i32 = own
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let waits = async {
            let sql = "SELECT cardinality(pg_blocking_pids($1)) > 0";
            until(async || watcher.query_one(sql, &[&pid]).await.unwrap().get(0)).await;
            other.commit().await.unwrap();
        };
        if call == "cancel" {
            let (cancelled, ()) = tokio::join!(node.cancel_in(&own, "key"), waits);
            assert_eq!(cancelled.unwrap(), Cancelled::Cancelled(b"cancel".to_vec()));
            own.rollback().await.unwrap();
        } else {
            let (touched, ()) = tokio::join!(node.touch_in(&own, "key", HOUR), waits);
            assert_eq!(touched.unwrap(), Touched::Moved);
            own.commit().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_is_refused_what_it_may_not() {
    let own = name();
    let (node, _fired) = node(&own).await;
    let client = client().await;
    schedule(&node, "live", HOUR).await;
    let schedule = |key: &str, time: &str, payload: &str, tag: &str| {
        format!("schedule('{own}', {key}, {time}, {payload}, {tag})")
    };
    let long = "repeat('x', 513)";
    let many = "repeat('x', 1048577)::bytea";
    let mut refused = vec![
        (schedule(long, "now()", "''", "''"), "512 bytes"),
        (schedule("'live'", "now()", "''", long), "512 bytes"),
        (schedule("'live'", "now()", many, "''"), "1 MiB"),
        (schedule("'live'", "now()", "NULL", "''"), "null value"),
        (
            "schedule(NULL, 'live', now(), '')".to_owned(),
            "a namespace is null",
        ),
        (format!("cancel('{own}', NULL)"), "a key is null"),
        (format!("touch('{own}', NULL, now())"), "a key is null"),
        ("cancel(NULL, 'live')".to_owned(), "a namespace or"),
        ("touch(NULL, 'live', now())".to_owned(), "a namespace or"),
    ];
    for time in ["NULL", "now() + NULL", "'infinity'", "'-infinity'"] {
        let why = "a time is null or infinite";
        refused.push((schedule("'live'", time, "'y'", "''"), why));
        refused.push((format!("touch('{own}', 'live', {time})"), why));
    }
    for (call, why) in refused {
        let error = client
            .batch_execute(&format!("SELECT tickwheel.{call}"))
            .await;
        let error = error.expect_err(&call);
        let told = error.as_db_error().expect("the server's").message();
        assert!(told.contains(why), "{call}: {told}");
    }
    let live = node.get("live").await.unwrap().unwrap();
    assert!(live.payload == b"x" && SystemTime::from(live.at) < SystemTime::now() + 2 * HOUR);
    assert_eq!(node.list(Search::new(9)).await.unwrap().len(), 1);
}

/// The handler rolls its effect and the acknowledgement back, then commits them, and each time asks
/// for another attempt, as if the answer to its commit had been lost: nothing is left to retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_is_committed_with_its_acknowledgement_happens_once() {
    client()
        .await
        .batch_execute("CREATE TABLE effect (key text)")
        .await
        .unwrap();
    let timer = Timer::builder().start().unwrap();
    let (sender, mut ran) = unbounded_channel();
    let namespace = name();
    let node = builder(SERVER.config(), &namespace);
    let handler = move |due: Due| {
        let sender = sender.clone();
        let namespace = namespace.clone();
        async move {
            let mut client = connect(&SERVER.config()).await.unwrap();
            let own = client.transaction().await.unwrap();
            own.execute("INSERT INTO effect VALUES ($1)", &[&due.key])
                .await
                .unwrap();
            let sql = "SELECT tickwheel.ack($1, $2, $3)";
            match due.key.as_deref() {
                Some("sql") => {
                    own.execute(sql, &[&namespace, &due.name, &due.token])
                        .await
                        .unwrap();
                }
                _ => due.ack_in(&own).await.unwrap(),
            }
            match due.attempt {
                1 => own.rollback().await.unwrap(),
                _ => own.commit().await.unwrap(),
            }
            sender.send(due).unwrap();
            Outcome::RetryAt(Duration::ZERO.into(), String::new())
        }
    };
    let node = node.start(&timer, handler).await.unwrap();
    for key in ["sql", "rust"] {
        schedule(&node, key, Duration::ZERO).await;
    }
    let mut attempts = Vec::new();
    for _ in 0..4 {
        let due = next(&mut ran).await;
        attempts.push((due.key.unwrap(), due.attempt));
    }
    attempts.sort();
    let twice = ["rust", "sql"].map(|key| [(key.to_owned(), 1), (key.to_owned(), 2)]);
    assert_eq!(attempts, twice.concat());
    node.drain().await;
    let keys = client()
        .await
        .query("SELECT key FROM effect ORDER BY key", &[])
        .await
        .unwrap();
    let keys: Vec<&str> = keys.iter().map(|row| row.get(0)).collect();
    assert_eq!(keys, ["rust", "sql"]);
    assert!(ran.try_recv().is_err());
}
