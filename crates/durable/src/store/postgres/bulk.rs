//! The statements that change many timers.

use crate::entry::{Error, Paused};
use crate::store::postgres::link::{Ask, Link, Param, is_locked, slot};
use crate::store::postgres::schedule::LOCKED;
use crate::store::postgres::{Range, hinted, told};
use crate::store::{Bulk, Scope, Step, StoreTime};
use tokio_postgres::Row;

/// Timers, or dead timers, that are meant.
const MEANT: &str =
    "slot BETWEEN $1 AND $2 AND ($3 IS NULL OR tag = $3) AND ($4 IS NULL OR id = $4)";

/// When a timer goes that a pause has put off: where another one holds it, at the end of that.
macro_rules! goes {
    ($timer:literal) => {
        concat!(
            "greatest($6, (SELECT max(until) FROM tickwheel.pause p
                WHERE namespace = $1 / 1024 AND (p.tag IS NULL OR p.tag = ",
            $timer,
            ".tag)))"
        )
    };
}

/// Timers that pauses have put off; slot by slot, so that no others are read.
const HELD: &str = concat!(
    "planned IS NOT NULL AND claim = 0 AND due > $6
    AND slot = ANY (ARRAY(SELECT slot FROM tickwheel.slot WHERE slot BETWEEN $1 AND $2))
    AND due = ANY (ARRAY(SELECT unnest(moments) FROM tickwheel.pause p
        WHERE namespace = $1 / 1024 AND ($3 IS NULL OR p.tag IS NULL OR p.tag = $3)))
    AND due > ",
    goes!("d")
);

const HINTED: &str = hinted!("changed", "");
const UNHINTED: &str = "told AS (SELECT)";

/// Changes at most so many that nobody has locked. What was moved or locked meanwhile is left to
/// the next look.
fn statement(bulk: Bulk) -> String {
    let (rows, is_meant, order, change, also) = match bulk {
        Bulk::Cancel => (
            "timer",
            "claim = 0",
            "",
            "DELETE FROM tickwheel.timer t USING own o WHERE t.ctid = o.at RETURNING t.slot, t.id",
            UNHINTED,
        ),
        Bulk::Touch(..) => (
            "timer",
            "claim = 0 AND due <> $6 AND (slot, id) >= ($8, $9)",
            "ORDER BY slot, id",
            "UPDATE tickwheel.timer t SET due = $6, planned = NULL FROM own o
            WHERE t.ctid = o.at RETURNING t.slot, t.due, t.id",
            HINTED,
        ),
        Bulk::Release(_) => (
            "timer",
            HELD,
            "",
            concat!(
                "UPDATE tickwheel.timer t SET due = ",
                goes!("o"),
                " FROM own o WHERE t.ctid = o.at RETURNING t.slot, t.due, t.id"
            ),
            HINTED,
        ),
        // Of two with one key the second stays; it waits for who inserts the same.
        Bulk::Requeue(_) => (
            "dead",
            "(id = $4 OR died < $6) AND NOT EXISTS (SELECT FROM tickwheel.timer t
                WHERE t.slot = d.slot AND t.key = d.key)",
            "ORDER BY number",
            "INSERT INTO tickwheel.timer AS t (slot, due, id, key, tag, payload)
            SELECT slot, greatest(tickwheel.clock(), $6), id, key, tag, payload FROM own
            WHERE (SELECT set_config('lock_timeout', $7, true)) IS NOT NULL
            ORDER BY number ON CONFLICT (slot, key) WHERE key IS NOT NULL DO NOTHING
            RETURNING t.slot, t.due, t.id",
            concat!(
                "gone AS (DELETE FROM tickwheel.dead d USING own o JOIN changed c USING (slot, id)
                WHERE d.number = o.number), ",
                hinted!("changed", "")
            ),
        ),
        Bulk::Delete(_) => (
            "dead",
            "died < $6",
            "ORDER BY number",
            "DELETE FROM tickwheel.dead t USING own o WHERE t.ctid = o.at RETURNING t.slot, t.id",
            UNHINTED,
        ),
    };
    let looked_at = if rows == "dead" { "own" } else { "changed" };
    format!(
        "WITH own AS MATERIALIZED (
            SELECT ctid AS at, * FROM tickwheel.{rows} d WHERE {MEANT} AND {is_meant}
            {order} LIMIT $5 FOR UPDATE SKIP LOCKED),
        changed AS ({change}),
        {also}
        SELECT (SELECT count(*) FROM changed), slot, id FROM (SELECT) one LEFT JOIN (
            SELECT slot, id FROM tickwheel.{rows} d WHERE {MEANT} AND {is_meant}
            AND (slot, id) NOT IN (SELECT slot, id FROM {looked_at}) {order} LIMIT 1) more ON true
        WHERE (SELECT count(*) FROM told) >= 0"
    )
}

/// Pauses a scope, or ends that, and keeps in mind where timers lie that were put off: they are let
/// go afterwards. Who claims meanwhile waits, and sees it.
const PAUSE: &str = "WITH gone AS (
        DELETE FROM tickwheel.pause WHERE namespace = $1 AND tag IS DISTINCT FROM $2
        AND tickwheel.clock() >= ALL (moments)),
    changed AS (
        UPDATE tickwheel.pause SET until = $3, moments = moments || $3
        WHERE namespace = $1 AND tag IS NOT DISTINCT FROM $2 RETURNING 1)
    INSERT INTO tickwheel.pause SELECT $1, $2, $3, ARRAY[$3]
    WHERE NOT EXISTS (SELECT FROM changed) AND $3 > 0";

pub(super) async fn pause(
    link: &Link,
    namespace: i32,
    tag: Option<String>,
    until: Option<StoreTime>,
) -> Result<(), Error> {
    let until = until.map_or(0, StoreTime::as_micros);
    link.ask(PAUSE, &[&namespace, &tag, &until]).await.map(drop)
}

pub(super) async fn pauses(link: &Link, namespace: i32) -> Result<Vec<Paused>, Error> {
    let sql = "SELECT tag, max(until) FROM tickwheel.pause
        WHERE namespace = $1 AND until > tickwheel.clock() GROUP BY tag";
    let pause = |row: &Row| Paused {
        tag: row.get(0),
        until: StoreTime::from_micros(row.get(1)),
    };
    let rows = link.ask(sql, &[&namespace]).await?;
    Ok(rows.iter().map(pause).collect())
}

pub(super) async fn step(
    link: &Link,
    [first, last]: Range,
    scope: Scope,
    bulk: Bulk,
    limit: u32,
) -> Result<Step, Error> {
    let (to, from) = bulk.bounds();
    let Scope { tag, id } = scope;
    let (limit, to, slot) = (i64::from(limit), to.as_micros(), slot(from.0));
    let params: [&dyn Param; 9] = [
        &first, &last, &tag, &id, &limit, &to, &LOCKED, &slot, &from.1,
    ];
    let rows = match link.ask(&statement(bulk), &params).await {
        Err(error) if is_locked(&error) => {
            return Ok(Step {
                count: 0,
                more: Some(from),
            });
        }
        rows => rows?,
    };
    let step = |row: &Row| {
        let more = row
            .get::<_, Option<i32>>(1)
            .map(|slot| (slot.unsigned_abs(), row.get(2)));
        Step {
            count: row.get::<_, i64>(0).unsigned_abs(),
            more,
        }
    };
    rows.first()
        .map(step)
        .ok_or_else(|| Error::uncertain("no row"))
}
