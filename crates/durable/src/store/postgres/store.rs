//! What a node asks: leases and slots, and the window.
//!
//! Claims, and what users ask, stand in the files beside this one.

use crate::entry::{Cancelled, DeadTimer, Error, Listed, Paused, Pending, Search, Touched};
use crate::store::postgres::link::{Ask, Param, count, place, slot};
use crate::store::postgres::{
    Listener, Postgres, SLOTS, bulk, claims, is_missing, schedule, timers,
};
use crate::store::{
    Ack, Bars, Bulk, Claim, Claims, First, Hints, KeyName, NewRow, NodeId, Owned, Page, Place,
    Scope, Sealed, Step, Store, StoreTime, Survey, Written, micros,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_postgres::Row;

/// Striking a member off locks its row: a renewal that is being committed is waited for, and seen.
/// A lease that ends too far away was given by a clock that has been set back since.
const STRIKE_OFF: &str = "WITH gone AS (
        DELETE FROM tickwheel.member WHERE namespace = $1
        AND (lease_until <= tickwheel.clock() OR lease_until > tickwheel.clock() + 2 * lease)
        RETURNING node)
    DELETE FROM tickwheel.inbox WHERE node IN (SELECT node FROM gone)";

/// How long a node is told of timers that rests and does not say so again.
const RESTS: Duration = Duration::from_secs(3_600);

/// How far back hints are looked for. What lies further back was taken, and its rows are dead; or
/// was committed late, and is left to a sweep.
const RECENT: Duration = Duration::from_secs(5);

impl Sealed for Postgres {}

impl Store for Postgres {
    fn slots(&self) -> u32 {
        SLOTS
    }

    fn slot(&self, hash: u64) -> u32 {
        self.first + (hash % u64::from(SLOTS)) as u32
    }

    fn schema(&self) -> Option<Arc<str>> {
        self.connector.schema.0.clone()
    }

    async fn connect(&self) -> Result<(), Error> {
        self.connect_all().await
    }

    async fn join(&self, node: NodeId, lease: Duration) -> Result<(), Error> {
        // A node that joins again was cut off, or slept, and its connections may be dead: a call on
        // them would wait for its answer as long as any call may.
        let reconnect = || self.own().iter().for_each(|link| link.reconnect());
        if self.joined.swap(true, Ordering::Relaxed) {
            reconnect();
        }
        if let Err(error) = self.connect_own().await {
            reconnect(); // Another node that lacks one may have those.
            return Err(error);
        }
        // Hints that were written after their node had gone.
        let sweep = "DELETE FROM tickwheel.inbox
            WHERE node NOT IN (SELECT node FROM tickwheel.member)";
        self.lease.ask(sweep, &[]).await?;
        let sql = "INSERT INTO tickwheel.member (node, namespace, lease, lease_until)
            VALUES ($1, $2, $3, tickwheel.clock() + $3)";
        self.lease
            .ask(sql, &[&node.0, &self.namespace(), &micros(lease)])
            .await
            .map(drop)
    }

    async fn renew(&self, node: NodeId, lease: Duration) -> Result<bool, Error> {
        let sql = "UPDATE tickwheel.member SET lease_until = tickwheel.clock() + $2
            WHERE node = $1 AND lease_until > tickwheel.clock() RETURNING node";
        // A node that cannot claim is to own nothing: its lease runs out.
        let connected = tokio::time::timeout(lease / 4, self.connect_own());
        connected.await.map_err(Error::unavailable)??;
        // A renewal that takes longer is better asked for again.
        let rows = self
            .lease
            .ask_within(lease / 4, sql, &[&node.0, &micros(lease)])
            .await?;
        Ok(!rows.is_empty())
    }

    async fn survey(&self, node: NodeId) -> Result<Survey, Error> {
        let (namespace, [first, last]) = (self.namespace(), self.range());
        self.load.ask(STRIKE_OFF, &[&namespace]).await?;
        let sql = "SELECT
                (SELECT count(*)::int FROM tickwheel.member WHERE namespace = $1 AND NOT rests),
                (count(*) FILTER (WHERE m.node IS NULL))::int,
                coalesce(array_agg(s.slot) FILTER (WHERE m.node = $2), '{}'),
                coalesce(array_agg(s.epoch) FILTER (WHERE m.node = $2), '{}'),
                count(*)::int,
                (SELECT min(lease_until) - tickwheel.clock() FROM tickwheel.member
                    WHERE namespace = $1 AND node <> $2)
            FROM tickwheel.slot s LEFT JOIN tickwheel.member m ON m.node = s.owner
            WHERE s.slot BETWEEN $3 AND $4";
        let rows = self
            .load
            .ask(sql, &[&namespace, &node.0, &first, &last])
            .await?;
        let survey = |row: &Row| {
            let slots = row.get::<_, Vec<i32>>(2).into_iter().map(i32::unsigned_abs);
            let owned = slots.zip(row.get::<_, Vec<i64>>(3));
            let owned = owned.map(|(slot, epoch)| Owned { slot, epoch }).collect();
            let (live, free, slots) = (count(row, 0), count(row, 1), count(row, 4));
            let next_end = row.get::<_, Option<i64>>(5);
            let next_end = next_end.map(|left| Duration::from_micros(left.max(0).unsigned_abs()));
            Survey {
                live,
                slots,
                owned,
                free,
                next_end,
            }
        };
        let survey = rows.first().map(survey).unwrap_or_default();
        self.check_slots(survey.slots).await?;
        Ok(survey)
    }

    async fn take(&self, node: NodeId, at_most: u32) -> Result<Vec<Owned>, Error> {
        // Nodes that take at once pass over each other's: so each has its own before any has
        // committed.
        let sql = "UPDATE tickwheel.slot s SET owner = $1, epoch = s.epoch + 1
            FROM (SELECT f.slot FROM tickwheel.slot f
                  WHERE f.slot BETWEEN $2 AND $3
                  AND NOT EXISTS (SELECT FROM tickwheel.member m WHERE m.node = f.owner)
                  ORDER BY f.slot LIMIT $4 FOR UPDATE SKIP LOCKED) free
            WHERE s.slot = free.slot AND EXISTS (SELECT FROM tickwheel.member WHERE node = $1)
            RETURNING s.slot, s.epoch";
        let [first, last] = self.range();
        let rows = self
            .load
            .ask(sql, &[&node.0, &first, &last, &i64::from(at_most)])
            .await?;
        let owned = |row: &Row| Owned {
            slot: count(row, 0),
            epoch: row.get(1),
        };
        Ok(rows.iter().map(owned).collect())
    }

    async fn retire(&self, node: NodeId) -> Result<(), Error> {
        let sql = "UPDATE tickwheel.member SET rests = true, horizon = 0 WHERE node = $1";
        self.lease.ask(sql, &[&node.0]).await.map(drop)
    }

    async fn release(&self, node: NodeId, slots: Vec<Owned>) -> Result<(), Error> {
        let sql = "WITH freed AS (
                UPDATE tickwheel.slot s SET owner = NULL FROM unnest($1, $2) AS i(slot, epoch)
                WHERE s.slot = i.slot AND s.epoch = i.epoch AND s.owner = $3 RETURNING s.slot)
            INSERT INTO tickwheel.inbox (node, written, slot, due, id)
            SELECT m.node, tickwheel.clock(), f.slot, 0, 0
            FROM tickwheel.member m, (SELECT min(slot) AS slot FROM freed) f
            WHERE m.namespace = $4 AND NOT m.rests AND m.node <> $3 AND f.slot IS NOT NULL";
        let split = |owned: Owned| (slot(owned.slot), owned.epoch);
        let (slots, epochs): (Vec<i32>, Vec<i64>) = slots.into_iter().map(split).unzip();
        self.load
            .ask(sql, &[&slots, &epochs, &node.0, &self.namespace()])
            .await
            .map(drop)
    }

    async fn leave(&self, node: NodeId) -> Result<(), Error> {
        self.rests_since.store(0, Ordering::Relaxed);
        // Its slots are nobody's as soon as it is no member.
        let sql = "DELETE FROM tickwheel.member WHERE node = $1";
        self.lease.ask(sql, &[&node.0]).await.map(drop)
    }

    async fn rest(&self, node: NodeId, until: StoreTime) -> Result<bool, Error> {
        let hears = self.listen().await?;
        let sql = "INSERT INTO tickwheel.member AS m
                (node, namespace, lease, lease_until, horizon, rests)
            VALUES ($1, $2, $3, tickwheel.clock() + $3, $4, true)
            ON CONFLICT (node) DO UPDATE
            SET horizon = excluded.horizon, lease_until = excluded.lease_until
            RETURNING txid_current()";
        let (namespace, lease) = (self.namespace(), micros(RESTS));
        let rows = self
            .lease
            .ask(sql, &[&node.0, &namespace, &lease, &until.as_micros()])
            .await?;
        if until == StoreTime::MAX {
            let since = rows.first().map_or(0, |row| row.get(0));
            self.rests_since.store(since, Ordering::Relaxed);
        }
        Ok(hears)
    }

    async fn told(&self, _: NodeId) -> Result<(), Error> {
        match &mut *self.listener.lock().await {
            Some(Listener {
                connection,
                hears: Some(true),
            }) => connection
                .noticed
                .changed()
                .await
                .map_err(Error::unavailable),
            _ => std::future::pending().await,
        }
    }

    async fn first(&self) -> Result<First, Error> {
        // A walk to the first row of each slot.
        let sql = "SELECT tickwheel.clock(), txid_snapshot_xmin(txid_current_snapshot()) <= $3,
            (SELECT min(t.due) FROM generate_series($1, $2) AS s(slot) CROSS JOIN LATERAL (
                SELECT due FROM tickwheel.timer WHERE slot = s.slot ORDER BY due LIMIT 1) t),
            (SELECT count(*)::int FROM tickwheel.slot WHERE slot BETWEEN $1 AND $2)";
        let since = self.rests_since.load(Ordering::Relaxed);
        let [first, last] = self.range();
        let rows = self.load.ask(sql, &[&first, &last, &since]).await?;
        let row = rows.first().ok_or_else(|| Error::uncertain("no row"))?;
        self.check_slots(count(row, 3)).await?;
        let due: Option<i64> = row.get(2);
        let due = due.map_or(StoreTime::MAX, StoreTime::from_micros);
        Ok(First {
            due,
            open: row.get(1),
            now: StoreTime::from_micros(row.get(0)),
        })
    }

    async fn publish(&self, node: NodeId, horizon: StoreTime) -> Result<(), Error> {
        let sql = "UPDATE tickwheel.member SET horizon = $2 WHERE node = $1";
        self.load
            .ask(sql, &[&node.0, &horizon.as_micros()])
            .await
            .map(drop)
    }

    async fn hints(&self, node: NodeId) -> Result<Hints, Error> {
        // Relaxed: one task asks at a time, and an older floor only reads more.
        let seen = StoreTime::from_micros(self.seen.load(Ordering::Relaxed));
        let sql = "WITH taken AS (
                DELETE FROM tickwheel.inbox WHERE node = $1 AND written >= $2
                RETURNING slot, due, id)
            SELECT now, slot, due, id FROM tickwheel.clock() AS now LEFT JOIN taken ON true";
        let rows = self
            .load
            .ask(sql, &[&node.0, &seen.minus(RECENT).as_micros()])
            .await?;
        let now = rows
            .first()
            .map_or(seen, |row| StoreTime::from_micros(row.get(0)));
        let taken = rows
            .iter()
            .filter(|row| row.get::<_, Option<i64>>(3).is_some());
        self.seen.store(now.as_micros(), Ordering::Relaxed);
        Ok(Hints {
            places: taken.map(|row| place(row, 1)).collect(),
            now,
        })
    }

    async fn load(&self, page: Page) -> Result<Vec<Place>, Error> {
        let Page {
            slots,
            after,
            before,
            limit,
        } = page;
        // A short walk in the primary key for each slot, from its first moment on.
        let sql = "SELECT t.slot, t.due, t.id FROM unnest($1) AS s(slot) CROSS JOIN LATERAL (
                SELECT slot, due, id FROM tickwheel.timer
                WHERE slot = s.slot AND due >= $2 AND due < $5 AND (due, slot, id) > ($2, $3, $4)
                ORDER BY due, id LIMIT $6) t
            ORDER BY t.due, t.slot, t.id LIMIT $6";
        let slots: Vec<i32> = slots.into_iter().map(slot).collect();
        let (due, slot, limit) = (after.due.as_micros(), slot(after.slot), i64::from(limit));
        let params: [&dyn Param; 6] = [&slots, &due, &slot, &after.id, &before.as_micros(), &limit];
        let rows = self.load.ask(sql, &params).await?;
        Ok(rows.iter().map(|row| place(row, 0)).collect())
    }

    async fn schedule(
        &self,
        node: NodeId,
        rows: Vec<NewRow>,
    ) -> Result<Vec<Option<Written>>, Error> {
        let answer = schedule::schedule(self.write(), node, rows).await;
        if answer.as_ref().is_err_and(is_missing) {
            self.mend().await?;
        }
        answer
    }

    async fn cancel(&self, keys: Vec<KeyName>) -> Result<Vec<Option<Cancelled>>, Error> {
        timers::cancel(self.write(), keys).await
    }

    async fn touch(&self, keys: Vec<(KeyName, StoreTime)>) -> Result<Vec<Option<Touched>>, Error> {
        timers::touch(self.write(), keys).await
    }

    async fn pause(&self, tag: Option<String>, until: Option<StoreTime>) -> Result<(), Error> {
        bulk::pause(self.write(), self.namespace(), tag, until).await
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        bulk::pauses(self.write(), self.namespace()).await
    }

    async fn bulk(&self, scope: Scope, bulk: Bulk, limit: u32) -> Result<Step, Error> {
        bulk::step(self.write(), self.range(), scope, bulk, limit).await
    }

    async fn claim(&self, node: NodeId, claims: Vec<Claim>, crashes: u32) -> Result<Claims, Error> {
        claims::claim(&self.claim, node, claims, crashes, self.namespace()).await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Vec<Claim>, Error> {
        claims::acknowledge(&self.acknowledge, acks).await
    }

    async fn get(&self, key: KeyName) -> Result<Option<Pending>, Error> {
        timers::get(self.write(), key).await
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        timers::list(&*self.look.lock().await, self.range(), search).await
    }

    async fn histogram(&self, bars: Bars) -> Result<Vec<u64>, Error> {
        timers::histogram(&*self.look.lock().await, self.range(), bars).await
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        timers::dead(&*self.look.lock().await, self.range(), search).await
    }
}
