//! The statement that schedules.

use crate::entry::{Error, Scheduled};
use crate::store::postgres::link::{Ask, Link, Param, column, is_locked, slot};
use crate::store::postgres::{hinted, missing, timer, told};
use crate::store::{NewRow, NodeId, StoreTime, Written};
use std::collections::HashMap;
use tokio_postgres::Row;

/// Where a slot of the batch is missing it does nothing. Keys that somebody has locked are
/// left out, unless it waits for them as a part of a user's transaction: then it waits in their
/// order, so no two do crosswise. A key that is being inserted is seen by nobody and cannot be left
/// out; all of it fails after [`LOCKED`]. A row that was there has been locked before it was
/// changed, which its `xmax` tells. Of a row that is to be kept no lock is asked.
const SCHEDULE: &str = concat!(
    "WITH here AS MATERIALIZED (
        SELECT NOT EXISTS (
            SELECT FROM unnest($1) g(slot) LEFT JOIN tickwheel.slot s USING (slot)
            WHERE s.slot IS NULL)
        AS whole),
    input AS MATERIALIZED (SELECT * FROM unnest($1, $3, $4) AS i(slot, id, key)),
    found AS MATERIALIZED (
        SELECT i.slot, i.key, i.id, t.at, t.cancelled FROM input i ",
    timer!("slot", "key"),
    "), kept AS MATERIALIZED (
        SELECT id FROM found WHERE id = ANY ($10) AND NOT cancelled),
    own AS MATERIALIZED (
        SELECT f.id FROM found f JOIN tickwheel.timer t USING (slot, key)
        WHERE t.ctid = f.at AND $8 IS NOT NULL AND f.id NOT IN (SELECT id FROM kept)
        FOR UPDATE OF t SKIP LOCKED),
    locked AS MATERIALIZED (
        SELECT id FROM found WHERE $8 IS NOT NULL
        AND id NOT IN (SELECT id FROM kept) AND id NOT IN (SELECT id FROM own)),
    written AS (
        INSERT INTO tickwheel.timer AS t (slot, due, id, key, tag, payload, until, planned)
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $9, $11)
            AS i(slot, due, id, key, tag, payload, until, planned)
        WHERE (SELECT whole FROM here) AND id NOT IN (SELECT id FROM locked)
        AND id NOT IN (SELECT id FROM kept)
        AND ($8 IS NULL OR (SELECT set_config('lock_timeout', $8, true)) IS NOT NULL)
        ORDER BY slot, key
        ON CONFLICT (slot, key) WHERE key IS NOT NULL DO UPDATE
        SET due = least(excluded.due, CASE WHEN excluded.until IS NOT NULL AND t.claim = 0
                AND t.until IS NOT NULL THEN greatest(t.until, tickwheel.clock()) END),
            until = CASE WHEN excluded.until IS NOT NULL AND t.claim = 0
                THEN least(excluded.until, t.until) ELSE excluded.until END,
            id = excluded.id, tag = excluded.tag, payload = excluded.payload,
            claim = 0, attempts = 0, crashes = 0, cancelled = false, planned = excluded.planned
        WHERE excluded.id <> ALL ($10) OR t.cancelled
        RETURNING t.slot, t.due, t.id, t.xmax <> 0 AS replaced),
    ",
    hinted!("written", "AND m.node <> $7"),
    " SELECT id, due, replaced FROM written WHERE (SELECT count(*) FROM told) >= 0
    UNION ALL SELECT id, NULL, NULL FROM locked
    UNION ALL SELECT id, NULL, true FROM here, unnest($10) AS k(id)
    WHERE whole AND id NOT IN (SELECT id FROM written) AND id NOT IN (SELECT id FROM locked)"
);

/// How long a statement waits for the transaction of one who inserts the same key: as commits take.
pub(super) const LOCKED: &str = "10ms";

/// Writes rows, and waits for a lock so long; without `patience` for as long as it takes.
async fn write(
    at: &impl Ask,
    node: NodeId,
    rows: &[NewRow],
    patience: Option<&str>,
) -> Result<Vec<Option<Written>>, Error> {
    let keep: Vec<i64> = rows
        .iter()
        .filter(|row| row.keep)
        .map(|row| row.place.id)
        .collect();
    let params: [&dyn Param; 11] = [
        &column(rows, |row| slot(row.place.slot)),
        &column(rows, |row| row.place.due.as_micros()),
        &column(rows, |row| row.place.id),
        &column(rows, |row| row.key.as_deref()),
        &column(rows, |row| row.tag.as_deref()),
        &column(rows, |row| row.payload.as_slice()),
        &node.0,
        &patience,
        &column(rows, |row| row.until.map(StoreTime::as_micros)),
        &keep,
        &column(rows, |row| row.planned.map(StoreTime::as_micros)),
    ];
    let written = at.ask(SCHEDULE, &params).await?;
    if written.len() < rows.len() {
        return Err(missing());
    }
    let answer = |row: &Row| {
        let due = row.get::<_, Option<i64>>(1).map(StoreTime::from_micros);
        let answer = match (row.get(2), due) {
            (Some(false), _) => Some(Scheduled::New),
            (Some(true), Some(_)) => Some(Scheduled::Replaced),
            (Some(true), None) => Some(Scheduled::Kept),
            (None, _) => None,
        };
        let due = due.unwrap_or_default();
        (row.get(0), answer.map(|answer| Written { answer, due }))
    };
    let answers: HashMap<i64, Option<Written>> = written.iter().map(answer).collect();
    Ok(rows
        .iter()
        .map(|row| answers.get(&row.place.id).copied().flatten())
        .collect())
}

/// Schedules a row inside a transaction of a user's, and waits for who has it locked. Nobody knows
/// of it before the commit: its owner is told by it, this node as well.
pub(super) async fn schedule_in(at: &impl Ask, row: NewRow) -> Result<Scheduled, Error> {
    let answers = write(at, NodeId(0), &[row], None).await?;
    Ok(answers
        .into_iter()
        .next()
        .flatten()
        .map_or(Scheduled::New, |written| written.answer))
}

/// Schedules rows, each half of them alone where one of them has all wait.
pub(super) async fn schedule(
    link: &Link,
    node: NodeId,
    rows: Vec<NewRow>,
) -> Result<Vec<Option<Written>>, Error> {
    let mut answers = Vec::with_capacity(rows.len());
    let mut parts = vec![rows];
    while let Some(mut part) = parts.pop() {
        match write(link, node, &part, Some(LOCKED)).await {
            Ok(some) => answers.extend(some),
            Err(error) if is_locked(&error) && part.len() == 1 => answers.push(None),
            Err(error) if is_locked(&error) => {
                let rest = part.split_off(part.len() / 2);
                parts.extend([rest, part]);
            }
            Err(error) if answers.is_empty() => return Err(error),
            // What was written of the batch before stays.
            Err(error) => return Err(Error::uncertain(error)),
        }
    }
    Ok(answers)
}
