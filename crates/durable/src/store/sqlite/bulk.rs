//! The statements that change many timers.

use crate::store::sqlite::timers::change;
use crate::store::sqlite::{SLOT, now};
use crate::store::{Bulk, Place, Scope, Step, StoreTime};
use rusqlite::{Connection, Result, Row, params};

/// Timers that lie at a moment of a pause, beyond the time at which they go: where another pause
/// holds them, that is its end.
const HELD: &str = "due, id,
        max(?3, (SELECT coalesce(max(until), 0) FROM pause p
            WHERE p.tag IS NULL OR p.tag = timer.tag)) AS goes
    FROM timer WHERE planned IS NOT NULL AND due > ?3 AND due & 131071 = 131071 AND due > goes
        AND claim = 0";

/// Returns what became of a step, and the places of timers that it moved.
pub(super) fn step(
    file: &Connection,
    scope: &Scope,
    bulk: Bulk,
    limit: u32,
) -> Result<(Step, Vec<Place>)> {
    let Scope { tag, id } = scope;
    // Without an `OR`, which would not use the indexes.
    let tagged = if tag.is_some() {
        "tag = ?1"
    } else {
        "?1 IS NULL"
    };
    let meant = if id.is_some() {
        "id = ?2"
    } else {
        "?2 IS NULL"
    };
    let (to, (_, from)) = bulk.bounds();
    // Each row by its first two columns; the third one is when it is due then, if it is kept.
    let (rows, order, one) = match bulk {
        Bulk::Cancel => (
            "due, id, NULL FROM timer WHERE claim = 0",
            "",
            "DELETE FROM timer WHERE due = ?1 AND id = ?2 AND ?3 IS NULL",
        ),
        Bulk::Touch(..) => (
            "due, id, ?3 FROM timer WHERE claim = 0 AND due <> ?3 AND id >= ?5",
            "ORDER BY id",
            "UPDATE timer SET due = ?3, planned = NULL WHERE due = ?1 AND id = ?2",
        ),
        Bulk::Release(_) => (
            HELD,
            "",
            "UPDATE timer SET due = ?3 WHERE due = ?1 AND id = ?2",
        ),
        // Of two with one key the second stays.
        Bulk::Requeue(_) => (
            "number, id, max(?3, ?4) FROM dead WHERE (id = ?2 OR died < ?3)
                AND NOT EXISTS (SELECT 1 FROM timer WHERE timer.key = dead.key)",
            "ORDER BY number",
            "INSERT OR IGNORE INTO timer (due, id, key, tag, payload)
                SELECT ?3, id, key, tag, payload FROM dead WHERE number = ?1 AND id = ?2",
        ),
        Bulk::Delete(_) => (
            "number, id, NULL FROM dead WHERE died < ?3",
            "ORDER BY number",
            "DELETE FROM dead WHERE number = ?1 AND id = ?2 AND ?3 IS NULL",
        ),
    };
    let sql = format!("SELECT {rows} AND {tagged} AND {meant} {order} LIMIT ?6");
    let found = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let mut select = file.prepare_cached(&sql)?;
    let params = params![tag, id, to, now(), from, limit];
    let found = select
        .query_map(params, found)?
        .collect::<Result<Vec<(i64, i64, Option<StoreTime>)>>>()?;
    let (mut count, mut moved) = (0, Vec::new());
    for (at, id, to) in &found {
        if change(file, one, params![at, id, to])? == 0 {
            continue;
        }
        if let Bulk::Requeue(_) = bulk {
            change(file, "DELETE FROM dead WHERE number = ?", [at])?;
        }
        count += 1;
        moved.extend(to.map(|due| Place {
            due,
            slot: SLOT,
            id: *id,
        }));
    }
    let last = found.last().filter(|_| found.len() == limit as usize);
    let more = last.map(|(_, id, _)| (SLOT, id.saturating_add(1)));
    Ok((Step { count, more }, moved))
}
