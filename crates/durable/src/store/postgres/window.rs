//! The statements that load a window: horizon, hints, pages of places.

use crate::error::Error;
use crate::store::postgres::columns::{place, slot};
use crate::store::postgres::link::Link;
use crate::store::{Hints, NodeId, Page, Place};
use crate::time::StoreTime;
use std::time::Duration;
use tokio_postgres::types::Type;

/// How far back hints are looked for. What lies further back was taken, and its rows are dead; or
/// was committed late, and is left to a sweep.
const RECENT: Duration = Duration::from_secs(5);

pub(super) async fn publish(link: &Link, node: NodeId, horizon: StoreTime) -> Result<(), Error> {
    let sql = "UPDATE tickwheel.member SET horizon = $2 WHERE node = $1";
    let params = [(&node.0 as _, Type::INT8), (&horizon.as_micros() as _, Type::INT8)];
    link.query(sql, &params).await.map(drop)
}

/// Returns the hints since `seen`, which is what the clock showed at the last call.
pub(super) async fn hints(link: &Link, node: NodeId, seen: StoreTime) -> Result<Hints, Error> {
    let sql = "WITH taken AS (
            DELETE FROM tickwheel.inbox WHERE node = $1 AND written >= $2 RETURNING slot, due, id)
        SELECT now, slot, due, id FROM tickwheel.clock() AS now LEFT JOIN taken ON true";
    let floor = seen.minus(RECENT).as_micros();
    let rows = link.query(sql, &[(&node.0, Type::INT8), (&floor, Type::INT8)]).await?;
    let now = rows.first().map_or(seen, |row| StoreTime::from_micros(row.get(0)));
    let taken = rows.iter().filter(|row| row.get::<_, Option<i64>>(3).is_some());
    Ok(Hints { places: taken.map(|row| place(row, 1)).collect(), now })
}

pub(super) async fn load(link: &Link, page: Page) -> Result<Vec<Place>, Error> {
    let Page { slots, after, before, limit } = page;
    // A short walk in the primary key for each slot, from the first moment that is asked for.
    let sql = "SELECT t.slot, t.due, t.id FROM unnest($1) AS s(slot) CROSS JOIN LATERAL (
            SELECT slot, due, id FROM tickwheel.timer
            WHERE slot = s.slot AND due >= $2 AND due < $5 AND (due, slot, id) > ($2, $3, $4)
            ORDER BY due, id LIMIT $6) t
        ORDER BY t.due, t.slot, t.id LIMIT $6";
    let slots: Vec<i32> = slots.into_iter().map(slot).collect();
    let params = [
        (&slots as _, Type::INT4_ARRAY),
        (&after.due.as_micros() as _, Type::INT8),
        (&slot(after.slot) as _, Type::INT4),
        (&after.id as _, Type::INT8),
        (&before.as_micros() as _, Type::INT8),
        (&i64::from(limit) as _, Type::INT8),
    ];
    let rows = link.query(sql, &params).await?;
    Ok(rows.iter().map(|row| place(row, 0)).collect())
}
