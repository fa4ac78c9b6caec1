//! The statements that claim and acknowledge.
//!
//! Both are fenced by the timer's own row. Neither waits for a row that somebody's transaction has
//! locked: all others in the batch would wait as well, for as long as that is open.

use crate::entry::Error;
use crate::store::postgres::link::{Ask, Link, Param, count, place, slot};
use crate::store::postgres::{timer, told};
use crate::store::{
    ALONE, Ack, BATCH_BYTES, Claim, ClaimedRow, Claims, Ending, NodeId, StoreTime, Suspect,
};
use tokio_postgres::Row;

/// Reads the slot's row and locks it not: a slot that changes hands meanwhile lets this claim pass,
/// and the next owner's, of a later epoch, over it. What was found and is not its own is locked,
/// and what is its own and was not claimed is suspect. What has enough bytes before it is not
/// locked, nor read. What was cancelled in an earlier run is gone. Only the pauses of these
/// tags are read. They are locked, so none is ended until what it puts off has been: who ends it
/// finds all. Each part tells its own rows: the server takes a batch for one row, and would join
/// the parts by comparing each with each.
const CLAIM: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT tickwheel.clock() AS now),
    found AS MATERIALIZED (
        SELECT t.at, t.slot, t.due, t.id, t.tag, i.epoch, sum(octet_length(t.payload))
            OVER (ORDER BY t.due, t.slot, t.id) - octet_length(t.payload) AS before
        FROM clock, unnest($1, $2, $3, $4) AS i(slot, due, id, epoch)
        JOIN tickwheel.slot s ON s.slot = i.slot AND s.epoch = i.epoch AND s.owner = $5
        ",
    timer!("slot", "due", "id"),
    "WHERE t.claim <= i.epoch AND t.due <= clock.now),
    paused AS MATERIALIZED (
        SELECT tag, until FROM tickwheel.pause
        WHERE namespace = $9 AND until > tickwheel.clock()
        AND (tag IS NULL OR tag = ANY (ARRAY(SELECT tag FROM found))) FOR SHARE),
    own AS MATERIALIZED (
        SELECT f.at, f.slot, f.due, f.id, f.epoch, t.attempts, t.cancelled,
            (SELECT max(until) FROM paused p WHERE p.tag IS NULL OR p.tag = f.tag) AS held,
            t.crashes + (t.claim NOT IN (0, f.epoch) AND t.crashes < $7)::int AS crashes
        FROM found f JOIN tickwheel.timer t USING (slot, due, id)
        WHERE t.ctid = f.at AND t.claim <= f.epoch AND f.before < $8 FOR UPDATE OF t SKIP LOCKED),
    cancelled AS (
        DELETE FROM tickwheel.timer t USING own o
        WHERE o.cancelled AND t.ctid = o.at),
    held AS (
        UPDATE tickwheel.timer t SET due = o.held, planned = coalesce(t.planned, t.due),
            claim = 0, crashes = o.crashes, attempts = t.attempts - (t.claim = o.epoch)::int
        FROM own o WHERE t.ctid = o.at AND o.held IS NOT NULL AND NOT o.cancelled),
    claimed AS (
        UPDATE tickwheel.timer t
        SET claim = o.epoch, attempts = t.attempts + (t.claim <> o.epoch)::int, crashes = o.crashes
        FROM own o WHERE t.ctid = o.at AND o.crashes <= $6 AND o.held IS NULL AND NOT o.cancelled
        RETURNING t.slot, t.due, t.id, t.claim, t.crashes, t.attempts,
            coalesce(t.planned, t.due) AS planned, t.key, t.payload, t.tag)
    SELECT 'clock', 0, now, 0::bigint, 0::bigint, 0, 0, now, '', ''::bytea, '' FROM clock
    UNION ALL SELECT 'claimed', * FROM claimed
    UNION ALL SELECT CASE WHEN held IS NULL THEN 'suspect' ELSE 'held' END,
        slot, coalesce(held, due), id, epoch, crashes, attempts, 0, '', '', '' FROM own
        WHERE NOT cancelled AND (held IS NOT NULL OR crashes > $6)
    UNION ALL SELECT CASE WHEN before < $8 THEN 'locked' ELSE 'more' END,
        slot, due, id, epoch, 0, 0, 0, '', '', '' FROM found
        WHERE (slot, due, id) NOT IN (SELECT slot, due, id FROM own)"
);

/// Retries what has a moment for it and was not cancelled since, and deletes the rest. Returns what
/// is claimed and was not to be had.
const ACKNOWLEDGE: &str = concat!(
    "WITH input AS MATERIALIZED (
        SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
        AS i(slot, due, id, epoch, again, payload, reason, planned)),
    found AS MATERIALIZED (
        SELECT i.*, t.at FROM input i ",
    timer!("slot", "due", "id"),
    "WHERE t.claim = i.epoch),
    own AS MATERIALIZED (
        SELECT f.at, f.slot, f.due, f.id, f.payload, f.reason, f.planned,
            CASE WHEN NOT t.cancelled THEN f.again END AS again
        FROM found f JOIN tickwheel.timer t USING (slot, due, id)
        WHERE t.ctid = f.at AND t.claim = f.epoch FOR UPDATE OF t SKIP LOCKED),
    retried AS (
        UPDATE tickwheel.timer t SET due = o.again, claim = 0, until = NULL,
            planned = CASE WHEN o.payload IS NULL THEN coalesce(t.planned, t.due)
                ELSE o.planned END,
            attempts = CASE WHEN o.payload IS NULL THEN t.attempts ELSE 0 END,
            crashes = CASE WHEN o.payload IS NULL THEN t.crashes ELSE 0 END,
            payload = coalesce(o.payload, t.payload)
        FROM own o WHERE o.again IS NOT NULL AND t.ctid = o.at
        RETURNING t.slot, t.due),
    gone AS (
        DELETE FROM tickwheel.timer t USING own o
        WHERE o.again IS NULL AND t.ctid = o.at
        RETURNING t.slot, t.attempts, t.id, t.key, t.tag, t.payload, o.reason),
    {buried} ",
    told!("retried"),
    " SELECT slot, due, id, epoch FROM found
    WHERE (slot, due, id) NOT IN (SELECT slot, due, id FROM own)
    AND (SELECT count(*) FROM told) >= 0"
);

/// For those that die alone: where an index on the dead ones is built, what names them waits.
const BURIED: &str = "buried AS (
        INSERT INTO tickwheel.dead (slot, attempts, id, key, tag, payload, reason)
        SELECT * FROM gone),";

/// Splits claims into slots, dues, ids and epochs.
fn columns(claims: impl Iterator<Item = Claim>) -> (Vec<i32>, Vec<i64>, Vec<i64>, Vec<i64>) {
    let split = |Claim { place, epoch }| (slot(place.slot), place.due.as_micros(), place.id, epoch);
    claims.map(split).collect()
}

pub(super) async fn claim(
    link: &Link,
    node: NodeId,
    claims: Vec<Claim>,
    crashes: u32,
    namespace: i32,
) -> Result<Claims, Error> {
    let (slots, dues, ids, epochs) = columns(claims.into_iter());
    let (crashes, alone) = (i32::try_from(crashes).unwrap_or(i32::MAX), ALONE as i32);
    let bytes = BATCH_BYTES as i64;
    let params: [&dyn Param; 9] = [
        &slots, &dues, &ids, &epochs, &node.0, &crashes, &alone, &bytes, &namespace,
    ];
    let rows = link.ask(CLAIM, &params).await?;
    let mut answer = Claims::default();
    for row in &rows {
        let place = place(row, 1);
        let (crashes, attempts) = (count(row, 5), count(row, 6));
        match row.get(0) {
            "clock" => answer.now = place.due,
            "claimed" => answer.rows.push(ClaimedRow {
                claim: Claim {
                    place,
                    epoch: row.get(4),
                },
                key: row.get(8),
                tag: row.get(10),
                attempts,
                crashes,
                payload: row.get(9),
                planned: StoreTime::from_micros(row.get(7)),
            }),
            "suspect" => answer.suspects.push(Suspect {
                crashes,
                attempts,
                place,
            }),
            "held" => answer.held.push(place),
            "more" => answer.more.push(place),
            _ => answer.locked.push(place),
        }
    }
    Ok(answer)
}

pub(super) async fn acknowledge(link: &Link, acks: Vec<Ack>) -> Result<Vec<Claim>, Error> {
    let (dying, others): (Vec<_>, Vec<_>) = acks
        .into_iter()
        .partition(|ack| matches!(ack.ending, Ending::Dead(_)));
    let mut locked = Vec::new();
    // Those that die come last: where they fail, the others have ended.
    for (buried, acks) in [("", others), (BURIED, dying)] {
        if !acks.is_empty() {
            locked.extend(end(link, buried, acks).await?);
        }
    }
    Ok(locked)
}

async fn end(link: &Link, buried: &str, acks: Vec<Ack>) -> Result<Vec<Claim>, Error> {
    let (slots, dues, ids, epochs) = columns(acks.iter().map(|ack| ack.claim));
    let endings = acks.into_iter().map(|ack| {
        let (again, planned, payload, reason) = match ack.ending {
            Ending::Done => (None, None, None, None),
            Ending::Retry(due) => (Some(due), None, None, None),
            Ending::Again {
                due,
                planned,
                payload,
            } => (Some(due), planned, Some(payload), None),
            Ending::Dead(reason) => (None, None, None, Some(reason)),
        };
        (
            again.map(StoreTime::as_micros),
            planned.map(StoreTime::as_micros),
            payload,
            reason,
        )
    });
    let (agains, planneds, payloads, reasons): (Vec<_>, Vec<_>, Vec<_>, Vec<_>) = endings.collect();
    let params: [&dyn Param; 8] = [
        &slots, &dues, &ids, &epochs, &agains, &payloads, &reasons, &planneds,
    ];
    let locked = link
        .ask(&ACKNOWLEDGE.replace("{buried}", buried), &params)
        .await?;
    let claim = |row: &Row| Claim {
        place: place(row, 0),
        epoch: row.get(3),
    };
    Ok(locked.iter().map(claim).collect())
}
