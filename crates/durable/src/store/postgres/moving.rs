//! Which slots a primary serves, and how slots move from one primary to another.
//!
//! A slot is served by one primary at most. It is closed on the first one, in a transaction that
//! waits for all writers; from then on nobody writes, cancels or claims there. Its timers are
//! copied and served on the second one in one transaction, which is the moment of the move. If the
//! mover dies before, the slot stays closed, until somebody moves it again to the same primary.

use crate::entry::Error;
use crate::store::postgres::link::{Ask, Param, column, explain};
use crate::store::postgres::schema::{On, Schema};
use crate::store::postgres::{IDLE_BOUND, NOTICE, Postgres};
use std::time::Duration;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row};

/// What `tickwheel.slot.served` says.
const SERVED: i16 = 0;
const CLOSED: i16 = 1;

/// How long claims in closed slots are waited for, before they are taken from their handlers.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// How often closing is tried: it gives up soon each time, because other writers wait behind it.
const TRIES: u32 = 20;

impl Postgres {
    /// Returns for each slot of the namespace whether it is served here.
    pub(crate) async fn served(&self) -> Result<Vec<bool>, Error> {
        let sql =
            "SELECT served = 0 FROM tickwheel.slot WHERE slot BETWEEN $1 AND $2 ORDER BY slot";
        let [first, last] = self.range();
        let rows = self.write().ask(sql, &[&first, &last]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Returns whether a slot is served here. On the connection that loads: no writer that waits
    /// for a user's transaction is before it there.
    pub(crate) async fn serves(&self, slot: u32) -> Result<bool, Error> {
        let sql = "SELECT served = 0 FROM tickwheel.slot WHERE slot = $1";
        let rows = self.load.ask(sql, &[&(slot as i32)]).await?;
        Ok(rows.iter().any(|row| row.get(0)))
    }

    /// Returns for each of some slots whether its timers lie here: served, or closed.
    pub(crate) async fn holds(&self, slots: &[u32]) -> Result<Vec<bool>, Error> {
        let sql = "SELECT s.served < 2 FROM unnest($1) WITH ORDINALITY AS i(slot, n)
            JOIN tickwheel.slot s USING (slot) ORDER BY n";
        let slots: Vec<i32> = slots.iter().map(|slot| (self.first + slot) as i32).collect();
        let rows = self.write().ask(sql, &[&slots]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Moves slots, by their numbers in the namespace, to another primary. To ask again is
    /// harmless, and ends what was begun.
    pub(crate) async fn move_to(&self, other: &Postgres, slots: &[u32]) -> Result<(), Error> {
        let (mut client, mut there) =
            (self.connector.connect().await?, other.connector.connect().await?);
        let here = self.connector.schema.on(&client);
        let identity = identity(other.connector.schema.on(&there)).await?;
        if identity == self::identity(here).await? {
            return Ok(());
        }
        let numbers = |first: u32| slots.iter().map(|slot| (first + slot) as i32).collect();
        let own: Vec<i32> = numbers(self.first);
        close(here, &own, &identity).await?;
        finish_claims(here, &own).await?;
        let transaction = there.transaction().await.map_err(explain)?;
        let change = other.connector.schema.on(transaction.client());
        let others: Vec<i32> = numbers(other.first);
        if !are_served(change, &others).await? {
            let shift = other.first as i32 - self.first as i32;
            copy(here, change, &own, &identity, shift).await?;
            change.execute(IDLE_BOUND).await?; // Claims wait for a pause that is changed.
            copy_pauses(here, change, self.namespace(), other.namespace()).await?;
            change.ask(NOTICE, &[&other.channel()]).await?;
            transaction.commit().await.map_err(explain)?;
        }
        clear(&self.connector.schema, &mut client, &own, &identity).await
    }
}

async fn identity(client: On<'_>) -> Result<String, Error> {
    let row = client.ask("SELECT id FROM tickwheel.identity", &[]).await?;
    row.first().map(|row| row.get(0)).ok_or_else(|| Error::unavailable("a primary without a name"))
}

/// Closes slots, unless they are served elsewhere. Each writer locks the table before it looks
/// whether its slots are served: so when this has it, all have ended, and later ones see it done.
/// In one message, which is one transaction: all writers wait, and must not wait for this process.
async fn close(client: On<'_>, slots: &[i32], identity: &str) -> Result<(), Error> {
    let sql = format!(
        "SET LOCAL lock_timeout = '1500ms'; LOCK TABLE tickwheel.timer IN SHARE MODE;
        UPDATE tickwheel.slot SET served = 1, owner = NULL, moves_to = '{}'
        WHERE slot = ANY(ARRAY{slots:?}) AND served = 0",
        identity.replace('\'', "''")
    );
    let mut tries = 0;
    while let Err(error) = client.execute(&sql).await {
        tries += 1;
        if tries == TRIES {
            return Err(error);
        }
        tokio::time::sleep(LOOK * 10).await;
    }
    Ok(())
}

/// Waits until handlers have ended, and takes what is left from them: their acknowledgements change
/// nothing any more.
async fn finish_claims(client: On<'_>, slots: &[i32]) -> Result<(), Error> {
    let sql = "SELECT EXISTS (SELECT FROM tickwheel.timer WHERE slot = ANY($1) AND claim <> 0)";
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        let rows = client.ask(sql, &[&slots]).await?;
        if !rows.iter().any(|row| row.get(0)) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    let sql = "UPDATE tickwheel.timer t SET claim = s.epoch + 1 FROM tickwheel.slot s
        WHERE s.slot = t.slot AND s.served = 1 AND t.slot = ANY($1) AND t.claim <> 0";
    client.ask(sql, &[&slots]).await.map(drop)
}

/// Locks slots, and returns whether they are all served there already.
async fn are_served(change: On<'_>, slots: &[i32]) -> Result<bool, Error> {
    let sql = "SELECT served FROM tickwheel.slot WHERE slot = ANY($1) ORDER BY slot FOR UPDATE";
    let rows = change.ask(sql, &[&slots]).await?;
    Ok(rows.iter().all(|row| row.get::<_, i16>(0) == SERVED))
}

/// Takes pauses along to where timers go: also to a primary that was not one when they began, and
/// with all moments at which timers lie that were put off. What is longer counts.
const PAUSED: &str = "WITH changed AS (
        UPDATE tickwheel.pause SET until = greatest(until, $3), moments = moments
            || ARRAY(SELECT unnest($4) EXCEPT SELECT unnest(moments))
        WHERE namespace = $1 AND tag IS NOT DISTINCT FROM $2 RETURNING 1)
    INSERT INTO tickwheel.pause SELECT $1, $2, $3, $4 WHERE NOT EXISTS (SELECT FROM changed)";

async fn copy_pauses(here: On<'_>, change: On<'_>, from: i32, to: i32) -> Result<(), Error> {
    let sql = "SELECT tag, until, moments FROM tickwheel.pause WHERE namespace = $1
        AND tickwheel.clock() < ANY (moments)";
    for row in here.ask(sql, &[&from]).await? {
        let (tag, until): (Option<&str>, i64) = (row.get(0), row.get(1));
        let moments: Vec<i64> = row.get(2);
        change.ask(PAUSED, &[&to, &tag, &until, &moments]).await?;
    }
    Ok(())
}

/// Copies timers and dead timers, and has their slots served there.
async fn copy(
    here: On<'_>,
    change: On<'_>,
    slots: &[i32],
    identity: &str,
    shift: i32,
) -> Result<(), Error> {
    let sql = "SELECT slot, epoch, served, moves_to FROM tickwheel.slot WHERE slot = ANY($1)";
    for row in here.ask(sql, &[&slots]).await? {
        // Now that the others are locked: nobody has moved it, and moves it back, meanwhile.
        let target: Option<&str> = row.get(3);
        if (row.get(2), target) != (CLOSED, Some(identity)) {
            return Err(Error::unavailable("a slot is not there, or moves to another primary"));
        }
        let sql = "UPDATE tickwheel.slot SET served = 0, owner = NULL, moves_to = NULL,
            epoch = greatest(epoch, $2) + 2 WHERE slot = $1";
        let (slot, epoch) = (row.get::<_, i32>(0) + shift, row.get::<_, i64>(1));
        change.ask(sql, &[&slot, &epoch]).await?;
    }
    for slot in slots {
        let timers = "SELECT slot + $2, attempts, due, id, claim, key, tag, payload, crashes,
                cancelled, until, planned
            FROM tickwheel.timer WHERE slot = $1";
        let rows = here.ask(timers, &[slot, &shift]).await?;
        insert_timers(change, &rows).await?;
        let dead = "SELECT slot + $2, attempts, id, key, tag, payload, reason, died
            FROM tickwheel.dead WHERE slot = $1 ORDER BY number";
        let rows = here.ask(dead, &[slot, &shift]).await?;
        insert_dead(change, &rows).await?;
    }
    Ok(())
}

/// Reads a column of rows.
fn read<'a, A: FromSql<'a>>(rows: &'a [Row], index: usize) -> Vec<A> {
    column(rows, |row| row.get(index))
}

async fn insert_timers(change: On<'_>, rows: &[Row]) -> Result<(), Error> {
    let sql = "INSERT INTO tickwheel.timer
            (slot, attempts, due, id, claim, key, tag, payload, crashes, cancelled, until,
                planned)
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
    for rows in rows.chunks(1_000) {
        let params: [&dyn Param; 12] = [
            &read::<i32>(rows, 0),
            &read::<i32>(rows, 1),
            &read::<i64>(rows, 2),
            &read::<i64>(rows, 3),
            &read::<i64>(rows, 4),
            &read::<Option<&str>>(rows, 5),
            &read::<Option<&str>>(rows, 6),
            &read::<&[u8]>(rows, 7),
            &read::<i32>(rows, 8),
            &read::<bool>(rows, 9),
            &read::<Option<i64>>(rows, 10),
            &read::<Option<i64>>(rows, 11),
        ];
        change.ask(sql, &params).await?;
    }
    Ok(())
}

async fn insert_dead(change: On<'_>, rows: &[Row]) -> Result<(), Error> {
    let sql = "INSERT INTO tickwheel.dead (slot, attempts, id, key, tag, payload, reason, died)
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)";
    for rows in rows.chunks(1_000) {
        let params: [&dyn Param; 8] = [
            &read::<i32>(rows, 0),
            &read::<i32>(rows, 1),
            &read::<i64>(rows, 2),
            &read::<Option<&str>>(rows, 3),
            &read::<Option<&str>>(rows, 4),
            &read::<&[u8]>(rows, 5),
            &read::<&str>(rows, 6),
            &read::<i64>(rows, 7),
        ];
        change.ask(sql, &params).await?;
    }
    Ok(())
}

/// Deletes what was copied, and lets the slots go.
async fn clear(
    schema: &Schema,
    client: &mut Client,
    slots: &[i32],
    identity: &str,
) -> Result<(), Error> {
    let transaction = client.transaction().await.map_err(explain)?;
    let change = schema.on(transaction.client());
    let gone = "UPDATE tickwheel.slot SET served = 2, moves_to = NULL
        WHERE slot = ANY($1) AND served = 1 AND moves_to = $2 RETURNING slot";
    let gone = change.ask(gone, &[&slots, &identity]).await?;
    let gone = read::<i32>(&gone, 0);
    for sql in [
        "DELETE FROM tickwheel.timer WHERE slot = ANY($1)",
        "DELETE FROM tickwheel.dead WHERE slot = ANY($1)",
    ] {
        change.ask(sql, &[&gone]).await?;
    }
    transaction.commit().await.map_err(explain)
}
