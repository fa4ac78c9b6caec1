//! The statements that cancel timers of a tag.

use crate::error::Error;
use crate::store::CancelledTag;
use crate::store::postgres::columns::slot;
use crate::store::postgres::link::Link;
use crate::store::postgres::schema::SLOTS;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Deletes what lies where it was found, and tells for each whether it did. One that somebody moves
/// meanwhile is found, waited for, and no longer there.
const CANCEL: &str = "WITH found AS MATERIALIZED (
        SELECT slot, due, id FROM tickwheel.timer
        WHERE tag = $1 AND slot BETWEEN $2 AND $3 AND claim = 0
        AND slot IN (SELECT slot FROM tickwheel.slot WHERE served = 0) LIMIT $4),
    gone AS (DELETE FROM tickwheel.timer t USING found f
        WHERE t.slot = f.slot AND t.due = f.due AND t.id = f.id AND t.claim = 0
        RETURNING t.slot, t.id)
    SELECT slot, id, g.id IS NOT NULL FROM found LEFT JOIN gone g USING (slot, id)";

/// Deletes those by what no move changes. It looks at all of the tag in their slots, so only what
/// has moved is looked for like that.
const CANCEL_MOVED: &str = "DELETE FROM tickwheel.timer t USING unnest($2, $3) AS i(slot, id)
    WHERE t.tag = $1 AND t.slot = i.slot AND t.id = i.id AND t.claim = 0 RETURNING t.id";

pub(super) async fn cancel_tag(
    link: &Link,
    first: u32,
    tag: String,
    limit: u32,
) -> Result<CancelledTag, Error> {
    let tag = (&tag as _, Type::TEXT);
    let params = [
        tag.clone(),
        (&slot(first) as _, Type::INT4),
        (&slot(first + SLOTS - 1) as _, Type::INT4),
        (&i64::from(limit) as _, Type::INT8),
    ];
    let found = link.query(CANCEL, &params).await?;
    let moved = found.iter().filter(|row| !row.get::<_, bool>(2));
    let split = |row: &Row| (row.get::<_, i32>(0), row.get::<_, i64>(1));
    let (slots, ids): (Vec<i32>, Vec<i64>) = moved.map(split).unzip();
    let mut count = found.len() - ids.len();
    if !ids.is_empty() {
        let params = [tag, (&slots, Type::INT4_ARRAY), (&ids, Type::INT8_ARRAY)];
        // Some were cancelled, whatever becomes of these.
        let moved = link.query(CANCEL_MOVED, &params).await.map_err(Error::uncertain)?;
        count += moved.len();
    }
    Ok(CancelledTag { count: count as u64, more: found.len() == limit as usize })
}
