//! Many paused tags beside timers of others.

#[path = "common/plans.rs"]
mod plans;
#[path = "common/server.rs"]
mod server;

use plans::{TOLD, look};
use server::{Server, connect};
use std::time::Duration;
use tickwheel_durable::store::{Claim, NewRow, NodeId, Owned, Place, Store};
use tickwheel_durable::{Durable, OpenStore, StoreTime};

/// In a namespace of 20,000 paused tags, the server has looked at the table or not.
/// Seen to fail: a claim locked all of them, and read all of them for each timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_looks_its_own_tags_up() {
    const TIMERS: i64 = 1_000;
    let server = Server::start(TOLD).expect("PostgreSQL is installed");
    let store = Durable::postgres(server.config())
        .store()
        .open()
        .await
        .unwrap();
    let client = connect(&server.config()).await.unwrap();
    let many = "INSERT INTO tickwheel.pause (namespace, tag, until, moments)
        SELECT 1, 'paused ' || n, 1::bigint << 60, '{}' FROM generate_series(1, 20000) AS n";
    client.batch_execute(many).await.unwrap();
    let node = NodeId(1);
    store.join(node, Duration::from_secs(600)).await.unwrap();
    let owned = store.take(node, 1_024).await.unwrap();
    for round in 0..2 {
        let place = |n: i64| {
            let slot = owned[(n % 1_024) as usize].slot;
            Place {
                due: StoreTime::MIN,
                slot,
                id: n + round * TIMERS,
            }
        };
        // Two of ten have tags that are paused.
        let row = |n: i64| {
            let tag = if n % 5 == 0 {
                format!("paused {}", n % 10 + 1)
            } else {
                n.to_string()
            };
            NewRow {
                place: place(n),
                tag: Some(tag),
                ..NewRow::default()
            }
        };
        store
            .schedule(node, (0..TIMERS).map(row).collect())
            .await
            .unwrap();
        let epoch = |place: &Place| {
            let is_its = |owned: &&Owned| owned.slot == place.slot;
            owned.iter().find(is_its).unwrap().epoch
        };
        let claim = |n| Claim {
            place: place(n),
            epoch: epoch(&place(n)),
        };
        let answer = store
            .claim(node, (0..TIMERS).map(claim).collect(), 0)
            .await
            .unwrap();
        assert_eq!((answer.rows.len(), answer.held.len()), (800, 200));
        client
            .batch_execute("ANALYZE tickwheel.pause")
            .await
            .unwrap();
    }
    let locked = "SELECT count(*) FROM tickwheel.pause WHERE xmax <> 0";
    assert_eq!(
        client
            .query_one(locked, &[])
            .await
            .unwrap()
            .get::<_, i64>(0),
        2
    );
    let sql = "SELECT p[1], (p[2]::int + coalesce(p[4], '0')::int) * p[3]::int
        FROM regexp_split_to_table(pg_read_file(pg_current_logfile()), ' LOG: ') AS told,
        regexp_matches(told, '([^\\n]* on pause[^\\n]*actual rows=)([0-9]+) loops=([0-9]+)[^\\n]*'
            || '(?:\\n[^\\n]*(?:Filter|Cond): \\([^\\n]*)*(?:\\n[^\\n]*Removed[^\\n:]*: ([0-9]+))?',
            'g') AS p
        WHERE told ~ 'FOR SHARE' ORDER BY 2 DESC";
    let rows = look(&client, sql).await;
    let told: Vec<(String, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let (_, most) = told.first().expect("the plans are in the log");
    assert!(i64::from(*most) <= 2 * TIMERS, "{told:?}");
}
