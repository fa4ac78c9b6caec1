//! The statements of claims: to begin, renew, take over and end them.

use crate::entry::Error;
use crate::store::postgres::link::{Ask, Param, column, count, field, place, time};
use crate::store::postgres::timers::changed;
use crate::store::{ALONE, Ack, Changed, Claimed, Claims, Ending, Name, Place, Renewal, Want};
use crate::when::{Moment, StoreTime, micros};
use std::time::Duration;
use tokio_postgres::Row;

/// How many bytes of payloads a takeover reads at most, unless it is one row.
const TAKEN_OVER: i64 = 128 << 10;

/// Claims rows that are due.
pub(super) async fn claim(at: &impl Ask, want: &Want) -> Result<Claims, Error> {
    let bytes = i64::try_from(want.bytes).unwrap_or(i64::MAX);
    let params: [&dyn Param; 6] = [
        &i64::from(want.limit),
        &i64::from(want.holds),
        &micros(want.lease),
        &bytes,
        &want.from.due.as_micros(),
        &want.from.id,
    ];
    let sql = "SELECT * FROM tickwheel.claim_batch($1, $2, $3, $4, $5, $6, $7)";
    let rows = at.ask(sql, &params).await?;
    let mut claims = read(&rows)?;
    let last = place(whole(&rows)?, 9)?;
    claims.from = match last {
        Some(last) if claims.more => last,
        // All rows up to the present are claimed, or were locked: a look finds those.
        _ => want.from.max(Place::before(claims.now)),
    };
    Ok(claims)
}

/// Takes over claims that have run out, of tokens from `floor` on.
pub(super) async fn take_over(
    at: &impl Ask,
    floor: i64,
    most: u32,
    limit: u32,
    lease: Duration,
) -> Result<Claims, Error> {
    let params: [&dyn Param; 6] = [
        &i64::from(limit),
        &micros(lease),
        &TAKEN_OVER,
        &i32::try_from(most).unwrap_or(i32::MAX),
        &floor,
        &(ALONE as i32),
    ];
    let sql = "SELECT * FROM tickwheel.take_over_batch($1, $2, $3, $4, $5, $6, $7)";
    read(&at.ask(sql, &params).await?)
}

/// Returns the row about the whole claim: the last one.
fn whole(rows: &[Row]) -> Result<&Row, Error> {
    rows.last().ok_or_else(|| Error::uncertain("no row"))
}

fn read(rows: &[Row]) -> Result<Claims, Error> {
    let whole = whole(rows)?;
    let claimed = rows[..rows.len() - 1].iter().map(|row| {
        Ok(Claimed {
            name: Name(field(row, 0)?),
            token: field(row, 1)?,
            id: field(row, 2)?,
            due: time(row, 3)?,
            planned: time(row, 4)?,
            attempts: count(row, 5)?,
            crashes: count(row, 6)?,
            tag: field(row, 7)?,
            payload: field(row, 8)?,
        })
    });
    let mut claimed = claimed.collect::<Result<Vec<Claimed>, Error>>()?;
    // An update returns rows in no order. Handlers are called in the order of due times.
    claimed.sort_unstable_by_key(|claimed| (claimed.due, claimed.id));
    Ok(Claims {
        now: time(whole, 1)?,
        rows: claimed,
        from: Place::default(),
        // In the row about the whole claim the column of tags says whether there are more.
        more: field::<&str>(whole, 7)? == "1",
        next: place(whole, 3)?,
        expired: field::<i64>(whole, 2)?.unsigned_abs(),
        held: u64::from(count(whole, 5)?),
    })
}

/// Renews claims.
pub(super) async fn renew(at: &impl Ask, renewals: &[Renewal]) -> Result<Changed<bool>, Error> {
    let params: [&dyn Param; 3] = [
        &column(renewals, |it| it.name.0.as_str()),
        &column(renewals, |it| it.token),
        &column(renewals, |it| micros(it.term)),
    ];
    let sql = "SELECT * FROM tickwheel.renew_batch($1, $2, $3, $4)";
    let rows = at.ask(sql, &params).await?;
    changed(&rows, renewals.len(), |row| field(row, 3))
}

/// Ends claims. In a user's transaction (`waits`) this is one claim, and waits for another
/// transaction that has the row locked.
pub(super) async fn acknowledge(
    at: &impl Ask,
    acks: &[Ack],
    waits: bool,
) -> Result<Changed<bool>, Error> {
    let kind = |ack: &Ack| match ack.ending {
        Ending::Done => 0,
        Ending::Retry(_) => 1,
        Ending::Again(..) => 2,
        Ending::Dead(_) => 3,
        Ending::GiveBack => 4,
        Ending::PutBack(_) => 5,
    };
    let moment = |ack: &Ack| match ack.ending {
        Ending::Retry(moment) | Ending::Again(moment, _) => moment,
        Ending::PutBack(after) => Moment {
            after,
            ..Moment::default()
        },
        _ => Moment::default(),
    };
    fn payload(ack: &Ack) -> Option<&[u8]> {
        match &ack.ending {
            Ending::Again(_, payload) => Some(payload),
            Ending::Dead(reason) => Some(reason.as_bytes()),
            _ => None,
        }
    }
    let params: [&dyn Param; 8] = [
        &column(acks, |ack| ack.name.0.as_str()),
        &column(acks, |ack| ack.token),
        &column(acks, kind),
        &column(acks, |ack| moment(ack).at.as_micros()),
        &column(acks, |ack| micros(moment(ack).after)),
        &column(acks, |ack| moment(ack).planned.map(StoreTime::as_micros)),
        &column(acks, payload),
        &waits,
    ];
    let sql = "SELECT * FROM tickwheel.ack_batch($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let rows = at.ask(sql, &params).await?;
    changed(&rows, acks.len(), |row| field(row, 3))
}
