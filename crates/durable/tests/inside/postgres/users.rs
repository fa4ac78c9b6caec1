//! What users of PostgreSQL call: a node, transactions of their own, SQL, and the schema.

use super::open;
use super::server::{Server, connect};
use crate::durable::{Durable, OpenStore};
use crate::entry::{Due, Entry, Error, Outcome};
use crate::store::conformance::timer;
use crate::store::postgres::{Postgres, VERSION, migration};
use crate::store::{Name, NewTimer, Operations, Place, Renewal, Want};
use crate::when::StoreTime;
use std::time::Duration;
use tickwheel::Timer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::Client;

const SOON: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(3_600);

/// Starts a node whose handler hands over what it gets, and waits for the test's word.
async fn node(server: &Server) -> (Durable<Postgres>, UnboundedReceiver<Due>) {
    let timer = Timer::builder().start().unwrap();
    let (sender, fired) = unbounded_channel();
    let handler = move |due: Due| {
        let _ = sender.send(due);
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Outcome::Done
        }
    };
    let node = Durable::postgres(server.config());
    (node.start(&timer, handler).await.unwrap(), fired)
}

async fn next(fired: &mut UnboundedReceiver<Due>) -> Due {
    let due = tokio::time::timeout(Duration::from_secs(60), fired.recv()).await;
    due.expect("it fires").expect("the node is there")
}

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_and_its_acknowledgement_are_one() {
    let server = Server::start(&["fsync=off"]).unwrap();
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
    node.schedule(Entry::keyed("b", LATER, "y")).await.unwrap();
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

/// An operator's trigger, check or index refuses some deaths: more than there are places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_that_the_database_refuses_hold_nobody_up() {
    let refusals = [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RAISE 'no deaths here'; END$$;
        CREATE TRIGGER refuse BEFORE UPDATE ON tickwheel.timer FOR EACH ROW
            WHEN (NEW.died IS NOT NULL) EXECUTE FUNCTION refuse()",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN RAISE 'no deaths here' USING ERRCODE = 'MY001'; END$$;
        CREATE TRIGGER refuse BEFORE UPDATE ON tickwheel.timer FOR EACH ROW
            WHEN (NEW.died IS NOT NULL) EXECUTE FUNCTION refuse()",
        "ALTER TABLE tickwheel.timer ADD CHECK (died IS NULL)",
        "CREATE INDEX ON tickwheel.timer ((1 / (died IS NULL)::int))",
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
        client.batch_execute(refusal).await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_floor_rises_but_for_what_a_transaction_may_still_write() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let store = open(&server, "node").await;
    let mut other = connect(&server.config()).await.unwrap();
    let look = async || store.look().await.unwrap();
    // One that has its number keeps the floor below what it writes.
    let change = other.transaction().await.unwrap();
    let schedule = "SELECT tickwheel.schedule('default', 'a', now() - interval '1 hour', 'x')";
    change.query(schedule, &[]).await.unwrap();
    for _ in 0..10 {
        assert_eq!(look().await.first, None);
    }
    change.commit().await.unwrap();
    assert!(look().await.first.is_some());
    for _ in 0..10 {
        // And a row that nobody claims.
        assert!(look().await.first.is_some());
    }
    let want = Want {
        from: Place::before(StoreTime::MIN),
        limit: 10,
        bytes: 10,
        lease: Duration::ZERO,
    };
    assert_eq!(store.claim(want).await.unwrap().rows.len(), 1);
    for _ in 0..10 {
        let look = look().await;
        assert_eq!((look.first, look.left), (None, true));
    }
    assert_eq!(store.take_over(5, 10, LATER).await.unwrap().rows.len(), 1);
    for _ in 0..10 {
        assert!(!look().await.left);
    }
    // What came in without its clock is found by the look that begins anew.
    other
        .execute("UPDATE tickwheel.timer SET claim = 0, due = 5", &[])
        .await
        .unwrap();
    let mut looks = 0;
    while look().await.first.is_none() {
        looks += 1;
    }
    assert!((1..=64).contains(&looks), "{looks}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_changes_no_index() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let store = open(&server, "node").await;
    let client = connect(&server.config()).await.unwrap();
    let timers = (0..100).map(|n| NewTimer {
        tag: Some("a".to_owned()),
        ..timer(&Name::of_key(&n.to_string()), n, Duration::ZERO)
    });
    store.schedule(timers.collect(), false).await.unwrap();
    let want = Want {
        from: Place::before(StoreTime::MIN),
        limit: 1_000,
        bytes: 1 << 20,
        lease: LATER,
    };
    let claimed = store.claim(want).await.unwrap().rows;
    assert_eq!(claimed.len(), 100);
    let renewals = claimed.iter().map(|row| Renewal {
        name: row.name.clone(),
        token: row.token,
        term: LATER,
    });
    let renewals: Vec<Renewal> = renewals.collect();
    for _ in 0..10 {
        let renewed = store.renew(renewals.clone()).await.unwrap();
        assert!(renewed.answers.iter().all(|answer| *answer == Some(true)));
    }
    let sql = "SELECT pg_stat_get_tuples_hot_updated('tickwheel.timer'::regclass)";
    // Sessions tell of it a while later.
    let hot = async {
        loop {
            let hot: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
            if hot >= 800 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), hot)
        .await
        .expect("most are HOT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_made_once_in_the_schema_that_is_named() {
    let server = Server::start(&["fsync=off", "default_transaction_isolation=serializable"]);
    let server = server.unwrap();
    let open = || {
        Durable::postgres(server.config())
            .schema("user")
            .store
            .open()
    };
    let opened = tokio::join!(open(), open(), open());
    opened.0.unwrap();
    opened.1.unwrap();
    let store = opened.2.unwrap();
    assert!(store.now().await.unwrap() > StoreTime::MIN);
    let client = connect(&server.config()).await.unwrap();
    client
        .batch_execute(&migration("other", 0).unwrap())
        .await
        .unwrap();
    assert!(
        client
            .batch_execute(&migration("other", 0).unwrap())
            .await
            .is_err()
    );
    let later = "CREATE OR REPLACE FUNCTION \"user\".version() RETURNS int LANGUAGE sql
        AS 'SELECT 1000'";
    client.batch_execute(later).await.unwrap();
    let refused = open().await.unwrap_err();
    assert!(matches!(
        refused,
        Error::UnknownSchema {
            found: 1_000,
            known: VERSION
        }
    ));
}
