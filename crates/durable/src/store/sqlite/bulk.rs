//! The statements that change many timers.

use crate::store::sqlite::timers::change;
use crate::store::sqlite::{SLOT, now};
use crate::store::{Bulk, Place, Scope, Step, StoreTime};
use rusqlite::{Connection, Result, Row, params};

/// Timers that lie at a moment of a pause, beyond the time at which they go: where another pause
/// holds them, that is its end.
const HELD: &str = "0, id, due,
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
    let tagged = if tag.is_some() { "tag = ?1" } else { "?1 IS NULL" };
    let meant = if id.is_some() { "id = ?2" } else { "?2 IS NULL" };
    let from = if let Bulk::Touch(_, (_, from)) = bulk { from } else { 0 };
    let (rows, order, to) = match bulk {
        Bulk::Cancel => ("0, id, due, NULL FROM timer WHERE claim = 0", "", None),
        Bulk::Touch(to, _) => {
            let free = "0, id, due, ?3 FROM timer WHERE claim = 0 AND due <> ?3 AND id >= ?5";
            (free, "ORDER BY id", Some(to))
        }
        Bulk::Release(to) => (HELD, "", Some(to)),
        Bulk::Requeue(before) => {
            let free = "number, id, 0, max(?3, ?4) FROM dead WHERE (id = ?2 OR died < ?3)
                AND NOT EXISTS (SELECT 1 FROM timer WHERE timer.key = dead.key)";
            (free, "ORDER BY number", Some(before))
        }
        Bulk::Delete(before) => {
            ("number, id, 0, NULL FROM dead WHERE died < ?3", "ORDER BY number", Some(before))
        }
    };
    let sql = format!("SELECT {rows} AND {tagged} AND {meant} {order} LIMIT ?6");
    let found = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let mut select = file.prepare_cached(&sql)?;
    let params = params![tag, id, to, now(), from, limit];
    let found = select.query_map(params, found)?.collect::<Result<Vec<_>>>()?;
    let (mut count, mut moved) = (0, Vec::new());
    for (number, id, due, to) in &found {
        let changed = one(file, bulk, (*number, *id, *due), *to)?;
        count += u64::from(changed);
        let place = to.filter(|_| changed).map(|due| Place { due, slot: SLOT, id: *id });
        moved.extend(place);
    }
    let last = found.last().filter(|_| found.len() == limit as usize);
    let more = last.map(|(_, id, ..)| (SLOT, id.saturating_add(1)));
    Ok((Step { count, more }, moved))
}

/// Changes one of many; returns whether: of two dead timers with one key the second stays.
fn one(
    file: &Connection,
    bulk: Bulk,
    (number, id, due): (i64, i64, StoreTime),
    to: Option<StoreTime>,
) -> Result<bool> {
    let changed = match bulk {
        Bulk::Cancel => {
            change(file, "DELETE FROM timer WHERE due = ? AND id = ?", params![due, id])?
        }
        Bulk::Touch(..) => {
            let sql = "UPDATE timer SET due = ?, planned = NULL WHERE due = ? AND id = ?";
            change(file, sql, params![to, due, id])?
        }
        Bulk::Release(_) => {
            let sql = "UPDATE timer SET due = ? WHERE due = ? AND id = ?";
            change(file, sql, params![to, due, id])?
        }
        Bulk::Requeue(_) => {
            let sql = "INSERT OR IGNORE INTO timer (due, id, key, tag, payload)
                SELECT ?, id, key, tag, payload FROM dead WHERE number = ?";
            change(file, sql, params![to, number])?
        }
        Bulk::Delete(_) => 1,
    };
    if matches!(bulk, Bulk::Requeue(_) | Bulk::Delete(_)) && changed > 0 {
        change(file, "DELETE FROM dead WHERE number = ?", [number])?;
    }
    Ok(changed > 0)
}
