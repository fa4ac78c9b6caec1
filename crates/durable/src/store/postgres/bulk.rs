//! The statements that change many timers, and pauses.

use crate::entry::{Error, Paused};
use crate::store::postgres::link::{Ask, Param, field, is_locked, is_too_long, one, place, time};
use crate::store::postgres::timers::LOCKED;
use crate::store::{Bulk, Name, Step};
use crate::when::{Moment, StoreTime, micros};
use tokio_postgres::Row;

/// Timers of a tag that no handler has, by the index of tags.
const TAGGED: &str = "tag = $2 AND space || '' = $1 AND died IS NULL
    AND CASE WHEN claim > 0 THEN next IS NOT NULL ELSE NOT cancelled END";
/// Timers that a pause has put off: all of them, and those of a tag, each by an index of its own.
/// There may be millions of other tags. The two conditions imply nothing of each other for the
/// planner.
const HELD: &str = "held_from IS NOT NULL AND space || '' = $1 AND claim <= 0 AND $2 IS NULL";
const HELD_TAGGED: &str =
    "coalesce(held_from, -1) >= 0 AND tag || '' = $2 AND space || '' = $1 AND claim <= 0";
/// Dead timers of a tag, by the index of tags; one dead timer and all of them, by the primary key.
/// A column inside of `coalesce` fits no index: so the planner does not take that of deaths.
const DEAD_TAGGED: &str =
    "tag = $2 AND space || '' = $1 AND coalesce(died, -1) >= 0 AND name > 'd'";
const ONE_DEAD: &str = "space = $1 AND name = $2 AND coalesce(died, -1) >= 0";
const DEAD: &str =
    "space = $1 AND $2 IS NULL AND coalesce(died, -1) >= 0 AND name > 'd' AND name < 'e'";

/// Each change reads the locked rows from `own`, and gives `changed`: their due times and ids.
const CANCEL: &str = "gone AS (
        DELETE FROM tickwheel.timer t
        USING unnest(ARRAY(SELECT name FROM own WHERE claim <= 0)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.name),
    marked AS (
        UPDATE tickwheel.timer t SET next = NULL, payload = '', tag = NULL, planned = NULL,
            expires = NULL, waits_until = NULL
        FROM unnest(ARRAY(SELECT name FROM own WHERE claim > 0)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.name),
    changed AS (
        SELECT NULL::bigint AS due, NULL::bigint AS id FROM gone
        UNION ALL SELECT NULL, NULL FROM marked)";
const TOUCH: &str = "changed AS (
        UPDATE tickwheel.timer t SET due = CASE WHEN t.claim > 0 THEN t.due ELSE m.moment END,
            next = CASE WHEN t.claim > 0 THEN m.moment END,
            planned = nullif($7, m.moment), held_from = NULL
        FROM (SELECT least(greatest($5, now + $6), 100000000000000000) AS moment FROM c) m,
            unnest(ARRAY(SELECT name FROM own)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name
        RETURNING CASE WHEN t.claim <= 0 THEN t.due END AS due, t.id)";
const RELEASE: &str = "changed AS (
        UPDATE tickwheel.timer t SET due = greatest(t.held_from, c.now), held_from = NULL,
            planned = coalesce(t.planned, t.held_from)
        FROM c, unnest(ARRAY(SELECT name FROM own)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.due, t.id)";
/// The first of several dead timers of a key comes back, unless the key has a timer. Keys with
/// timers are left out first: `ON CONFLICT` would wait for a transaction that has such a timer
/// locked.
const REQUEUE: &str = "made AS (
        INSERT INTO tickwheel.timer AS t (space, name, due, id, claim, payload, tag, expires)
        SELECT $1, d.former, c.now, d.id, d.claim, d.payload, d.tag, d.expires
        FROM c, unnest(ARRAY(SELECT name FROM own)) AS o(name)
        JOIN tickwheel.timer d ON d.space = $1 AND d.name = o.name
        WHERE set_config('lock_timeout', $8, true) IS NOT NULL AND (
            SELECT true FROM tickwheel.timer f WHERE f.space = $1 AND f.name = d.former) IS NULL
        ORDER BY d.name ON CONFLICT (space, name) DO NOTHING RETURNING t.due, t.id),
    changed AS (
        DELETE FROM tickwheel.timer t USING (
            SELECT m.due, m.id, 'd' || lpad(to_hex(m.id), 16, '0') AS name
            FROM unnest(ARRAY(SELECT due FROM made ORDER BY id),
                ARRAY(SELECT id FROM made ORDER BY id)) AS m(due, id)) m
        WHERE t.space = $1 AND t.name = m.name RETURNING m.due, m.id)";
const DELETE: &str = "gone AS (
        DELETE FROM tickwheel.timer t USING unnest(ARRAY(SELECT name FROM own)) AS o(name)
        WHERE t.space = $1 AND t.name = o.name RETURNING t.name),
    changed AS (SELECT NULL::bigint AS due, NULL::bigint AS id FROM gone)";

/// Returns a statement that changes at most `$4` rows after the name `$3`. `seen` has these rows,
/// and `own` those of them that no other transaction has locked. A commit that notifies waits for
/// others that do, beyond the `lock_timeout` of a requeue.
fn statement(which: &str, change: &str) -> String {
    format!(
        "WITH c AS MATERIALIZED (
            SELECT CASE WHEN pg_current_xact_id() IS NOT NULL THEN tickwheel.clock() END AS now),
        seen AS MATERIALIZED (
            SELECT name FROM tickwheel.timer
            WHERE {which} AND name > $3 AND (SELECT now FROM c) IS NOT NULL
            ORDER BY name LIMIT $4),
        own AS MATERIALIZED (
            SELECT t.name, t.claim FROM unnest(ARRAY(SELECT name FROM seen)) AS s(name)
            CROSS JOIN LATERAL (
                SELECT name, claim FROM tickwheel.timer
                WHERE space = $1 AND name = s.name AND {which} LIMIT 1
                FOR UPDATE SKIP LOCKED) t),
        {change},
        first AS MATERIALIZED (
            SELECT due, id FROM changed WHERE due IS NOT NULL ORDER BY due, id LIMIT 1),
        told AS MATERIALIZED (
            SELECT tickwheel.tell($1, due, id), set_config('lock_timeout', '0', true) FROM first)
        SELECT now, (SELECT count(*) FROM changed), (SELECT due FROM first), (SELECT id FROM first),
            (SELECT count(*) FROM seen), (SELECT max(name) FROM seen),
            (SELECT count(*) FROM own) < (SELECT count(*) FROM seen)
        FROM c WHERE (SELECT count(*) FROM told) >= 0"
    )
}

/// Changes the next timers after a name.
pub(super) async fn step(
    at: &impl Ask,
    bulk: &Bulk,
    after: Option<Name>,
    mut limit: u32,
) -> Result<Step, Error> {
    let dead = bulk.tag().map_or(DEAD, |_| DEAD_TAGGED);
    let which = match bulk {
        Bulk::RequeueOne(id) => Some(Name::of_dead(*id).0),
        _ => bulk.tag().map(str::to_owned),
    };
    let sql = match bulk {
        Bulk::Cancel(_) => statement(TAGGED, CANCEL),
        Bulk::Touch(..) => statement(TAGGED, TOUCH),
        Bulk::Release(None) => statement(HELD, RELEASE),
        Bulk::Release(Some(_)) => statement(HELD_TAGGED, RELEASE),
        Bulk::Requeue(_) => statement(dead, REQUEUE),
        Bulk::RequeueOne(_) => statement(ONE_DEAD, REQUEUE),
        Bulk::Delete(_) => statement(dead, DELETE),
    };
    let moment = match bulk {
        Bulk::Touch(_, moment) => *moment,
        _ => Moment::default(),
    };
    let after = after.map_or(String::new(), |after| after.0);
    let rows = loop {
        let params: [&dyn Param; 7] = [
            &which,
            &after,
            &i64::from(limit),
            &moment.at.as_micros(),
            &micros(moment.after),
            &moment.planned.map(StoreTime::as_micros),
            &LOCKED,
        ];
        match at.ask(&sql, &params).await {
            // Another transaction inserts one of the keys, or the payloads are too long for one
            // statement: half as many rows may do.
            Err(error) if (is_locked(&error) || is_too_long(&error)) && limit > 1 => limit /= 2,
            rows => break rows?,
        }
    };
    let row = one(&rows)?;
    let is_full = field::<i64>(row, 4)? >= i64::from(limit);
    let last: Option<String> = field(row, 5)?;
    Ok(Step {
        now: time(row, 0)?,
        count: field::<i64>(row, 1)?.unsigned_abs(),
        first: place(row, 2)?,
        locked: field(row, 6)?,
        more: last.filter(|_| is_full).map(Name),
    })
}

/// Returns the name of a pause in the table.
fn scope(tag: Option<&str>) -> String {
    tag.map_or(String::new(), |tag| format!("t{tag}"))
}

/// Sets a pause, or ends it. Deletes those that are over: each claim reads all pauses.
pub(super) async fn pause(
    at: &impl Ask,
    tag: Option<&str>,
    until: Option<Moment>,
) -> Result<(), Error> {
    let scope = scope(tag);
    let Some(until) = until else {
        let sql = "DELETE FROM tickwheel.pause
            WHERE space = $1 AND (scope = $2 OR until <= tickwheel.clock())";
        return at.ask(sql, &[&scope]).await.map(drop);
    };
    let sql = "WITH over AS (
            DELETE FROM tickwheel.pause
            WHERE space = $1 AND scope <> $2 AND until <= tickwheel.clock())
        INSERT INTO tickwheel.pause (space, scope, until)
        VALUES ($1, $2, least(greatest($3, tickwheel.clock() + $4), 100000000000000000))
        ON CONFLICT (space, scope) DO UPDATE SET until = excluded.until";
    let moment = until.at.as_micros();
    let after = micros(until.after);
    at.ask(sql, &[&scope, &moment, &after]).await.map(drop)
}

/// Lists the pauses that are not over.
pub(super) async fn pauses(at: &impl Ask) -> Result<Vec<Paused>, Error> {
    let sql = "SELECT scope, until FROM tickwheel.pause
        WHERE space = $1 AND until > tickwheel.clock()";
    let pause = |row: &Row| {
        let scope: &str = field(row, 0)?;
        Ok(Paused {
            tag: scope.strip_prefix('t').map(str::to_owned),
            until: time(row, 1)?,
        })
    };
    let rows = at.ask(sql, &[]).await?;
    rows.iter().map(pause).collect()
}
