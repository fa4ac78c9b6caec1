//! The statements on members and slots.

use crate::error::Error;
use crate::store::postgres::columns::slot;
use crate::store::postgres::link::Link;
use crate::store::postgres::schema::SLOTS;
use crate::store::{NodeId, Owned, Survey};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the number of the namespace whose first slot this is.
fn namespace(first: u32) -> i32 {
    (first / SLOTS) as i32
}

fn last(first: u32) -> i32 {
    (first + SLOTS - 1) as i32
}

pub(super) async fn join(
    link: &Link,
    first: u32,
    node: NodeId,
    lease: Duration,
) -> Result<(), Error> {
    // Hints that were written after their node had gone.
    let sweep = "DELETE FROM tickwheel.inbox WHERE node NOT IN (SELECT node FROM tickwheel.member)";
    link.query(sweep, &[]).await?;
    let sql = "INSERT INTO tickwheel.member (node, namespace, lease, lease_until)
        VALUES ($1, $2, $3, tickwheel.clock() + $3)";
    let params = [
        (&node.0 as _, Type::INT8),
        (&namespace(first) as _, Type::INT4),
        (&micros(lease) as _, Type::INT8),
    ];
    link.query(sql, &params).await.map(drop)
}

pub(super) async fn renew(link: &Link, node: NodeId, lease: Duration) -> Result<bool, Error> {
    let sql = "UPDATE tickwheel.member SET lease_until = tickwheel.clock() + $2
        WHERE node = $1 AND lease_until > tickwheel.clock() RETURNING node";
    let params = [(&node.0 as _, Type::INT8), (&micros(lease) as _, Type::INT8)];
    // A renewal that takes longer is better asked for again.
    let rows = link.query_within(lease / 4, sql, &params).await?;
    Ok(!rows.is_empty())
}

/// Striking a member off locks its row: a renewal that is being committed is waited for, and seen.
/// A lease that ends too far away was given by a clock that has been set back since.
const STRIKE_OFF: &str = "WITH gone AS (
        DELETE FROM tickwheel.member WHERE namespace = $1
        AND (lease_until <= tickwheel.clock() OR lease_until > tickwheel.clock() + 2 * lease)
        RETURNING node)
    DELETE FROM tickwheel.inbox WHERE node IN (SELECT node FROM gone)";

pub(super) async fn survey(link: &Link, first: u32, node: NodeId) -> Result<Survey, Error> {
    let namespace = namespace(first);
    link.query(STRIKE_OFF, &[(&namespace, Type::INT4)]).await?;
    let sql = "SELECT
            (SELECT count(*)::int FROM tickwheel.member WHERE namespace = $1),
            (count(*) FILTER (WHERE m.node IS NULL AND s.served = 0))::int,
            coalesce(array_agg(s.slot) FILTER (WHERE m.node = $2), '{}'),
            coalesce(array_agg(s.epoch) FILTER (WHERE m.node = $2), '{}'),
            (count(*) FILTER (WHERE s.served = 0))::int
        FROM tickwheel.slot s LEFT JOIN tickwheel.member m ON m.node = s.owner
        WHERE s.slot BETWEEN $3 AND $4";
    let params = [
        (&namespace as _, Type::INT4),
        (&node.0 as _, Type::INT8),
        (&(first as i32) as _, Type::INT4),
        (&last(first) as _, Type::INT4),
    ];
    let rows = link.query(sql, &params).await?;
    let survey = |row: &Row| {
        let (live, free) = (row.get::<_, i32>(0), row.get::<_, i32>(1));
        let slots = row.get::<_, Vec<i32>>(2).into_iter().map(i32::unsigned_abs);
        let owned = slots.zip(row.get::<_, Vec<i64>>(3));
        let owned = owned.map(|(slot, epoch)| Owned { slot, epoch }).collect();
        let slots = row.get::<_, i32>(4).unsigned_abs();
        Survey { live: live.unsigned_abs(), slots, owned, free: free.unsigned_abs() }
    };
    Ok(rows.first().map(survey).unwrap_or_default())
}

pub(super) async fn take(
    link: &Link,
    first: u32,
    node: NodeId,
    at_most: u32,
) -> Result<Vec<Owned>, Error> {
    // Nodes that take at once pass over each other's: so each has its own before any has committed.
    let sql = "UPDATE tickwheel.slot s SET owner = $1, epoch = s.epoch + 1
        FROM (SELECT f.slot FROM tickwheel.slot f WHERE f.slot BETWEEN $2 AND $3 AND f.served = 0
              AND NOT EXISTS (SELECT FROM tickwheel.member m WHERE m.node = f.owner)
              ORDER BY f.slot LIMIT $4 FOR UPDATE SKIP LOCKED) free
        WHERE s.slot = free.slot AND EXISTS (SELECT FROM tickwheel.member WHERE node = $1)
        RETURNING s.slot, s.epoch";
    let params = [
        (&node.0 as _, Type::INT8),
        (&(first as i32) as _, Type::INT4),
        (&last(first) as _, Type::INT4),
        (&i64::from(at_most) as _, Type::INT8),
    ];
    let rows = link.query(sql, &params).await?;
    let owned = |row: &Row| {
        let slot = row.get::<_, i32>(0).unsigned_abs();
        Owned { slot, epoch: row.get(1) }
    };
    Ok(rows.iter().map(owned).collect())
}

pub(super) async fn release(link: &Link, node: NodeId, slots: Vec<Owned>) -> Result<(), Error> {
    let sql = "UPDATE tickwheel.slot s SET owner = NULL
        FROM unnest($1, $2) AS i(slot, epoch)
        WHERE s.slot = i.slot AND s.epoch = i.epoch AND s.owner = $3";
    let split = |owned: Owned| (slot(owned.slot), owned.epoch);
    let (slots, epochs): (Vec<i32>, Vec<i64>) = slots.into_iter().map(split).unzip();
    let params = [
        (&slots as _, Type::INT4_ARRAY),
        (&epochs as _, Type::INT8_ARRAY),
        (&node.0 as _, Type::INT8),
    ];
    link.query(sql, &params).await.map(drop)
}

pub(super) async fn leave(link: &Link, node: NodeId) -> Result<(), Error> {
    // Its slots are nobody's as soon as it is no member.
    let sql = "DELETE FROM tickwheel.member WHERE node = $1";
    link.query(sql, &[(&node.0, Type::INT8)]).await.map(drop)
}
