//! The statements on timers.

use crate::entry::{Cancelled, DeadTimer, Listed, Paused, Pending, Scheduled, Search, Touched};
use crate::store::sqlite::{SLOT, now};
use crate::store::{
    ALONE, Ack, Bars, Claim, ClaimedRow, Claims, Ending, Former, NewRow, Page, Place, StoreTime,
    Suspect, Written,
};
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Params, Result, Row, params};

impl ToSql for StoreTime {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(self.as_micros().into())
    }
}

impl FromSql for StoreTime {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        i64::column_result(value).map(StoreTime::from_micros)
    }
}

pub(super) fn change(file: &Connection, sql: &str, params: impl Params) -> Result<usize> {
    file.prepare_cached(sql)?.execute(params)
}

/// Reads the only row there may be.
fn one<A>(
    file: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<A>,
) -> Result<Option<A>> {
    file.prepare_cached(sql)?.query_row(params, read).optional()
}

pub(super) fn load(file: &Connection, page: &Page) -> Result<Vec<Place>> {
    let Page {
        after,
        before,
        limit,
        ..
    } = page;
    // The one slot is above the cursor's only if that is before all slots.
    let id = if after.slot > SLOT {
        i64::MAX
    } else {
        after.id
    };
    let mut load = file.prepare_cached(
        "SELECT due, id FROM timer WHERE (due, id) > (?1, ?2) AND due < ?3
         ORDER BY due, id LIMIT ?4",
    )?;
    let place = |row: &Row<'_>| {
        Ok(Place {
            due: row.get(0)?,
            slot: SLOT,
            id: row.get(1)?,
        })
    };
    load.query_map(params![after.due, id, before, limit], place)?
        .collect()
}

pub(super) fn first(file: &Connection) -> Result<StoreTime> {
    let due = one(file, "SELECT min(due) FROM timer", [], |row| row.get(0))?;
    Ok(due.flatten().unwrap_or(StoreTime::MAX))
}

pub(super) fn write(file: &Connection, mut row: NewRow) -> Result<Written> {
    let sql = "SELECT until, claim <> 0, cancelled FROM timer WHERE key = ?";
    let former = one(file, sql, [&row.key], |row| {
        Ok(Former {
            until: row.get(0)?,
            claimed: row.get(1)?,
            cancelled: row.get(2)?,
        })
    })?;
    let written = row.settle(former, now());
    let NewRow {
        place,
        key,
        tag,
        payload,
        until,
        planned,
        ..
    } = row;
    match written.answer {
        Scheduled::Kept => return Ok(written),
        Scheduled::Replaced => change(file, "DELETE FROM timer WHERE key = ?", [&key])?,
        Scheduled::New => 0,
    };
    let columns = "due, id, key, tag, payload, until, planned";
    let sql = format!("INSERT INTO timer ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)");
    change(
        file,
        &sql,
        params![place.due, place.id, key, tag, payload, until, planned],
    )?;
    Ok(written)
}

pub(super) fn cancel(file: &Connection, key: &str) -> Result<Cancelled> {
    let sql = "DELETE FROM timer WHERE key = ? AND claim = 0 RETURNING payload";
    if let Some(payload) = one(file, sql, [key], |row| row.get(0))? {
        return Ok(Cancelled::Cancelled(payload));
    }
    let marked = change(file, "UPDATE timer SET cancelled = 1 WHERE key = ?", [key])?;
    Ok(if marked > 0 {
        Cancelled::Running
    } else {
        Cancelled::Unknown
    })
}

/// Returns what became of a touch, and the place if it was moved.
pub(super) fn touch(
    file: &Connection,
    key: &str,
    due: StoreTime,
) -> Result<(Touched, Option<Place>)> {
    let sql = "UPDATE timer SET due = ?1, planned = NULL WHERE key = ?2 AND claim = 0 RETURNING id";
    if let Some(id) = one(file, sql, params![due, key], |row| row.get(0))? {
        return Ok((
            Touched::Moved,
            Some(Place {
                due,
                slot: SLOT,
                id,
            }),
        ));
    }
    let is_there = one(file, "SELECT 1 FROM timer WHERE key = ?", [key], |_| Ok(()))?.is_some();
    Ok((
        if is_there {
            Touched::Running
        } else {
            Touched::Unknown
        },
        None,
    ))
}

/// A timer that may be claimed, and until when it is paused.
const FIND: &str = "SELECT attempts, crashes + (claim NOT IN (0, ?3) AND crashes < ?4), cancelled,
        (SELECT max(p.until) FROM pause p
            WHERE (p.tag IS NULL OR p.tag = timer.tag) AND p.until > ?5)
    FROM timer WHERE due = ?1 AND id = ?2 AND claim <= ?3";

/// Claims a timer that is due, or tells why not.
pub(super) fn claim(
    file: &Connection,
    claim: Claim,
    crashes: u32,
    answer: &mut Claims,
) -> Result<()> {
    let Claim { place, epoch } = claim;
    let params = params![place.due, place.id, epoch, ALONE, answer.now];
    let found = one(file, FIND, params, |row| {
        let suspect = Suspect {
            attempts: row.get(0)?,
            crashes: row.get(1)?,
            place,
        };
        Ok((suspect, row.get(2)?, row.get::<_, Option<StoreTime>>(3)?))
    })?;
    let row = "WHERE due = ?1 AND id = ?2";
    match found {
        None => {}
        Some((_, true, _)) => {
            change(
                file,
                &format!("DELETE FROM timer {row}"),
                params![place.due, place.id],
            )?;
        }
        Some((suspect, _, Some(due))) => {
            let set = "due = ?3, planned = coalesce(planned, due), claim = 0, crashes = ?4,
                attempts = attempts - (claim = ?5)";
            let sql = format!("UPDATE timer SET {set} {row}");
            change(
                file,
                &sql,
                params![place.due, place.id, due, suspect.crashes, epoch],
            )?;
            answer.held.push(Place { due, ..place });
        }
        Some((suspect, ..)) if suspect.crashes > crashes => answer.suspects.push(suspect),
        Some((Suspect { crashes, .. }, ..)) => {
            let set = "claim = ?3, attempts = attempts + (claim <> ?3), crashes = ?4";
            let told = "key, attempts, payload, coalesce(planned, due), tag";
            let sql = format!("UPDATE timer SET {set} {row} RETURNING {told}");
            let claimed = one(
                file,
                &sql,
                params![place.due, place.id, epoch, crashes],
                |row| {
                    let (key, attempts, payload) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    let (planned, tag) = (row.get(3)?, row.get(4)?);
                    Ok(ClaimedRow {
                        claim,
                        key,
                        tag,
                        attempts,
                        crashes,
                        payload,
                        planned,
                    })
                },
            )?;
            answer.rows.extend(claimed);
        }
    }
    Ok(())
}

pub(super) fn pause(
    file: &Connection,
    tag: Option<String>,
    until: Option<StoreTime>,
) -> Result<usize> {
    change(
        file,
        "DELETE FROM pause WHERE tag IS ? OR until <= ?",
        params![tag, now()],
    )?;
    let sql = "INSERT INTO pause (tag, until) SELECT ?1, ?2 WHERE ?2 IS NOT NULL";
    change(file, sql, params![tag, until])
}

pub(super) fn pauses(file: &Connection) -> Result<Vec<Paused>> {
    let pause = |row: &Row<'_>| {
        Ok(Paused {
            tag: row.get(0)?,
            until: row.get(1)?,
        })
    };
    let mut all = file.prepare_cached("SELECT tag, until FROM pause WHERE until > ?")?;
    all.query_map([now()], pause)?.collect()
}

/// Deletes a timer if it is still claimed so. Returns how many that were.
pub(super) fn end(file: &Connection, claim: &Claim) -> Result<usize> {
    let sql = "DELETE FROM timer WHERE due = ?1 AND id = ?2 AND claim = ?3";
    change(
        file,
        sql,
        params![claim.place.due, claim.place.id, claim.epoch],
    )
}

pub(super) fn acknowledge(file: &Connection, ack: Ack, now: StoreTime) -> Result<()> {
    let Claim {
        place: Place { due, id, .. },
        epoch,
    } = ack.claim;
    let row = "WHERE due = ?1 AND id = ?2 AND claim = ?3";
    let changed = match ack.ending {
        Ending::Done => end(file, &ack.claim),
        Ending::Retry(at) => {
            let set = "due = ?4, claim = 0, until = NULL, planned = coalesce(planned, due)";
            let sql = format!("UPDATE timer SET {set} {row} AND NOT cancelled");
            change(file, &sql, params![due, id, epoch, at])
        }
        Ending::Again {
            due: at,
            planned,
            payload,
        } => {
            let set = "due = ?4, claim = 0, attempts = 0, crashes = 0, until = NULL, planned = ?5";
            let sql = format!("UPDATE timer SET {set}, payload = ?6 {row} AND NOT cancelled");
            change(file, &sql, params![due, id, epoch, at, planned, payload])
        }
        Ending::Dead(reason) => {
            let columns = "id, attempts, key, tag, payload";
            let sql = format!(
                "INSERT INTO dead ({columns}, reason, died) SELECT {columns}, ?4, ?5
                FROM timer {row}"
            );
            change(file, &sql, params![due, id, epoch, reason, now])?;
            end(file, &ack.claim)
        }
    }?;
    // Cancelled since it was claimed; or another's claim by now, of which this deletes nothing.
    if changed == 0 {
        end(file, &ack.claim)?;
    }
    Ok(())
}

pub(super) fn get(file: &Connection, key: &str) -> Result<Option<Pending>> {
    let sql = "SELECT due, payload, attempts, claim <> 0 FROM timer WHERE key = ?";
    one(file, sql, [key], |row| {
        let (at, payload) = (row.get(0)?, row.get(1)?);
        Ok(Pending {
            at,
            payload,
            attempts: row.get(2)?,
            running: row.get(3)?,
        })
    })
}

pub(super) fn list(file: &Connection, search: &Search) -> Result<Vec<Listed>> {
    page(file, search, ("claim <> 0, payload", "timer"), |row| {
        let place = Place {
            due: row.get(0)?,
            slot: SLOT,
            id: row.get(1)?,
        };
        let (key, tag, payload) = (row.get(2)?, row.get(3)?, row.get(6)?);
        Ok(Listed::new(
            place,
            key,
            tag,
            payload,
            (row.get(4)?, row.get(5)?),
        ))
    })
}

pub(super) fn dead(file: &Connection, search: &Search) -> Result<Vec<DeadTimer>> {
    let dead = "(SELECT *, died AS due, 0 AS claim FROM dead)";
    page(file, search, ("payload, reason", dead), |row| {
        let (died, id, key, tag) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let (attempts, payload, reason) = (row.get(4)?, row.get(5)?, row.get(6)?);
        Ok(DeadTimer {
            id,
            key,
            payload,
            tag,
            attempts,
            reason,
            died,
            slot: SLOT,
        })
    })
}

/// Returns what is found in these rows, by the order of their places, with more of their columns.
fn page<A>(
    file: &Connection,
    search: &Search,
    (columns, rows): (&str, &str),
    tell: impl Fn(&Row<'_>) -> Result<A>,
) -> Result<Vec<A>> {
    let Search {
        tag,
        prefix,
        running,
        after,
        before,
        limit,
    } = search;
    let sql = format!(
        "SELECT due, id, key, tag, attempts, {columns} FROM {rows}
        WHERE (due, id) > (?1, ?2) AND (?3 IS NULL OR due < ?3) AND (?4 IS NULL OR tag = ?4)
        AND (?5 IS NULL OR substr(key, 1, length(?5)) = ?5) AND (?6 IS NULL OR (claim <> 0) = ?6)
        ORDER BY due, id LIMIT ?7"
    );
    let params = params![after.due, after.id, before, tag, prefix, running, limit];
    file.prepare_cached(&sql)?
        .query_map(params, tell)?
        .collect()
}

pub(super) fn histogram(file: &Connection, bars: Bars) -> Result<Vec<u64>> {
    let (from, width, to) = bars.micros();
    let mut count = file.prepare_cached(
        "SELECT (due - ?1) / ?2, count(*) FROM timer WHERE due >= ?1 AND due < ?3 GROUP BY 1",
    )?;
    let bar = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let counted = count
        .query_map(params![from, width, to], bar)?
        .collect::<Result<Vec<_>>>()?;
    Ok(bars.counts(counted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenStore;
    use crate::store::sqlite::SqliteFile;
    use rusqlite::StatementStatus;

    /// Seen to fail: without an index a claim stepped over 999 pauses.
    #[tokio::test]
    async fn a_claim_reads_the_pauses_of_its_own_tag() {
        let folder = tempfile::tempdir().unwrap();
        let place = SqliteFile {
            path: folder.path().join("timers"),
            is_written: true,
        };
        let file = place.open().await.unwrap();
        let scanned = file.call(|file, _| {
            for tag in 0..1_000 {
                pause(file, Some(tag.to_string()), Some(StoreTime::MAX))?;
            }
            let mut find = file.prepare(FIND)?;
            file.execute(
                "INSERT INTO timer (due, id, tag, payload) VALUES (1, 1, 'own', '')",
                [],
            )?;
            assert!(find.exists(params![1, 1, 1, ALONE, now()])?);
            Ok(find.get_status(StatementStatus::FullscanStep))
        });
        assert_eq!(scanned.await.unwrap(), 0);
    }
}
