//! The statements by which a node claims and acknowledges: fenced by the timer's own row.

use crate::error::Error;
use crate::store::postgres::columns::{Claims as Columns, place};
use crate::store::postgres::link::Link;
use crate::store::{Ack, Claim, ClaimedRow, Claims, Ending, NodeId};
use crate::time::StoreTime;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Reads the slot's row and locks it not: a slot that changes hands meanwhile lets this claim pass,
/// and the next owner's, of a later epoch, over it.
const CLAIM: &str = "WITH clock AS MATERIALIZED (SELECT tickwheel.clock() AS now),
    claimed AS (
        UPDATE tickwheel.timer t SET claim = i.epoch, attempts = t.attempts + 1
        FROM clock, unnest($1, $2, $3, $4) AS i(slot, due, id, epoch)
        JOIN tickwheel.slot s ON s.slot = i.slot AND s.epoch = i.epoch AND s.owner = $5
        WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id
        AND t.claim <= i.epoch AND t.due <= clock.now
        RETURNING t.slot, t.due, t.id, t.claim, t.key, t.attempts, t.payload)
    SELECT clock.now, claimed.* FROM clock LEFT JOIN claimed ON true";

pub(super) async fn claim(link: &Link, node: NodeId, claims: Vec<Claim>) -> Result<Claims, Error> {
    let mut columns = Columns::default();
    claims.iter().for_each(|claim| columns.push(claim));
    let [slots, dues, ids, epochs] = columns.params();
    let params = [slots, dues, ids, epochs, (&node.0 as _, Type::INT8)];
    let rows = link.query(CLAIM, &params).await?;
    let now = rows.first().map_or(StoreTime::MIN, |row| StoreTime::from_micros(row.get(0)));
    let claimed = rows.iter().filter(|row| row.get::<_, Option<i64>>(3).is_some());
    let read = |row: &Row| ClaimedRow {
        claim: Claim { place: place(row, 1), epoch: row.get(4) },
        key: row.get(5),
        attempts: row.get::<_, i32>(6).unsigned_abs(),
        payload: row.get(7),
    };
    Ok(Claims { rows: claimed.map(read).collect(), now })
}

pub(super) const DONE: &str = "DELETE FROM tickwheel.timer t
    USING unnest($1, $2, $3, $4) AS i(slot, due, id, epoch)
    WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id AND t.claim = i.epoch
    RETURNING t.id";

const RETRY: &str = "UPDATE tickwheel.timer t SET due = i.at, claim = 0,
        attempts = CASE WHEN i.payload IS NULL THEN t.attempts ELSE 0 END,
        payload = coalesce(i.payload, t.payload)
    FROM unnest($1, $2, $3, $4, $5, $6) AS i(slot, due, id, epoch, at, payload)
    WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id AND t.claim = i.epoch";

const DEAD: &str = "WITH gone AS (DELETE FROM tickwheel.timer t
        USING unnest($1, $2, $3, $4, $5) AS i(slot, due, id, epoch, reason)
        WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id AND t.claim = i.epoch
        RETURNING t.slot, t.attempts, t.id, t.key, t.tag, t.payload, i.reason)
    INSERT INTO tickwheel.dead (slot, attempts, id, key, tag, payload, reason)
    SELECT * FROM gone";

/// Runs three statements, one for each way to end: they touch different rows.
pub(super) async fn acknowledge(link: &Link, acks: Vec<Ack>) -> Result<(), Error> {
    let (mut done, mut retried, mut dead) =
        (Columns::default(), Columns::default(), Columns::default());
    let (mut dues, mut payloads, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for Ack { claim, ending } in acks {
        let mut retry = |due: StoreTime, payload: Option<Vec<u8>>| {
            retried.push(&claim);
            dues.push(due.as_micros());
            payloads.push(payload);
        };
        match ending {
            Ending::Done => done.push(&claim),
            Ending::Retry(due) => retry(due, None),
            Ending::Again(due, payload) => retry(due, Some(payload)),
            Ending::Dead(reason) => {
                dead.push(&claim);
                reasons.push(reason);
            }
        }
    }
    if !done.is_empty() {
        link.query(DONE, &done.params()).await?;
    }
    if !retried.is_empty() {
        let mut params = Vec::from(retried.params());
        params.push((&dues, Type::INT8_ARRAY));
        params.push((&payloads, Type::BYTEA_ARRAY));
        link.query(RETRY, &params).await?;
    }
    if !dead.is_empty() {
        let mut params = Vec::from(dead.params());
        params.push((&reasons, Type::TEXT_ARRAY));
        link.query(DEAD, &params).await?;
    }
    Ok(())
}
