//! The statements by which users cancel, move and look at timers.

use crate::entry::{Cancelled, DeadTimer, Error, Listed, Pending, Search, Touched};
use crate::store::postgres::link::{Ask, Link, Param, count, names, place, slot};
use crate::store::postgres::{Range, hinted, timer, told};
use crate::store::{Bars, KeyName, Place, StoreTime};
use std::collections::HashMap;
use tokio_postgres::Row;

/// What is joined to what a statement asks for: each row that nobody has locked, and what became of
/// it. `None` for one that was changed or is locked: what that leaves is for the next look.
const OWN: &str = concat!(
    "found AS MATERIALIZED (SELECT i.slot, i.key, t.at FROM input i ",
    timer!("slot", "key"),
    "), own AS MATERIALIZED (
        SELECT f.at, slot, key, t.claim FROM found f JOIN tickwheel.timer t USING (slot, key)
        WHERE t.ctid = f.at FOR UPDATE OF t SKIP LOCKED)"
);
const SEEN: &str = "LEFT JOIN own o USING (slot, key) LEFT JOIN found f USING (slot, key)";

pub(super) async fn cancel(
    at: &impl Ask,
    keys: Vec<KeyName>,
) -> Result<Vec<Option<Cancelled>>, Error> {
    let sql = format!(
        "WITH input AS MATERIALIZED (SELECT * FROM unnest($1, $2) AS i(slot, key)), {OWN},
        gone AS (DELETE FROM tickwheel.timer t USING own o WHERE t.ctid = o.at AND t.claim = 0
            RETURNING t.slot, t.key, t.payload),
        marked AS (UPDATE tickwheel.timer t SET cancelled = true FROM own o
            WHERE t.ctid = o.at AND t.claim <> 0)
        SELECT slot, key, o.claim <> 0, f.at IS NOT NULL, g.payload
        FROM input LEFT JOIN gone g USING (slot, key) {SEEN}"
    );
    let (slots, names) = names(&keys);
    let rows = at.ask(&sql, &[&slots, &names]).await?;
    Ok(decide(&keys, &rows, |row| {
        match row.get::<_, Option<Vec<u8>>>(4) {
            Some(payload) => Some(Cancelled::Cancelled(payload)),
            None => missed(row, Cancelled::Running, Cancelled::Unknown),
        }
    }))
}

pub(super) async fn touch(
    at: &impl Ask,
    keys: Vec<(KeyName, StoreTime)>,
) -> Result<Vec<Option<Touched>>, Error> {
    let sql = format!(
        "WITH input AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3) AS i(slot, key, due)), {OWN},
        moved AS (UPDATE tickwheel.timer t SET due = i.due, planned = NULL
            FROM input i JOIN own o USING (slot, key)
            WHERE t.ctid = o.at AND t.claim = 0 RETURNING t.slot, t.key, t.due, t.id),
        {}
        SELECT slot, key, o.claim <> 0, f.at IS NOT NULL, w.id IS NOT NULL
        FROM input LEFT JOIN moved w USING (slot, key) {SEEN}
        WHERE (SELECT count(*) FROM told) >= 0",
        hinted!("moved", "")
    );
    let (keys, dues): (Vec<KeyName>, Vec<StoreTime>) = keys.into_iter().unzip();
    let dues: Vec<i64> = dues.into_iter().map(StoreTime::as_micros).collect();
    let (slots, names) = names(&keys);
    let rows = at.ask(&sql, &[&slots, &names, &dues]).await?;
    Ok(decide(&keys, &rows, |row| match row.get(4) {
        true => Some(Touched::Moved),
        false => missed(row, Touched::Running, Touched::Unknown),
    }))
}

/// Answers for a row that was not changed: it is claimed, there is none, or it is not known.
fn missed<A>(row: &Row, running: A, unknown: A) -> Option<A> {
    match (row.get::<_, Option<bool>>(2), row.get(3)) {
        (Some(true), _) => Some(running),
        (None, false) => Some(unknown),
        _ => None,
    }
}

/// Answers for each key, in order.
fn decide<A>(keys: &[KeyName], rows: &[Row], read: impl Fn(&Row) -> Option<A>) -> Vec<Option<A>> {
    let name = |row: &Row| KeyName {
        slot: count(row, 0),
        key: row.get(1),
    };
    let mut answers: HashMap<_, _> = rows.iter().map(|row| (name(row), read(row))).collect();
    keys.iter()
        .map(|key| answers.remove(key).flatten())
        .collect()
}

pub(super) async fn get(link: &Link, key: KeyName) -> Result<Option<Pending>, Error> {
    let sql = "SELECT due, payload, attempts, claim <> 0 FROM tickwheel.timer
        WHERE slot = $1 AND key = $2";
    let rows = link.ask(sql, &[&slot(key.slot), &key.key]).await?;
    Ok(rows.first().map(|row| Pending {
        at: StoreTime::from_micros(row.get(0)),
        payload: row.get(1),
        attempts: count(row, 2),
        running: row.get(3),
    }))
}

/// What is meant by a search, but for where it begins.
const MEANT: &str = "($6 IS NULL OR due < $6) AND ($7 IS NULL OR tag = $7)
    AND ($8 IS NULL OR starts_with(key, $8)) AND ($9 IS NULL OR (claim <> 0) = $9)";

pub(super) async fn list(link: &Link, range: Range, search: Search) -> Result<Vec<Listed>, Error> {
    let listed = |row: &Row| {
        let state = (count(row, 5), row.get(6));
        Listed::new(place(row, 0), row.get(3), row.get(4), row.get(7), state)
    };
    // Two walks in the primary key, slot by slot. The first few of each slot say until when those
    // of the page are due, at most: few more are read with their payloads.
    let walk = format!(
        "FROM generate_series($1, $2) AS s(slot) CROSS JOIN LATERAL (
            SELECT * FROM tickwheel.timer WHERE slot = s.slot AND due >= $3
            AND (due, slot, id) > ($3, $4, $5) AND {MEANT}"
    );
    let never = i64::MAX;
    let sql = format!(
        "WITH latest AS MATERIALIZED (
            SELECT due {walk} ORDER BY due, id LIMIT $10 / 256 + 1) t
            ORDER BY due OFFSET greatest($10 - 1, 0) LIMIT 1)
        SELECT t.slot, due, id, key, tag, attempts, claim <> 0, payload
            {walk} AND due <= (SELECT coalesce(max(due), {never}) FROM latest)
            ORDER BY due, id LIMIT $10) t
        ORDER BY due, slot, id LIMIT $10"
    );
    page(link, range, search, &sql, listed).await
}

pub(super) async fn dead(
    link: &Link,
    range: Range,
    search: Search,
) -> Result<Vec<DeadTimer>, Error> {
    let tell = |row: &Row| {
        let (
            Place {
                due: died,
                slot,
                id,
            },
            key,
            tag,
        ) = (place(row, 0), row.get(3), row.get(4));
        let (attempts, payload, reason) = (count(row, 5), row.get(6), row.get(7));
        DeadTimer {
            id,
            key,
            payload,
            tag,
            attempts,
            reason,
            died,
            slot,
        }
    };
    // An index has their order. By their slots as well, the server would expect too few for it.
    let sql = format!(
        "SELECT slot, due, id, key, tag, attempts, payload, reason
        FROM (SELECT *, died AS due, 0 AS claim FROM tickwheel.dead
            WHERE slot / 1024 = $1 / 1024) d
        WHERE (due, slot, id) > ($3, $4, $5) AND {MEANT}
        ORDER BY due, slot, id LIMIT $10"
    );
    page(link, range, search, &sql, tell).await
}

/// Returns what a statement finds, by the order of their places.
async fn page<A>(
    link: &Link,
    [first, last]: Range,
    search: Search,
    sql: &str,
    tell: impl Fn(&Row) -> A,
) -> Result<Vec<A>, Error> {
    let Search {
        tag,
        prefix,
        running,
        after,
        before,
        limit,
    } = search;
    let (due, slot, before) = (
        after.due.as_micros(),
        slot(after.slot),
        before.map(StoreTime::as_micros),
    );
    let limit = i64::from(limit);
    let params: [&dyn Param; 10] = [
        &first, &last, &due, &slot, &after.id, &before, &tag, &prefix, &running, &limit,
    ];
    Ok(link.ask(sql, &params).await?.iter().map(tell).collect())
}

pub(super) async fn histogram(
    link: &Link,
    [first, last]: Range,
    bars: Bars,
) -> Result<Vec<u64>, Error> {
    let (from, width, to) = bars.micros();
    let sql = "SELECT (t.due - $3) / $4, count(*) FROM generate_series($1, $2) AS s(slot)
        CROSS JOIN LATERAL (SELECT due FROM tickwheel.timer
            WHERE slot = s.slot AND due >= $3 AND due < $5) t GROUP BY 1";
    let rows = link.ask(sql, &[&first, &last, &from, &width, &to]).await?;
    Ok(bars.counts(rows.iter().map(|row| (row.get(0), row.get(1)))))
}
