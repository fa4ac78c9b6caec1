//! What users call, on a server of their own: acknowledgements, SQL, and what a server refuses.

use crate::server::{Server, connect};
use crate::{Fired, HOUR, next};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_durable::store::postgres::Postgres;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Error, Outcome};
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::Client;

const SOON: Duration = Duration::ZERO;

/// Starts a node that runs no timer.
async fn idle_node(server: &Server) -> Durable<Postgres> {
    let timer = Timer::builder().start().unwrap();
    let node = Durable::postgres(server.config()).max_in_flight(0);
    node.start(&timer, async |_| Outcome::Done).await.unwrap()
}

/// Starts a node whose handlers hand over what they get, and do not end.
async fn node(server: &Server) -> (Durable<Postgres>, Fired) {
    let timer = Timer::builder().start().unwrap();
    let (sender, fired) = unbounded_channel();
    let handler = move |due: Due| {
        let _ = sender.send(due);
        std::future::pending()
    };
    let node = Durable::postgres(server.config());
    (node.start(&timer, handler).await.unwrap(), fired)
}

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// What happened to the key while its handler ran, and its timer afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_comes_again_unless_it_was_cancelled_or_its_key_scheduled() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let (node, mut fired) = node(&server).await;
    let mut client = connect(&server.config()).await.unwrap();
    let sql = "SELECT tickwheel.again('default', $1, $2, now() + interval '1 h', 'again')";
    for by_sql in [false, true] {
        for (meanwhile, left) in [("", Some("again")), ("cancel", None), ("new", Some("new"))] {
            // A key of its own: the handler goes on, and nothing else of its key runs here.
            let key = format!("{by_sql} {meanwhile}");
            let entry = Entry::keyed(&key, SOON, "x").tag("tag");
            node.schedule(entry).await.unwrap();
            let due = next(&mut fired).await;
            match meanwhile {
                "cancel" => assert_eq!(node.cancel(&key).await.unwrap(), Cancelled::Running),
                "new" => drop(
                    node.schedule(Entry::keyed(&key, HOUR, "new"))
                        .await
                        .unwrap(),
                ),
                _ => {}
            }
            let change = client.transaction().await.unwrap();
            if by_sql {
                change.execute(sql, &[&due.name, &due.token]).await.unwrap();
            } else {
                due.again_in(&change, HOUR, "again").await.unwrap();
            }
            change.commit().await.unwrap();
            let listed = node.get(&key).await.unwrap();
            let payload = listed.as_ref().map(|it| it.payload.as_slice());
            assert_eq!(payload, left.map(str::as_bytes), "{key}");
            if let Some(listed) = listed {
                assert_eq!((listed.running, listed.attempts), (false, 0));
                assert_eq!(listed.tag.is_some(), meanwhile.is_empty());
                assert!(listed.at > due.at.plus(HOUR / 2));
            }
            node.cancel(&key).await.unwrap();
            let change = client.transaction().await.unwrap();
            let over = due.again_in(&change, HOUR, "x").await;
            assert!(matches!(over, Err(Error::Fenced)), "{over:?}");
        }
    }
}

/// Somebody else has made an operator and functions that fit better than the server's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_function_of_somebody_else_runs() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let mut client = connect(&server.config()).await.unwrap();
    let trap = "CREATE FUNCTION public.trap(numeric, integer) RETURNS numeric LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'somebody else''s'; END $$;
        CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.trap);
        CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'somebody else''s'; END $$;
        CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE plpgsql
            AS $$ BEGIN RAISE EXCEPTION 'somebody else''s'; END $$";
    client.batch_execute(trap).await.unwrap();
    let (node, mut fired) = node(&server).await;
    let change = client.transaction().await.unwrap();
    let entry = |key, delay| Entry::keyed(key, delay, "x").tag("tag");
    node.schedule_in(&change, entry("a", SOON)).await.unwrap();
    node.touch_in(&change, "a", SOON).await.unwrap();
    let sql = "SELECT tickwheel.schedule('default', 'b', now(), ''),
        tickwheel.touch('default', 'b', now()), tickwheel.cancel('default', 'none')";
    change.execute(sql, &[]).await.unwrap();
    change.commit().await.unwrap();
    for _ in 0..2 {
        let due = next(&mut fired).await;
        let sql = "SELECT tickwheel.ack('default', $1, $2)";
        client.execute(sql, &[&due.name, &due.token]).await.unwrap();
    }
    node.schedule(entry("c", HOUR)).await.unwrap();
    node.pause(Some("none"), HOUR).await.unwrap();
    assert_eq!(node.touch_tag("tag", HOUR).await.unwrap(), 1);
    assert_eq!(node.cancel_tag("tag").await.unwrap(), 1);
    assert_eq!(node.stats().errors, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_and_its_acknowledgement_are_one() {
    let server = Server::start(&["fsync=off", "max_prepared_transactions=1"]).unwrap();
    let (node, mut fired) = node(&server).await;
    let mut client = connect(&server.config()).await.unwrap();
    node.schedule(Entry::keyed("a", SOON, "x")).await.unwrap();
    let due = next(&mut fired).await;
    let change = client.transaction().await.unwrap();
    due.ack_in(&change).await.unwrap();
    assert!(matches!(due.ack_in(&change).await, Err(Error::Fenced)));
    change.rollback().await.unwrap();
    let change = client.transaction().await.unwrap();
    due.ack_in(&change).await.unwrap();
    change.commit().await.unwrap();
    assert_eq!(node.get("a").await.unwrap(), None);
    // By SQL, with what waits for the end of the run.
    node.schedule(Entry::keyed("b", SOON, "x")).await.unwrap();
    let due = next(&mut fired).await;
    node.schedule(Entry::keyed("b", HOUR, "y")).await.unwrap();
    let sql = "SELECT tickwheel.ack('default', $1, $2)";
    client.execute(sql, &[&due.name, &due.token]).await.unwrap();
    let pending = node.get("b").await.unwrap().unwrap();
    assert_eq!((pending.payload, pending.running), (b"y".to_vec(), false));
    let again = client
        .execute(sql, &[&due.name, &due.token])
        .await
        .unwrap_err();
    assert_eq!(again.code().unwrap().code(), "TW001");
    let nothing = "SELECT tickwheel.ack('default', 'kx', NULL)";
    assert!(client.execute(nothing, &[]).await.is_err());
    // The last token of a timer that nobody has.
    let nobody = "SELECT tickwheel.ack('default', 'kb', -$1::bigint)";
    let refused = client.execute(nobody, &[&due.token]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "TW001");
    // Nodes are told of what waits for the end of the run: such a transaction cannot be prepared.
    node.schedule(Entry::keyed("c", SOON, "x")).await.unwrap();
    let due = next(&mut fired).await;
    node.schedule(Entry::keyed("c", SOON, "y")).await.unwrap();
    let change = client.transaction().await.unwrap();
    due.ack_in(&change).await.unwrap();
    let refused = change.batch_execute("PREPARE TRANSACTION 'a'").await;
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("NOTIFY"), "{refused}");
}

/// As after a leap of the store's clock: a handler whose claim another node has taken learns it
/// with the next renewal, long before the claim would have run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_learns_that_its_claim_was_taken() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let timer = Timer::builder().start().unwrap();
    let (sender, mut fired) = unbounded_channel();
    let handler = move |due: Due| {
        let sender = sender.clone();
        let _ = sender.send(due.clone());
        async move {
            while !due.is_lost() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let _ = sender.send(due);
            Outcome::Done
        }
    };
    let node = Durable::postgres(server.config()).lease(Duration::from_secs(4));
    let node = node.start(&timer, handler).await.unwrap();
    node.schedule(Entry::keyed("a", SOON, "x")).await.unwrap();
    next(&mut fired).await;
    let client = connect(&server.config()).await.unwrap();
    let taken = "UPDATE tickwheel.timer SET claim = claim + 1, until = until + 1000000000000";
    client.execute(taken, &[]).await.unwrap();
    next(&mut fired).await;
    assert!(node.get("a").await.unwrap().unwrap().running);
}

/// Seen to fail: it looked each second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_runs_no_timer_asks_nothing_by_itself() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let node = idle_node(&server).await;
    node.schedule(Entry::keyed("a", SOON, "x")).await.unwrap();
    let client = connect(&server.config()).await.unwrap();
    let asked = "SELECT max(query_start)::text FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let last = text(&client, asked).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(text(&client, asked).await, last);
    assert!(!node.get("a").await.unwrap().unwrap().running);
    node.drain().await;
}

/// A node that stops reading must not keep what it has claimed longer than by its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_within_a_lease_of_a_vanished_node() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let note = "CREATE TABLE seen (bound text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            INSERT INTO public.seen VALUES (current_setting('tcp_user_timeout'));
            RETURN NEW;
        END$$;
        CREATE TRIGGER note BEFORE INSERT ON tickwheel.timer FOR EACH ROW EXECUTE FUNCTION note()";
    let (first, _fired) = node(&server).await;
    let client = connect(&server.config()).await.unwrap();
    client.batch_execute(note).await.unwrap();
    first.schedule(Entry::keyed("a", HOUR, "x")).await.unwrap();
    for lease in [100, 3_000, 86_400_000].map(Duration::from_millis) {
        let timer = Timer::builder().start().unwrap();
        let node = Durable::postgres(server.config()).lease(lease);
        let node = node.start(&timer, async |_| Outcome::Done).await.unwrap();
        node.schedule(Entry::keyed("a", HOUR, "x")).await.unwrap();
    }
    let seen = "SELECT string_agg(bound, ' ') FROM seen";
    assert_eq!(text(&client, seen).await, "5000 1000 3000 5000");
}

/// The end of one timer cancels another one, whose cancel may stand in the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_may_change_other_timers_of_a_batch() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let node = idle_node(&server).await;
    let client = connect(&server.config()).await.unwrap();
    let cancels = "CREATE FUNCTION next() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            PERFORM tickwheel.cancel('default', 'child');
            RETURN NULL;
        END$$;
        CREATE TRIGGER next AFTER DELETE ON tickwheel.timer FOR EACH ROW
            WHEN (OLD.name = 'kparent') EXECUTE FUNCTION next()";
    client.batch_execute(cancels).await.unwrap();
    // As if a handler had it for ever.
    let runs = "UPDATE tickwheel.timer SET claim = 1, until = 1e17, cancelled = false
        WHERE name = 'kchild'";
    node.schedule(Entry::keyed("child", HOUR, "x"))
        .await
        .unwrap();
    for _ in 0..20 {
        node.schedule(Entry::keyed("parent", HOUR, "x"))
            .await
            .unwrap();
        client.batch_execute(runs).await.unwrap();
        let (parent, child) = tokio::join!(node.cancel("parent"), node.cancel("child"));
        assert_eq!(parent.unwrap(), Cancelled::Cancelled(b"x".to_vec()));
        assert_eq!(child.unwrap(), Cancelled::Running);
    }
}

/// An operator's trigger, check or index refuses some deaths: more than there are places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_that_the_database_refuses_hold_nobody_up() {
    let raises = |code| {
        format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN RAISE 'no deaths here' USING ERRCODE = '{code}'; END$$;
            CREATE TRIGGER refuse BEFORE UPDATE ON tickwheel.timer FOR EACH ROW
                WHEN (NEW.died IS NOT NULL) EXECUTE FUNCTION refuse()"
        )
    };
    let refusals = [
        raises("P0001"),
        raises("MY001"),
        // As a trigger does whose other server is down.
        raises("08006"),
        "ALTER TABLE tickwheel.timer ADD CHECK (died IS NULL)".to_owned(),
        "CREATE INDEX ON tickwheel.timer ((1 / (died IS NULL)::int))".to_owned(),
    ];
    for refusal in refusals {
        let server = Server::start(&["fsync=off"]).unwrap();
        let timer = Timer::builder().start().unwrap();
        let (sender, mut fired) = unbounded_channel();
        let handler = move |due: Due| {
            let dies = due.tag.is_some();
            if !dies {
                let _ = sender.send(due);
            }
            async move {
                match dies {
                    true => Outcome::Dead("it must".to_owned()),
                    false => Outcome::Done,
                }
            }
        };
        let node = Durable::postgres(server.config()).max_in_flight(20);
        let node = node.start(&timer, handler).await.unwrap();
        let client = connect(&server.config()).await.unwrap();
        client.batch_execute(&refusal).await.unwrap();
        let dying = (0..60).map(|_| Entry::unkeyed(SOON, "x").tag("dies"));
        let living = (0..300).map(|_| Entry::unkeyed(SOON, "x"));
        node.schedule_many(dying.chain(living).collect())
            .await
            .unwrap();
        for _ in 0..300 {
            next(&mut fired).await;
        }
        drop(node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sql_does_what_the_node_does() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let (node, mut fired) = node(&server).await;
    let client = connect(&server.config()).await.unwrap();
    let call = async |call: &str| text(&client, &format!("SELECT tickwheel.{call}::text")).await;
    let later = "schedule('default', 'a', now() + interval '1 hour', 'x', 't')";
    assert_eq!(call(later).await, "false");
    assert_eq!(call(later).await, "true");
    assert_eq!(call("cancel('default', 'a')").await, "cancelled");
    assert_eq!(call("cancel('default', 'a')").await, "unknown");
    assert_eq!(call("touch('default', 'a', now())").await, "unknown");
    assert_eq!(call(later).await, "false");
    assert_eq!(
        call("touch('default', 'a', now() - interval '1 hour')").await,
        "moved"
    );
    let due = next(&mut fired).await;
    assert_eq!(
        (due.key.as_deref(), due.tag.as_deref()),
        (Some("a"), Some("t"))
    );
    assert!(due.planned < due.at);
    assert_eq!(call("touch('default', 'a', now())").await, "running");
    assert_eq!(call("cancel('default', 'a')").await, "running");
    assert_eq!(call(later).await, "true");
    assert_eq!(call("touch('default', 'a', now())").await, "moved");
    assert_eq!(call("cancel('default', 'a')").await, "cancelled");
    assert_eq!(call("cancel('default', 'a')").await, "running");
    // What nobody wants any more fires no more.
    let stale = "schedule('default', 'b', now() - interval '1 hour', 'x', 't', '1 minute')";
    assert_eq!(call(stale).await, "false");
    while node.get("b").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(call("schedule('default', NULL, now(), 'y')").await, "false");
    assert_eq!(next(&mut fired).await.payload, b"y");
    drop(node);
}

/// A takeover reads only so many bytes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_payloads_are_taken_over_one_after_the_other_without_a_pause() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let (first, mut fired) = node(&server).await;
    let long = |n: u32| Entry::keyed(n.to_string(), SOON, vec![7; 100 << 10]);
    first
        .schedule_many((0..12).map(long).collect())
        .await
        .unwrap();
    for _ in 0..12 {
        next(&mut fired).await;
    }
    drop(first);
    let (_second, mut fired) = node(&server).await;
    next(&mut fired).await;
    let begun = Instant::now();
    for _ in 1..12 {
        next(&mut fired).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "a look for each");
}
