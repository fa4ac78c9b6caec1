//! What becomes of the tables: the floor of looks, the indexes, the schema.

use super::open;
use super::server::{Server, connect};
use crate::durable::{Durable, OpenStore};
use crate::entry::{Error, Scheduled, Search};
use crate::store::conformance::{everything, timer};
use crate::store::postgres::{VERSION, tables};
use crate::store::{Name, NewTimer, Operations, Renewal, Want};
use crate::when::{Moment, StoreTime, When};
use std::time::Duration;

const LATER: Duration = Duration::from_secs(3_600);

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
        bytes: 10,
        lease: Duration::ZERO,
        ..everything(10)
    };
    assert_eq!(store.claim(want).await.unwrap().rows.len(), 1);
    for _ in 0..10 {
        let look = look().await;
        assert_eq!((look.first, look.lapsed), (None, true));
    }
    assert_eq!(store.take_over(5, 10, LATER).await.unwrap().rows.len(), 1);
    for _ in 0..10 {
        assert!(!look().await.lapsed);
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

/// Otherwise the end of such a pause would not wait for the claim, and the claim's rows would stay
/// put off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_puts_off_only_to_the_ends_of_pauses_that_it_has_locked() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let store = open(&server, "node").await;
    let other = connect(&server.config()).await.unwrap();
    let look = connect(&server.config()).await.unwrap();
    let moment = |seconds| Some(Moment::from(When::After(Duration::from_secs(seconds))));
    let tag = |tag: &str| Some(tag.to_owned());
    let timers = [(1, "a"), (2, "b")].map(|(id, name)| NewTimer {
        tag: tag(name),
        ..timer(&Name::of_key(name), id, Duration::ZERO)
    });
    store.schedule(timers.into(), false).await.unwrap();
    store.pause(None, moment(100)).await.unwrap();
    store.pause(tag("a"), moment(100)).await.unwrap();
    // A call that changes a pause, and whose commit takes long.
    let change = "BEGIN; UPDATE tickwheel.pause SET until = until + 1 WHERE scope = 'ta'";
    other.batch_execute(change).await.unwrap();
    let meanwhile = async {
        let waits = "SELECT FROM pg_locks WHERE NOT granted";
        while look.query(waits, &[]).await.unwrap().is_empty() {}
        store.pause(tag("b"), moment(3_600)).await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (claims, ()) = tokio::join!(store.claim(everything(10)), meanwhile);
    assert_eq!(claims.unwrap().held, 2);
    let listed = store.list(Search::new(10)).await.unwrap();
    let limit = store
        .look()
        .await
        .unwrap()
        .now
        .plus(Duration::from_secs(200));
    assert!(listed.iter().all(|timer| timer.at < limit), "{listed:?}");
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
        bytes: 1 << 20,
        lease: LATER,
        ..everything(1_000)
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

/// After an upgrade of the C library an index in the database's own order does not find what it
/// has: a key gets a second timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_index_is_in_an_order_that_an_upgrade_can_change() {
    let server = Server::start(&["fsync=off"]).unwrap();
    drop(open(&server, "node").await);
    let client = connect(&server.config()).await.unwrap();
    let orders = "SELECT DISTINCT c.collname::text
        FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid, unnest(i.indcollation) AS o(id)
        JOIN pg_collation c ON c.oid = o.id
        WHERE t.relnamespace = 'tickwheel'::regnamespace";
    let orders = client.query(orders, &[]).await.unwrap();
    let orders: Vec<String> = orders.iter().map(|row| row.get(0)).collect();
    assert_eq!(orders, ["C"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_made_once_in_the_schema_that_is_named() {
    let server = Server::start(&["fsync=off", "default_transaction_isolation=serializable"]);
    let server = server.unwrap();
    let open = || {
        Durable::postgres(server.config())
            .schema("user")
            .store
            .open(Duration::from_secs(5))
    };
    let opened = tokio::join!(open(), open(), open());
    opened.0.unwrap();
    opened.1.unwrap();
    let store = opened.2.unwrap();
    assert!(store.look().await.unwrap().now > StoreTime::MIN);
    let client = connect(&server.config()).await.unwrap();
    let tables = tables("other").unwrap();
    client.batch_execute(&tables).await.unwrap();
    client.batch_execute(&tables).await.unwrap_err();
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

/// A row that is refused, and one that another transaction inserts, are asked for alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shares_a_batch_with_a_locked_key_and_a_refused_one_is_answered() {
    let server = Server::start(&["fsync=off"]).unwrap();
    let store = open(&server, "node").await;
    let mut client = connect(&server.config()).await.unwrap();
    let check = "ALTER TABLE tickwheel.timer ADD CHECK (name <> 'kc')";
    client.batch_execute(check).await.unwrap();
    let change = client.transaction().await.unwrap();
    let inserts = "SELECT tickwheel.schedule('default', 'b', now(), 'x')";
    change.execute(inserts, &[]).await.unwrap();
    let timers = ["a", "b", "c"].map(|key| timer(&Name::of_key(key), 7, LATER));
    let timers = timers
        .into_iter()
        .zip(1..)
        .map(|(timer, id)| NewTimer { id, ..timer });
    let changed = store.schedule(timers.collect(), false).await.unwrap();
    assert_eq!(changed.answers, [Some(Scheduled::New), None, None]);
    change.rollback().await.unwrap();
}
