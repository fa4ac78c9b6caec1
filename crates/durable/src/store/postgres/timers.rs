//! The statements that write single timers, and look them up.
//!
//! Each locks its rows by their names, decides by what it has locked, changes them by their names,
//! and answers what the change returned. A row that was changed between the statement's snapshot
//! and its lock lies where the snapshot does not see it, but its name is the same.

use crate::entry::{Cancelled, Error, Pending, Scheduled, Touched};
use crate::store::postgres::link::{Ask, Param, column, count, is_locked, place, time};
use crate::store::{Changed, Name, NewTimer};
use crate::when::{Moment, StoreTime, micros};
use std::collections::HashMap;
use tokio_postgres::Row;

/// Reads the clock after the transaction has its number. So what it makes claimable is due no
/// earlier than the number was given: see [`Floor`](super::look::Floor).
macro_rules! begun {
    () => {
        "CASE WHEN pg_current_xact_id() IS NOT NULL THEN tickwheel.clock() END"
    };
}
pub(super) use begun;

/// When a row of `i` is due that has `at` and `after`.
macro_rules! due {
    () => {
        "least(greatest(i.at, c.now + i.after), 100000000000000000)"
    };
}
pub(super) use due;

/// Locks the rows of `input`, by name, and adds columns of theirs: nulls where there is no such
/// row, or somebody has locked it. The limit makes the server use the primary key for each,
/// whatever it knows of the table.
macro_rules! own {
    ($columns:literal) => {
        concat!(
            "own AS MATERIALIZED (
                SELECT i.*, t.* FROM input i LEFT JOIN LATERAL (
                    SELECT ",
            $columns,
            " FROM tickwheel.timer WHERE space = $1 AND name = i.name
                    LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true)"
        )
    };
}
pub(super) use own;

/// The tokens from `$floor` on. Of bounds that come out of subqueries the server expects few rows,
/// and uses the index of claims, also where all rows are claimed.
macro_rules! few {
    ($floor:literal) => {
        concat!(
            "claim >= (SELECT ",
            $floor,
            "::bigint) AND claim <= (SELECT 9223372036854775807)"
        )
    };
}
pub(super) use few;

/// Whether a row is there that could not be locked. No `EXISTS`: the server may turn that around,
/// and read the whole table once.
macro_rules! there {
    () => {
        "(SELECT true FROM tickwheel.timer t WHERE t.space = $1 AND t.name = o.name LIMIT 1)"
    };
}
pub(super) use there;

/// Tells nodes of the first of `$rows` if it is due soon. The statement must read `told`.
macro_rules! told {
    ($rows:literal, $tell:literal) => {
        concat!(
            "told AS MATERIALIZED (
                SELECT tickwheel.tell($1, w.due, w.id) FROM (
                    SELECT due, id FROM ",
            $rows,
            " WHERE due IS NOT NULL ORDER BY due, id LIMIT 1) w WHERE ",
            $tell,
            ")"
        )
    };
}

/// A statement without its `SKIP LOCKED`: it waits for locks, as a part of a user's transaction.
fn waiting(sql: &str) -> String {
    sql.replace(" SKIP LOCKED", "")
}

/// Reads a batch's answers. The columns of each row: the number in the batch, or 0 for the batch
/// itself; due time and id, or the clock for the batch; and what `answer` reads.
pub(super) fn changed<A>(
    rows: &[Row],
    count: usize,
    answer: impl Fn(&Row) -> Option<A>,
) -> Changed<A> {
    let mut changed = Changed {
        now: StoreTime::MIN,
        first: None,
        answers: (0..count).map(|_| None).collect(),
    };
    for row in rows {
        let number: i64 = row.get(0);
        if number == 0 {
            changed.now = time(row, 1);
            continue;
        }
        if let Some(one) = changed.answers.get_mut(number as usize - 1) {
            *one = answer(row);
        }
        changed.first = changed.first.into_iter().chain(place(row, 1)).min();
    }
    changed
}

/// How long a statement waits for the transaction of one who inserts the same key: as commits take.
pub(super) const LOCKED: &str = "10ms";

/// Keys that somebody has locked are left out, unless it waits for them as a part of a user's
/// transaction: then `$12` is null. A key that is being inserted is seen by nobody and cannot be
/// left out; all of it fails after [`LOCKED`]. A row that was there has been locked before it was
/// changed, which its `xmax` tells. Rows are locked in the order of their names, so that no two
/// batches wait for each other.
///
/// Arrays come out of subqueries: of those the server expects ten rows, and looks each of them up.
const SCHEDULE: &str = concat!(
    "WITH c AS MATERIALIZED (
        SELECT ",
    begun!(),
    " AS now, $12 IS NULL OR set_config('lock_timeout', $12, true) IS NOT NULL AS ready),
    input AS MATERIALIZED (
        SELECT i.id, i.name, least(",
    due!(),
    ", c.now + i.wait) AS due, i.planned, i.payload, i.tag, i.expires, c.now + i.wait AS ends
        FROM c, unnest((SELECT $2), (SELECT $3), (SELECT $4), (SELECT $5), (SELECT $6),
            (SELECT $7), (SELECT $8), (SELECT $9), (SELECT $10))
            AS i(name, id, at, after, planned, wait, expires, tag, payload) WHERE c.ready),
    found AS MATERIALIZED (
        SELECT i.id, i.name FROM input i CROSS JOIN LATERAL (
            SELECT FROM tickwheel.timer WHERE space = $1 AND name = i.name LIMIT 1) t
        WHERE $12 IS NOT NULL AND starts_with(i.name, 'k')),
    locked AS MATERIALIZED (
        SELECT f.id FROM found f LEFT JOIN LATERAL (
            SELECT name FROM tickwheel.timer WHERE space = $1 AND name = f.name
            LIMIT 1 FOR UPDATE SKIP LOCKED) t ON true WHERE t.name IS NULL),
    written AS (
        INSERT INTO tickwheel.timer AS t
            (space, name, due, id, payload, tag, planned, expires, waits_until)
        SELECT $1, name, due, id, payload, tag,
            CASE WHEN ends IS NULL AND planned <> due THEN planned END, expires, ends
        FROM input WHERE id NOT IN (SELECT id FROM locked) ORDER BY name COLLATE \"C\"
        ON CONFLICT (space, name) DO UPDATE SET
            due = CASE WHEN t.claim > 0 THEN t.due ELSE least(excluded.due, CASE
                WHEN excluded.waits_until IS NOT NULL AND t.waits_until IS NOT NULL
                THEN greatest(t.waits_until, tickwheel.clock()) END) END,
            next = CASE WHEN t.claim > 0 THEN least(excluded.due, CASE
                WHEN excluded.waits_until IS NOT NULL AND t.waits_until IS NOT NULL
                THEN greatest(t.waits_until, tickwheel.clock()) END) END,
            id = CASE WHEN t.claim > 0 THEN t.id ELSE excluded.id END,
            next_id = CASE WHEN t.claim > 0 THEN excluded.id END,
            attempts = CASE WHEN t.claim > 0 THEN t.attempts ELSE 0 END,
            crashes = CASE WHEN t.claim > 0 THEN t.crashes ELSE 0 END,
            cancelled = t.claim > 0 AND t.cancelled,
            waits_until = CASE WHEN excluded.waits_until IS NOT NULL
                THEN least(t.waits_until, excluded.waits_until) END,
            payload = excluded.payload, tag = excluded.tag, planned = excluded.planned,
            expires = excluded.expires, held_from = NULL
        WHERE excluded.id <> ALL ($11)
            OR CASE WHEN t.next_id IS NULL THEN t.cancelled ELSE t.next IS NULL END
        RETURNING coalesce(t.next_id, t.id) AS id, CASE WHEN t.claim <= 0 THEN t.due END AS due,
            t.xmax <> 0 AS replaced),
    ",
    told!("written", "$13"),
    " SELECT 0, now, NULL, 0::bigint FROM c WHERE (SELECT count(*) FROM told) >= 0
    UNION ALL SELECT 1 + replaced::int, due, CASE WHEN due IS NOT NULL THEN id END, id FROM written
    UNION ALL SELECT 3, NULL, NULL, id FROM locked"
);

/// Writes timers, and waits for a lock so long; without `patience` for as long as it takes.
async fn write(
    at: &impl Ask,
    space: &str,
    timers: &[NewTimer],
    patience: Option<&str>,
    tell: bool,
) -> Result<Changed<Scheduled>, Error> {
    let kept = timers.iter().filter(|timer| timer.keep);
    let kept: Vec<i64> = kept.map(|timer| timer.id).collect();
    let planned = |timer: &NewTimer| timer.when.planned.map(StoreTime::as_micros);
    let params: [&dyn Param; 13] = [
        &space,
        &column(timers, |timer| timer.name.0.as_str()),
        &column(timers, |timer| timer.id),
        &column(timers, |timer| timer.when.at.as_micros()),
        &column(timers, |timer| micros(timer.when.after)),
        &column(timers, planned),
        &column(timers, |timer| timer.max_wait.map(micros)),
        &column(timers, |timer| timer.expires_after.map(micros)),
        &column(timers, |timer| timer.tag.as_deref()),
        &column(timers, |timer| timer.payload.as_slice()),
        &kept,
        &patience,
        &tell,
    ];
    let rows = at.ask(SCHEDULE, &params).await?;
    let mut changed = changed(&[], 0, |_| None);
    let mut answers = HashMap::with_capacity(timers.len());
    for row in &rows {
        let answer = match row.get::<_, i32>(0) {
            0 => {
                changed.now = time(row, 1);
                continue;
            }
            1 => Some(Scheduled::New),
            2 => Some(Scheduled::Replaced),
            _ => None,
        };
        changed.first = changed.first.into_iter().chain(place(row, 1)).min();
        answers.insert(row.get::<_, i64>(3), answer);
    }
    let answer = |timer: &NewTimer| match answers.get(&timer.id) {
        Some(answer) => *answer,
        None => timer.keep.then_some(Scheduled::Kept),
    };
    changed.answers = column(timers, answer);
    Ok(changed)
}

/// Schedules timers, each half of them alone where one of them has all wait.
pub(super) async fn schedule(
    at: &impl Ask,
    space: &str,
    timers: &[NewTimer],
    tell: bool,
) -> Result<Changed<Scheduled>, Error> {
    let mut all = changed(&[], 0, |_| None);
    let mut parts = vec![timers];
    while let Some(part) = parts.pop() {
        match write(at, space, part, Some(LOCKED), tell).await {
            Ok(some) => {
                all.now = some.now;
                all.first = all.first.into_iter().chain(some.first).min();
                all.answers.extend(some.answers);
            }
            Err(error) if is_locked(&error) && part.len() == 1 => all.answers.push(None),
            Err(error) if is_locked(&error) => {
                let (one, rest) = part.split_at(part.len() / 2);
                parts.extend([rest, one]);
            }
            Err(error) if all.answers.iter().all(Option::is_none) => return Err(error),
            // What was written of the batch before stays.
            Err(error) => return Err(Error::uncertain(error)),
        }
    }
    Ok(all)
}

/// Schedules a timer inside a transaction of a user's, and waits for who has it locked.
pub(super) async fn schedule_in(
    at: &impl Ask,
    space: &str,
    timer: NewTimer,
) -> Result<Scheduled, Error> {
    let changed = write(at, space, &[timer], None, true).await?;
    let answer = changed.answers.into_iter().next().flatten();
    answer.ok_or_else(|| Error::uncertain("no row"))
}

/// The payload of a timer that waits for the end of a run is read before it goes.
const CANCEL: &str = concat!(
    "WITH input AS MATERIALIZED (
        SELECT n, name FROM unnest((SELECT $2)) WITH ORDINALITY AS i(name, n)),
    ",
    own!("claim, cancelled, next, CASE WHEN next IS NOT NULL THEN payload END AS later"),
    ", gone AS (
        DELETE FROM tickwheel.timer t USING own o
        WHERE t.space = $1 AND t.name = o.name AND o.claim <= 0 AND NOT o.cancelled
        RETURNING o.n, t.payload),
    marked AS (
        UPDATE tickwheel.timer t SET next = NULL,
            cancelled = t.cancelled OR o.next IS NULL,
            payload = CASE WHEN o.next IS NULL THEN t.payload ELSE '' END,
            tag = CASE WHEN o.next IS NULL THEN t.tag END,
            planned = CASE WHEN o.next IS NULL THEN t.planned END,
            expires = CASE WHEN o.next IS NULL THEN t.expires END,
            waits_until = CASE WHEN o.next IS NULL THEN t.waits_until END
        FROM own o
        WHERE t.space = $1 AND t.name = o.name AND (o.claim > 0 OR o.cancelled)
        RETURNING o.n, o.later)
    SELECT 0::bigint, tickwheel.clock(), NULL::bigint, NULL::boolean, NULL::bytea
    UNION ALL SELECT n, NULL, NULL, true, payload FROM gone
    UNION ALL SELECT n, NULL, NULL, true, later FROM marked
    UNION ALL SELECT n, NULL, NULL, false, NULL FROM own o WHERE claim IS NULL AND ",
    there!(),
    " IS NULL"
);

/// Cancels timers.
pub(super) async fn cancel(
    at: &impl Ask,
    space: &str,
    names: &[Name],
) -> Result<Changed<Cancelled>, Error> {
    ask_cancel(at, CANCEL, space, names).await
}

async fn ask_cancel(
    at: &impl Ask,
    sql: &str,
    space: &str,
    names: &[Name],
) -> Result<Changed<Cancelled>, Error> {
    let own = column(names, |name| name.0.as_str());
    let rows = at.ask(sql, &[&space, &own]).await?;
    let answer = |row: &Row| match (row.get(3), row.get::<_, Option<Vec<u8>>>(4)) {
        (true, Some(payload)) => Some(Cancelled::Cancelled(payload)),
        (true, None) => Some(Cancelled::Running),
        (false, _) => Some(Cancelled::Unknown),
    };
    Ok(changed(&rows, names.len(), answer))
}

/// Cancels a timer inside a transaction of a user's, and waits for who has it locked.
pub(super) async fn cancel_in(at: &impl Ask, space: &str, name: Name) -> Result<Cancelled, Error> {
    let sql = waiting(CANCEL);
    let names = [name];
    // A row that went while this waited for it may be there anew: the next snapshot tells.
    loop {
        let changed = ask_cancel(at, &sql, space, &names).await?;
        if let Some(answer) = changed.answers.into_iter().next().flatten() {
            return Ok(answer);
        }
    }
}

const TOUCH: &str = concat!(
    "WITH c AS MATERIALIZED (SELECT ",
    begun!(),
    " AS now),
    input AS MATERIALIZED (
        SELECT i.n, i.name, ",
    due!(),
    " AS moment, i.planned FROM c, unnest((SELECT $2), (SELECT $3), (SELECT $4), (SELECT $5))
            WITH ORDINALITY AS i(name, at, after, planned, n)),
    ",
    own!("claim, CASE WHEN claim > 0 THEN next IS NOT NULL ELSE NOT cancelled END AS moves"),
    ", moved AS (
        UPDATE tickwheel.timer t SET
            due = CASE WHEN t.claim > 0 THEN t.due ELSE o.moment END,
            next = CASE WHEN t.claim > 0 THEN o.moment END,
            planned = nullif(o.planned, o.moment), held_from = NULL
        FROM own o WHERE t.space = $1 AND t.name = o.name AND o.moves
        RETURNING o.n, CASE WHEN t.claim <= 0 THEN t.due END AS due, t.id),
    ",
    told!("moved", "$6"),
    " SELECT 0::bigint, now, NULL::bigint, 0 FROM c WHERE (SELECT count(*) FROM told) >= 0
    UNION ALL SELECT n, due, CASE WHEN due IS NOT NULL THEN id END, 1 FROM moved
    UNION ALL SELECT n, NULL, NULL, 2 FROM own WHERE NOT moves
    UNION ALL SELECT n, NULL, NULL, 3 FROM own o WHERE claim IS NULL AND ",
    there!(),
    " IS NULL"
);

/// Moves timers.
pub(super) async fn touch(
    at: &impl Ask,
    space: &str,
    moves: &[(Name, Moment)],
    tell: bool,
) -> Result<Changed<Touched>, Error> {
    ask_touch(at, TOUCH, space, moves, tell).await
}

async fn ask_touch(
    at: &impl Ask,
    sql: &str,
    space: &str,
    moves: &[(Name, Moment)],
    tell: bool,
) -> Result<Changed<Touched>, Error> {
    let params: [&dyn Param; 6] = [
        &space,
        &column(moves, |it| it.0.0.as_str()),
        &column(moves, |it| it.1.at.as_micros()),
        &column(moves, |it| micros(it.1.after)),
        &column(moves, |it| it.1.planned.map(StoreTime::as_micros)),
        &tell,
    ];
    let rows = at.ask(sql, &params).await?;
    let answer = |row: &Row| match row.get::<_, i32>(3) {
        1 => Some(Touched::Moved),
        2 => Some(Touched::Running),
        _ => Some(Touched::Unknown),
    };
    Ok(changed(&rows, moves.len(), answer))
}

/// Moves a timer inside a transaction of a user's, and waits for who has it locked.
pub(super) async fn touch_in(
    at: &impl Ask,
    space: &str,
    name: Name,
    moment: Moment,
) -> Result<Touched, Error> {
    let sql = waiting(TOUCH);
    let moves = [(name, moment)];
    // As for a cancel.
    loop {
        let changed = ask_touch(at, &sql, space, &moves, true).await?;
        if let Some(answer) = changed.answers.into_iter().next().flatten() {
            return Ok(answer);
        }
    }
}

/// Looks a name up.
pub(super) async fn get(at: &impl Ask, space: &str, name: &Name) -> Result<Option<Pending>, Error> {
    let sql = "SELECT coalesce(next, due), payload,
            CASE WHEN next IS NULL THEN attempts ELSE 0 END, claim > 0
        FROM tickwheel.timer WHERE space = $1 AND name = $2 AND died IS NULL";
    let rows = at.ask(sql, &[&space, &name.0.as_str()]).await?;
    Ok(rows.first().map(|row| Pending {
        at: time(row, 0),
        payload: row.get(1),
        attempts: count(row, 2),
        running: row.get(3),
    }))
}
