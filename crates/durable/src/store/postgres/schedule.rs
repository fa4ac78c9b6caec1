//! The statement that schedules, and timers inside a transaction of the user's own.

use crate::durable::Durable;
use crate::entry::{Due, Entry, Error, Scheduled};
use crate::store::postgres::link::{Columns, Link, Param, explain, is_locked, slot};
use crate::store::postgres::{Postgres, told};
use crate::store::{Claim, NewRow, NodeId, Place};
use std::collections::HashMap;
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

/// Where a slot of the batch is not served here it does nothing. Keys that somebody has locked are
/// left out, unless it waits for them as a part of a user's transaction: then it waits in their
/// order, so no two do crosswise. A key that is being inserted is seen by nobody and cannot be left
/// out; all of it fails after [`LOCKED`]. A row that was there has been locked before it was
/// changed, which its `xmax` tells.
const SCHEDULE: &str = concat!(
    "WITH own AS MATERIALIZED (
        SELECT slot, key FROM unnest($1, $4) AS i(slot, key)
        JOIN tickwheel.timer t USING (slot, key)
        WHERE $8 IS NOT NULL FOR UPDATE OF t SKIP LOCKED),
    locked AS MATERIALIZED (
        SELECT i.id FROM unnest($1, $3, $4) AS i(slot, id, key)
        JOIN tickwheel.timer t USING (slot, key)
        WHERE $8 IS NOT NULL AND NOT EXISTS (
            SELECT FROM own o WHERE o.slot = i.slot AND o.key = i.key)),
    written AS (
        INSERT INTO tickwheel.timer AS t (slot, due, id, key, tag, payload)
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6) AS i(slot, due, id, key, tag, payload)
        WHERE NOT EXISTS (
            SELECT FROM unnest($1) g(slot) JOIN tickwheel.slot s USING (slot) WHERE s.served <> 0)
        AND id NOT IN (SELECT id FROM locked)
        AND ($8 IS NULL OR (SELECT set_config('lock_timeout', $8, true)) IS NOT NULL)
        ORDER BY slot, key
        ON CONFLICT (slot, key) WHERE key IS NOT NULL DO UPDATE
        SET due = excluded.due, id = excluded.id, tag = excluded.tag, payload = excluded.payload,
            claim = 0, attempts = 0, crashes = 0, cancelled = false
        RETURNING t.slot, t.due, t.id, t.xmax <> 0 AS replaced),
    hinted AS (
        INSERT INTO tickwheel.inbox (node, written, slot, due, id)
        SELECT m.node, tickwheel.clock(), w.slot, w.due, w.id
        FROM written w JOIN tickwheel.slot s USING (slot)
        JOIN tickwheel.member m ON m.node = s.owner
        WHERE w.due < m.horizon AND m.node <> $7), ",
    told!("written"),
    " SELECT id, replaced FROM written WHERE (SELECT count(*) FROM told) >= 0
    UNION ALL SELECT id, NULL FROM locked"
);

/// How long a statement waits for the transaction of one who inserts the same key: as commits take.
pub(super) const LOCKED: &str = "10ms";

/// The columns of rows to be scheduled, who knows of them, and how long to wait for a lock.
struct Rows<'a> {
    slots: Vec<i32>,
    dues: Vec<i64>,
    ids: Vec<i64>,
    keys: Vec<Option<&'a str>>,
    tags: Vec<Option<&'a str>>,
    payloads: Vec<&'a [u8]>,
    node: i64,
    patience: Option<&'static str>,
}

impl<'a> Rows<'a> {
    fn new(node: NodeId, rows: &'a [NewRow], patience: Option<&'static str>) -> Self {
        Rows {
            slots: rows.iter().map(|row| slot(row.place.slot)).collect(),
            dues: rows.iter().map(|row| row.place.due.as_micros()).collect(),
            ids: rows.iter().map(|row| row.place.id).collect(),
            keys: rows.iter().map(|row| row.key.as_deref()).collect(),
            tags: rows.iter().map(|row| row.tag.as_deref()).collect(),
            payloads: rows.iter().map(|row| row.payload.as_slice()).collect(),
            node: node.0,
            patience,
        }
    }

    fn params(&self) -> [Param<'_>; 8] {
        [
            (&self.slots, Type::INT4_ARRAY),
            (&self.dues, Type::INT8_ARRAY),
            (&self.ids, Type::INT8_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.tags, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.node, Type::INT8),
            (&self.patience, Type::TEXT),
        ]
    }

    fn answers(&self, written: &[Row]) -> Result<Vec<Option<Scheduled>>, Error> {
        if written.len() < self.ids.len() {
            return Err(Error::Moved);
        }
        let answer = |row: &Row| {
            let answer = |replaced| if replaced { Scheduled::Replaced } else { Scheduled::New };
            (row.get(0), row.get::<_, Option<bool>>(1).map(answer))
        };
        let answers: HashMap<i64, Option<Scheduled>> = written.iter().map(answer).collect();
        Ok(self.ids.iter().map(|id| answers.get(id).copied().flatten()).collect())
    }
}

/// Schedules rows, each half of them alone where one of them has all wait.
pub(super) async fn schedule(
    link: &Link,
    node: NodeId,
    rows: Vec<NewRow>,
) -> Result<Vec<Option<Scheduled>>, Error> {
    let mut answers = Vec::with_capacity(rows.len());
    let mut parts = vec![rows];
    while let Some(mut part) = parts.pop() {
        let rows = Rows::new(node, &part, Some(LOCKED));
        let written = link.query(SCHEDULE, &rows.params()).await;
        match written.and_then(|written| rows.answers(&written)) {
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

/// Waits for a row that somebody has locked: only then it is known whose it is.
const DONE: &str = "DELETE FROM tickwheel.timer t
    USING unnest($1, $2, $3, $4) AS i(slot, due, id, epoch)
    WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id AND t.claim = i.epoch
    RETURNING t.id";

impl Durable<Postgres> {
    /// Schedules a timer inside your transaction: it exists if and only if that commits, and not
    /// before. The transaction is one on the same database.
    ///
    /// One that is due before the commit fires soon after it; where the transaction took more than
    /// seconds, up to 40 s after it, and more than ten minutes, up to ten minutes.
    ///
    /// The transaction may be of any isolation level: whether the timer's slot is served here is
    /// looked up on a connection of the node's own, which sees what has
    /// [moved](crate::Sharded::move_slots) since the transaction began. Takes three round trips.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::PayloadTooLong`]; [`Error::Moved`]: nothing was scheduled; what
    /// the database says, as [`Error::Unavailable`]: roll the transaction back.
    pub async fn schedule_in(
        &self,
        transaction: &Transaction<'_>,
        entry: Entry,
    ) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        // With the lock of one who writes, no slot is closed until the transaction ends. But its
        // own look may be at the past, in which a slot that has moved since is served here.
        let lock = "LOCK TABLE tickwheel.timer IN ROW EXCLUSIVE MODE";
        transaction.batch_execute(lock).await.map_err(explain)?;
        if !self.store().serves(row.place.slot).await? {
            return Err(Error::Moved);
        }
        // Nobody knows of it before the commit: its owner is told by it, this node as well.
        let rows = [row];
        let row = Rows::new(NodeId(0), &rows, None);
        let written = transaction.query_typed(SCHEDULE, &row.params()).await.map_err(explain)?;
        Ok(row.answers(&written)?.pop().flatten().unwrap_or(Scheduled::New))
    }
}

impl Due {
    /// Acknowledges a timer inside your transaction, together with its effect: both are committed,
    /// or neither. Answer [`Outcome::Done`](crate::Outcome::Done) after the commit, and
    /// [`RetryAt`](crate::Outcome::RetryAt) if it failed.
    ///
    /// Until the transaction ends nobody else can run the timer to its end: so its effect happens
    /// once.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the timer is another's by now: roll back. What the database says, as
    /// [`Error::Unavailable`].
    pub async fn ack_in(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let mut claim = Columns::default();
        let place = Place { due: self.at, slot: self.slot, id: self.id };
        claim.push(&Claim { place, epoch: self.token.epoch });
        let deleted = transaction.query_typed(DONE, &claim.params()).await.map_err(explain)?;
        if deleted.is_empty() { Err(Error::Fenced) } else { Ok(()) }
    }
}
