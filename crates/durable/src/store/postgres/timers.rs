//! The statements by which users write and look at timers.

use crate::answer::{Cancelled, DeadTimer, Pending, Scheduled, Touched};
use crate::error::Error;
use crate::store::postgres::columns::{Keys, name, slot};
use crate::store::postgres::link::{Link, Param};
use crate::store::postgres::schema::SLOTS;
use crate::store::{KeyName, NewRow, NodeId};
use crate::time::StoreTime;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// In the order of keys: two batches with the same keys wait for one another, and never crosswise.
/// Does nothing where a slot of the batch is not served here. A row that was there has been locked
/// before it was changed, which its `xmax` tells.
pub(super) const SCHEDULE: &str = "WITH written AS (
        INSERT INTO tickwheel.timer AS t (slot, due, id, key, tag, payload)
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6) AS i(slot, due, id, key, tag, payload)
        WHERE NOT EXISTS (
            SELECT FROM unnest($1) g(slot) JOIN tickwheel.slot s USING (slot) WHERE s.served <> 0)
        ORDER BY slot, key
        ON CONFLICT (slot, key) WHERE key IS NOT NULL DO UPDATE
        SET due = excluded.due, id = excluded.id, tag = excluded.tag, payload = excluded.payload,
            claim = 0, attempts = 0, crashes = 0
        RETURNING t.slot, t.due, t.id, t.xmax <> 0 AS replaced),
    hinted AS (
        INSERT INTO tickwheel.inbox (node, written, slot, due, id)
        SELECT m.node, tickwheel.clock(), w.slot, w.due, w.id
        FROM written w JOIN tickwheel.slot s USING (slot)
        JOIN tickwheel.member m ON m.node = s.owner
        WHERE w.due < m.horizon AND m.node <> $7)
    SELECT id, replaced FROM written";

/// The columns of rows to be scheduled, and who knows of them.
pub(super) struct Rows {
    slots: Vec<i32>,
    dues: Vec<i64>,
    ids: Vec<i64>,
    keys: Vec<Option<String>>,
    tags: Vec<Option<String>>,
    payloads: Vec<Vec<u8>>,
    node: i64,
}

impl Rows {
    pub(super) fn new(node: NodeId, rows: Vec<NewRow>) -> Self {
        let slots = rows.iter().map(|row| slot(row.place.slot)).collect();
        let dues = rows.iter().map(|row| row.place.due.as_micros()).collect();
        let ids = rows.iter().map(|row| row.place.id).collect();
        let (mut keys, mut tags, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            keys.push(row.key);
            tags.push(row.tag);
            payloads.push(row.payload);
        }
        Rows { slots, dues, ids, keys, tags, payloads, node: node.0 }
    }

    pub(super) fn params(&self) -> [Param<'_>; 7] {
        [
            (&self.slots, Type::INT4_ARRAY),
            (&self.dues, Type::INT8_ARRAY),
            (&self.ids, Type::INT8_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.tags, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.node, Type::INT8),
        ]
    }

    pub(super) fn answers(&self, written: &[Row]) -> Result<Vec<Scheduled>, Error> {
        if written.len() < self.ids.len() {
            return Err(Error::Moved);
        }
        let replaced = |row: &Row| row.get::<_, bool>(1).then(|| row.get(0));
        let replaced: HashSet<i64> = written.iter().filter_map(replaced).collect();
        let answer = |id| match replaced.contains(id) {
            true => Scheduled::Replaced,
            false => Scheduled::New,
        };
        Ok(self.ids.iter().map(answer).collect())
    }
}

pub(super) async fn cancel(link: &Link, keys: Vec<KeyName>) -> Result<Vec<Cancelled>, Error> {
    let sql = "WITH input AS MATERIALIZED (SELECT * FROM unnest($1, $2) AS i(slot, key)
        WHERE NOT EXISTS (
            SELECT FROM unnest($1) g(slot) JOIN tickwheel.slot s USING (slot) WHERE s.served <> 0)),
        gone AS (DELETE FROM tickwheel.timer t USING input i
            WHERE t.slot = i.slot AND t.key = i.key AND t.claim = 0
            RETURNING t.slot, t.key, t.payload)
        SELECT i.slot, i.key, t.claim, g.payload FROM input i
        LEFT JOIN gone g ON g.slot = i.slot AND g.key = i.key
        LEFT JOIN tickwheel.timer t ON t.slot = i.slot AND t.key = i.key";
    decide(link, sql, keys.into_iter().map(|key| (key, 0)).collect(), |claim, row| {
        match (row.get::<_, Option<Vec<u8>>>(3), claim) {
            (Some(payload), _) => Some(Cancelled::Cancelled(payload)),
            (None, None) => Some(Cancelled::Unknown),
            (None, Some(0)) => None,
            (None, Some(_)) => Some(Cancelled::Running),
        }
    })
    .await
}

pub(super) async fn touch(
    link: &Link,
    keys: Vec<(KeyName, StoreTime)>,
) -> Result<Vec<Touched>, Error> {
    let sql = "WITH input AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3) AS i(slot, key, due)
        WHERE NOT EXISTS (
            SELECT FROM unnest($1) g(slot) JOIN tickwheel.slot s USING (slot) WHERE s.served <> 0)),
        moved AS (UPDATE tickwheel.timer t SET due = i.due FROM input i
            WHERE t.slot = i.slot AND t.key = i.key AND t.claim = 0
            RETURNING t.slot, t.key, t.due, t.id),
        hinted AS (INSERT INTO tickwheel.inbox (node, written, slot, due, id)
            SELECT m.node, tickwheel.clock(), w.slot, w.due, w.id FROM moved w
            JOIN tickwheel.slot s USING (slot) JOIN tickwheel.member m ON m.node = s.owner
            WHERE w.due < m.horizon)
        SELECT i.slot, i.key, t.claim, w.id FROM input i
        LEFT JOIN moved w ON w.slot = i.slot AND w.key = i.key
        LEFT JOIN tickwheel.timer t ON t.slot = i.slot AND t.key = i.key";
    let keys = keys.into_iter().map(|(key, due)| (key, due.as_micros())).collect();
    decide(link, sql, keys, |claim, row| match (row.get::<_, Option<i64>>(3), claim) {
        (Some(_), _) => Some(Touched::Moved),
        (None, None) => Some(Touched::Unknown),
        (None, Some(0)) => None,
        (None, Some(_)) => Some(Touched::Running),
    })
    .await
}

/// Asks until each key has a certain answer. A row that the statement saw unclaimed, and did not
/// get, was changed by another one meanwhile: what that left is for the next look.
async fn decide<A>(
    link: &Link,
    sql: &str,
    keys: Vec<(KeyName, i64)>,
    read: impl Fn(Option<i64>, &Row) -> Option<A>,
) -> Result<Vec<A>, Error> {
    let takes_dues = sql.contains("$3");
    let mut answers = HashMap::new();
    let mut open: Vec<(KeyName, i64)> = keys.clone();
    // In the order of keys, as schedules are.
    open.sort_by(|(a, _), (b, _)| (a.slot, &a.key).cmp(&(b.slot, &b.key)));
    while !open.is_empty() {
        let dues: Vec<i64> = open.iter().map(|(_, due)| *due).collect();
        let names: Keys = open.iter().map(|(name, _)| name).collect();
        let mut params = Vec::from(names.params());
        params.extend(takes_dues.then_some((&dues as _, Type::INT8_ARRAY)));
        let rows = link.query(sql, &params).await?;
        if rows.is_empty() {
            // What was answered for some of the batch meanwhile is lost.
            return Err(match answers.is_empty() {
                true => Error::Moved,
                false => Error::uncertain("slots have moved"),
            });
        }
        for row in rows {
            if let Some(answer) = read(row.get(2), &row) {
                answers.insert(name(&row), answer);
            }
        }
        open.retain(|(name, _)| !answers.contains_key(name));
    }
    Ok(keys.iter().filter_map(|(name, _)| answers.remove(name)).collect())
}

pub(super) async fn get(link: &Link, key: KeyName) -> Result<Option<Pending>, Error> {
    let sql = "SELECT t.due, t.payload, t.attempts, t.claim <> 0, t.id IS NOT NULL
        FROM tickwheel.slot s LEFT JOIN tickwheel.timer t ON t.slot = s.slot AND t.key = $2
        WHERE s.slot = $1 AND s.served = 0";
    let params = [(&slot(key.slot) as _, Type::INT4), (&key.key as _, Type::TEXT)];
    let rows = link.query(sql, &params).await?;
    let tell = |row: &Row| {
        let at = StoreTime::from_micros(row.get(0));
        let attempts = row.get::<_, i32>(2).unsigned_abs();
        Pending { at, payload: row.get(1), attempts, running: row.get(3) }
    };
    let row = rows.first().ok_or(Error::Moved)?;
    Ok(row.get::<_, bool>(4).then(|| tell(row)))
}

pub(super) async fn histogram(
    link: &Link,
    first: u32,
    from: StoreTime,
    width: Duration,
    bars: u32,
) -> Result<Vec<u64>, Error> {
    let sql = "SELECT (t.due - $3) / $4, count(*) FROM generate_series($1, $2) AS s(slot)
        CROSS JOIN LATERAL (SELECT due FROM tickwheel.timer
            WHERE slot = s.slot AND due >= $3 AND due < $5) t GROUP BY 1";
    let width = i64::try_from(width.as_micros()).unwrap_or(i64::MAX).max(1);
    let to = from.as_micros().saturating_add(width.saturating_mul(i64::from(bars)));
    let params = [
        (&slot(first) as _, Type::INT4),
        (&slot(first + SLOTS - 1) as _, Type::INT4),
        (&from.as_micros() as _, Type::INT8),
        (&width as _, Type::INT8),
        (&to as _, Type::INT8),
    ];
    let mut counts = vec![0; bars as usize];
    for row in link.query(sql, &params).await? {
        let bar = usize::try_from(row.get::<_, i64>(0)).ok();
        if let Some(count) = bar.and_then(|bar| counts.get_mut(bar)) {
            *count = row.get::<_, i64>(1).unsigned_abs();
        }
    }
    Ok(counts)
}

pub(super) async fn dead(link: &Link, first: u32, limit: u32) -> Result<Vec<DeadTimer>, Error> {
    let sql = "SELECT id, key, payload, attempts, reason FROM tickwheel.dead
        WHERE slot BETWEEN $1 AND $2 ORDER BY number LIMIT $3";
    let params = [
        (&slot(first) as _, Type::INT4),
        (&slot(first + SLOTS - 1) as _, Type::INT4),
        (&i64::from(limit) as _, Type::INT8),
    ];
    let tell = |row: &Row| {
        let attempts = row.get::<_, i32>(3).unsigned_abs();
        let (id, key, payload) = (row.get(0), row.get(1), row.get(2));
        DeadTimer { id, key, payload, attempts, reason: row.get(4) }
    };
    Ok(link.query(sql, &params).await?.iter().map(tell).collect())
}

pub(super) async fn requeue(link: &Link, first: u32, id: i64) -> Result<bool, Error> {
    let sql = "WITH risen AS (DELETE FROM tickwheel.dead d
            WHERE d.id = $1 AND d.slot BETWEEN $2 AND $3
            AND d.slot IN (SELECT slot FROM tickwheel.slot WHERE served = 0) AND NOT EXISTS (
                SELECT FROM tickwheel.timer t WHERE t.slot = d.slot AND t.key = d.key)
            RETURNING *),
        written AS (INSERT INTO tickwheel.timer (slot, due, id, key, tag, payload)
            SELECT slot, tickwheel.clock(), id, key, tag, payload FROM risen
            RETURNING slot, due, id),
        hinted AS (INSERT INTO tickwheel.inbox (node, written, slot, due, id)
            SELECT s.owner, tickwheel.clock(), w.slot, w.due, w.id FROM written w
            JOIN tickwheel.slot s USING (slot) WHERE s.owner IS NOT NULL)
        SELECT id FROM written";
    let params = [
        (&id as _, Type::INT8),
        (&slot(first) as _, Type::INT4),
        (&slot(first + SLOTS - 1) as _, Type::INT4),
    ];
    Ok(!link.query(sql, &params).await?.is_empty())
}
