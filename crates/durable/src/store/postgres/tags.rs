//! The statement that cancels timers of a tag.

use crate::error::Error;
use crate::store::CancelledTag;
use crate::store::postgres::columns::slot;
use crate::store::postgres::link::Link;
use crate::store::postgres::schema::SLOTS;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Deletes what nobody has locked. What was moved or locked meanwhile is left to the next look.
const CANCEL: &str = "WITH own AS MATERIALIZED (
        SELECT slot, due, id FROM tickwheel.timer
        WHERE tag = $1 AND slot BETWEEN $2 AND $3 AND claim = 0
        AND slot IN (SELECT slot FROM tickwheel.slot WHERE served = 0)
        LIMIT $4 FOR UPDATE SKIP LOCKED),
    gone AS (DELETE FROM tickwheel.timer t USING own o
        WHERE t.slot = o.slot AND t.due = o.due AND t.id = o.id RETURNING t.slot, t.id)
    SELECT (SELECT count(*) FROM gone), EXISTS (
        SELECT FROM tickwheel.timer
        WHERE tag = $1 AND slot BETWEEN $2 AND $3 AND claim = 0
        AND slot IN (SELECT slot FROM tickwheel.slot WHERE served = 0)
        AND (slot, id) NOT IN (SELECT slot, id FROM gone))";

pub(super) async fn cancel_tag(
    link: &Link,
    first: u32,
    tag: String,
    limit: u32,
) -> Result<CancelledTag, Error> {
    let params = [
        (&tag as _, Type::TEXT),
        (&slot(first) as _, Type::INT4),
        (&slot(first + SLOTS - 1) as _, Type::INT4),
        (&i64::from(limit) as _, Type::INT8),
    ];
    let rows = link.query(CANCEL, &params).await?;
    let step =
        |row: &Row| CancelledTag { count: row.get::<_, i64>(0).unsigned_abs(), more: row.get(1) };
    rows.first().map(step).ok_or_else(|| Error::uncertain("no row"))
}
