//! Rows that somebody's open transaction has locked.

use crate::server::{Server, connect};
use crate::{
    HOUR, SERVER, builder, client, count, ends, name, next, next_key, node, schedule, start, until,
};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{
    Cancelled, Due, Durable, Entry, Error, Outcome, Scheduled, Search, Touched,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Locks a timer, and a key that has none before the commit; all calls are made at once, so that
/// they share batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_key_holds_up_no_other_one_and_is_answered() {
    let (node, mut fired) = node(&name()).await;
    let far = |key: &str| Entry::keyed(key, HOUR, "x");
    node.schedule(far("locked")).await.unwrap();
    let mut client = client().await;
    let own = client.transaction().await.unwrap();
    node.touch_in(&own, "locked", HOUR).await.unwrap();
    node.schedule_in(&own, far("new")).await.unwrap();
    let mut others = JoinSet::new();
    for number in 0..100 {
        let node = node.clone();
        others.spawn(async move {
            let key = number.to_string();
            node.schedule(Entry::keyed(&key, HOUR, "x")).await?;
            node.touch(&key, HOUR * 2).await?;
            node.cancel(&key).await?;
            node.schedule(Entry::keyed(&key, Duration::ZERO, "x")).await
        });
    }
    let locked = async {
        let many = vec![far("beside"), far("new"), far("locked")];
        tokio::join!(
            async { node.schedule(far("locked")).await.err() },
            async { node.touch("locked", HOUR).await.err() },
            async { node.cancel("locked").await.err() },
            async { node.schedule(far("new")).await.err() },
            async { node.schedule_many(many).await.err() },
        )
    };
    let others = async {
        while let Some(answer) = others.join_next().await {
            assert_eq!(answer.unwrap().unwrap(), Scheduled::New);
        }
        for _ in 0..100 {
            assert_ne!(next_key(&mut fired).await, "locked");
        }
        own
    };
    let (locked, own) = ends(async { tokio::join!(locked, others) }).await;
    let (a, b, c, d, e) = locked;
    for (number, error) in [a, b, c, d, e].into_iter().enumerate() {
        assert!(
            matches!(error, Some(Error::Unavailable(_))),
            "{number}: {error:?}"
        );
    }
    own.rollback().await.unwrap();
    assert!(node.get("beside").await.unwrap().is_some());
    assert!(node.get("new").await.unwrap().is_none(), "it was refused");
    let cancelled = node.cancel("locked").await.unwrap();
    assert_eq!(cancelled, Cancelled::Cancelled(b"x".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_timer_keeps_no_other_one_from_firing() {
    let namespace = name();
    let (idle, _) = start(builder(SERVER.config(), &namespace).max_in_flight(0)).await;
    let now = |key: String| Entry::keyed(key, Duration::ZERO, "old");
    idle.schedule(now("locked".to_owned())).await.unwrap();
    idle.schedule_many((0..300).map(|n| now(n.to_string())).collect())
        .await
        .unwrap();
    let mut client = client().await;
    let own = client.transaction().await.unwrap();
    let entry = Entry::keyed("locked", Duration::ZERO, "new");
    idle.schedule_in(&own, entry).await.unwrap();
    let (_node, mut fired) = node(&namespace).await;
    for _ in 0..300 {
        assert_ne!(next_key(&mut fired).await, "locked");
    }
    own.commit().await.unwrap();
    let due = next(&mut fired).await;
    assert_eq!(
        (due.key.as_deref(), &*due.payload),
        (Some("locked"), &b"new"[..])
    );
}

/// The transaction locks what a handler has, and is about to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_timer_keeps_no_other_one_from_ending() {
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
    let node = Durable::postgres(SERVER.config()).namespace(name());
    // So that no renewal is late on a busy machine, which would count as an error.
    let node = node.lease(Duration::from_secs(60));
    let node = node.start(&timer, handler).await.unwrap();
    let now = |key: String| Entry::keyed(key, Duration::ZERO, "x");
    node.schedule(now("locked".to_owned())).await.unwrap();
    until(async || node.stats().claimed == 1).await;
    let mut client = client().await;
    let own = client.transaction().await.unwrap();
    node.schedule_in(&own, Entry::keyed("locked", HOUR, "y"))
        .await
        .unwrap();
    end.send_replace(true);
    let others = (0..300).map(|n| now(n.to_string())).collect();
    node.schedule_many(others).await.unwrap();
    until(async || node.stats().done == 300).await;
    assert_eq!((node.stats().errors, node.stats().in_flight), (0, 1));
    own.rollback().await.unwrap();
    until(async || node.stats().done == 301).await;
    assert!(node.get("locked").await.unwrap().is_none());
    assert_eq!(node.stats().errors, 0);
}

/// The whole table is locked: all that writes waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_ends_on_the_server_and_does_nothing_later() {
    let mut locker = client().await;
    let watcher = client().await;
    let mut config = SERVER.config();
    config.application_name("gives up");
    // It claims nothing: a claim would wait as well.
    let idle = builder(config, "some").max_in_flight(0).schema("given_up");
    let (node, _fired) = start(idle).await;
    schedule(&node, "locked", HOUR).await;
    node.list(Search::new(1)).await.unwrap();
    let own = locker.transaction().await.unwrap();
    own.batch_execute("LOCK TABLE given_up.timer IN SHARE MODE")
        .await
        .unwrap();
    let touch = || node.touch("locked", Duration::ZERO);
    let schedule = node.schedule(Entry::keyed("locked", Duration::ZERO, "z"));
    let cancel = node.cancel("locked");
    let answers = async { tokio::join!(touch(), schedule, touch(), cancel) };
    let (one, two, three, four) = ends(answers).await;
    assert!(one.is_err() && two.is_err() && three.is_err() && four.is_err());
    let own_of = "pg_stat_activity WHERE application_name = 'gives up'";
    let waiting = format!("{own_of} AND wait_event_type = 'Lock'");
    // One statement after the other ends.
    until(async || {
        let waits = count(&watcher, &waiting).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        waits + count(&watcher, &waiting).await == 0
    })
    .await;
    own.commit().await.unwrap();
    until(async || count(&watcher, own_of).await <= 7).await;
    assert_eq!(node.get("locked").await.unwrap().unwrap().payload, b"x");
    assert_eq!(node.touch("locked", HOUR).await.unwrap(), Touched::Moved);
}

/// Some of 5,000 timers are locked while a call moves or cancels them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_is_moved_and_cancelled_to_its_end() {
    let namespace = name();
    let (node, _fired) = node(&namespace).await;
    let far = |n: u32| Entry::keyed(n.to_string(), HOUR, "x").tag("t");
    node.schedule_many((0..5_000).map(far).collect())
        .await
        .unwrap();
    let mut locker = client().await;
    let watcher = client().await;
    let all = format!("tickwheel.timer WHERE space = '{namespace}'");
    let near = format!("{all} AND due < tickwheel.clock() + 5400000000");
    for (cancels, left) in [(false, &near), (true, &all)] {
        let own = locker.transaction().await.unwrap();
        let touch = format!(
            "UPDATE tickwheel.timer SET due = due + 1 WHERE space = '{namespace}' AND name ~ '7$'"
        );
        assert_eq!(own.execute(&touch, &[]).await.unwrap(), 500);
        let node = node.clone();
        let changing = tokio::spawn(async move {
            match cancels {
                true => node.cancel_tag("t").await,
                false => node.touch_tag("t", HOUR * 2).await,
            }
        });
        until(async || count(&watcher, left).await == 500).await;
        own.commit().await.unwrap();
        assert_eq!(ends(changing).await.unwrap().unwrap(), 5_000);
        assert_eq!(count(&watcher, left).await, 0);
    }
}

/// A pause ends while a claim puts a timer off because of it, and has not committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_pause_lets_go_what_is_just_put_off() {
    let (node, mut fired) = start(builder(SERVER.config(), "some").schema("putting_off")).await;
    let client = client().await;
    let block = "CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END $$;
        CREATE TRIGGER block BEFORE UPDATE ON putting_off.timer FOR EACH ROW
            WHEN (NEW.tag = 'held') EXECUTE FUNCTION block();
        SELECT pg_advisory_lock(77)";
    client.batch_execute(block).await.unwrap();
    node.pause(Some("held"), HOUR * 24).await.unwrap();
    let held = Entry::keyed("a", Duration::ZERO, "x").tag("held");
    node.schedule(held).await.unwrap();
    let blocked = "pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted";
    until(async || count(&client, blocked).await == 1).await;
    let other = node.clone();
    let resume = tokio::spawn(async move { other.resume(Some("held")).await });
    // It waits for the pause's row or for the timer's, or has ended.
    let waits = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'putting_off'";
    until(async || resume.is_finished() || count(&client, waits).await >= 2).await;
    client
        .batch_execute("SELECT pg_advisory_unlock(77)")
        .await
        .unwrap();
    ends(resume).await.unwrap().unwrap();
    assert_eq!(next_key(&mut fired).await, "a");
}

/// Its key has a timer again, which a transaction has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_timer_keeps_no_dead_one_from_coming_back() {
    let timer = Timer::builder().start().unwrap();
    let handler = |due: Due| async move {
        match due.payload == b"dies" {
            true => Outcome::Dead("as it is meant to".to_owned()),
            false => Outcome::Done,
        }
    };
    let node = Durable::postgres(SERVER.config()).namespace(name());
    let node = node.start(&timer, handler).await.unwrap();
    let dies = |number: u32| Entry::keyed(number.to_string(), Duration::ZERO, "dies");
    node.schedule_many((0..20).map(dies).collect())
        .await
        .unwrap();
    until(async || node.stats().dead == 20).await;
    node.schedule(Entry::keyed("7", HOUR, "x")).await.unwrap();
    let mut client = client().await;
    let own = client.transaction().await.unwrap();
    node.touch_in(&own, "7", HOUR).await.unwrap();
    assert_eq!(ends(node.requeue_all(None)).await.unwrap(), 19);
    own.rollback().await.unwrap();
}

/// What a server would end after so many seconds, it ends here for so many rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_takes_too_long_becomes_smaller() {
    let (node, _fired) = start(builder(SERVER.config(), "some").schema("too_long")).await;
    let far = |n: u32| Entry::keyed(n.to_string(), HOUR, "x").tag("t");
    node.schedule_many((0..300).map(far).collect())
        .await
        .unwrap();
    let bound = "CREATE FUNCTION too_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF (SELECT count(*) FROM gone) > 100 THEN
                RAISE 'it takes too long' USING ERRCODE = 'query_canceled';
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER too_long AFTER DELETE ON too_long.timer
            REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION too_long()";
    client().await.batch_execute(bound).await.unwrap();
    assert_eq!(ends(node.cancel_tag("t")).await.unwrap(), 300);
}

/// A transaction inserts more keys than two batches have and stays open, and a node is asked for
/// all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_being_inserted_hold_up_no_other_one() {
    let namespace = name();
    let (node, _fired) = node(&namespace).await;
    let mut client = client().await;
    let own = client.transaction().await.unwrap();
    let inserts = format!(
        "SELECT tickwheel.schedule('{namespace}', n::text, now() + interval '1 hour', 'x')
        FROM generate_series(1, 2500) AS n"
    );
    own.batch_execute(&inserts).await.unwrap();
    let mut calls = JoinSet::new();
    for n in 1..=2_500 {
        let node = node.clone();
        calls.spawn(async move { node.schedule(Entry::keyed(format!("{n}"), HOUR, "y")).await });
    }
    // Calls that share a batch with these keys may fail as well. Later ones took half a minute, as
    // each of the keys was waited for, again and again.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for n in 0..10 {
        let other = node.schedule(Entry::keyed(format!("other {n}"), HOUR, "x"));
        let other = tokio::time::timeout(Duration::from_secs(5), other).await;
        assert_eq!(other.unwrap().unwrap(), Scheduled::New);
    }
    own.rollback().await.unwrap();
    while let Some(call) = calls.join_next().await {
        let answer = call.unwrap();
        assert!(
            matches!(answer, Ok(Scheduled::New) | Err(Error::Unavailable(_))),
            "{answer:?}"
        );
    }
}

/// Seen to fail: the other key waited for about a thousand commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_of_one_key_keep_no_other_key_waiting() {
    let (node, _fired) = node(&name()).await;
    let mut calls = JoinSet::new();
    for _ in 0..3_000 {
        let node = node.clone();
        calls.spawn(async move { node.schedule(Entry::keyed("many", HOUR, "x")).await });
    }
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    schedule(&node, "other", HOUR).await;
    let mut answered = 0;
    while let Some(answer) = calls.try_join_next() {
        assert!(answer.unwrap().is_ok());
        answered += 1;
    }
    assert!(answered < 300, "{answered} calls came first");
}

/// Commits that notify wait for each other, here for a tenth of a second each: that is no locked
/// timer. Seen to fail: the wait counted against the patience for keys that are being inserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_notifies_may_wait_for_others() {
    let server = Server::start(&["commit_delay=100000", "commit_siblings=0"]).unwrap();
    let timer = Timer::builder().start().unwrap();
    // Tells other nodes of each timer that is due soon.
    let node = Durable::postgres(server.config()).max_in_flight(0);
    let dead = |_| async { Outcome::Dead("no".to_owned()) };
    let node = node.start(&timer, dead).await.unwrap();
    let other = Durable::postgres(server.config());
    let other = other.start(&timer, dead).await.unwrap();
    schedule(&node, "dead", Duration::ZERO).await;
    until(async || other.stats().dead == 1).await;
    let client = connect(&server.config()).await.unwrap();
    client
        .batch_execute("CREATE TABLE written (number int)")
        .await
        .unwrap();
    let mut others = JoinSet::new();
    for _ in 0..3 {
        let client = connect(&server.config()).await.unwrap();
        others.spawn(async move {
            let notifies = "BEGIN; INSERT INTO written VALUES (1); NOTIFY other; COMMIT";
            while client.batch_execute(notifies).await.is_ok() {}
        });
    }
    until(async || count(&client, "written").await > 3).await;
    assert_eq!(node.requeue_all(None).await.unwrap(), 1);
    for key in 0..5 {
        schedule(&node, &key.to_string(), Duration::from_secs(1)).await;
    }
}
