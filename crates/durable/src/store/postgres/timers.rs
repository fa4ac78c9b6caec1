//! The statements that schedule, cancel and move timers by their names.

use crate::entry::{Cancelled, Error, Scheduled, Touched};
use crate::store::postgres::link::{
    Ask, Param, column, field, is_locked, may_be_of_a_trigger, place, time,
};
use crate::store::{Changed, Name, NewTimer, earlier};
use crate::when::{Moment, StoreTime, micros};
use std::collections::HashMap;
use tokio_postgres::Row;

/// Reads a batch's answers. The columns of each row: the number in the batch, or 0 for the batch
/// itself; due time and id, or the clock for the batch; and the columns that `answer` reads.
pub(super) fn changed<A>(
    rows: &[Row],
    count: usize,
    answer: impl Fn(&Row) -> Result<A, Error>,
) -> Result<Changed<A>, Error> {
    let mut changed = none(count);
    for row in rows {
        let number: i64 = field(row, 0)?;
        if number == 0 {
            changed.now = time(row, 1)?;
            continue;
        }
        if let Some(one) = changed.answers.get_mut(number as usize - 1) {
            *one = Some(answer(row)?);
        }
        changed.first = earlier(changed.first, place(row, 1)?);
    }
    Ok(changed)
}

/// Returns the answers to a batch before any row is read.
fn none<A>(count: usize) -> Changed<A> {
    Changed {
        now: StoreTime::MIN,
        first: None,
        answers: (0..count).map(|_| None).collect(),
    }
}

/// How long a statement waits for a transaction that inserts the same key: about as long as a
/// commit takes.
pub(super) const LOCKED: &str = "10ms";

/// Writes timers, and waits for a lock for at most `patience`; without `patience`, in a user's
/// transaction, without limit.
pub(super) async fn write(
    at: &impl Ask,
    timers: &[NewTimer],
    patience: Option<&str>,
    tell: bool,
) -> Result<Changed<Scheduled>, Error> {
    let kept = timers.iter().filter(|timer| timer.keep);
    let kept: Vec<i64> = kept.map(|timer| timer.id).collect();
    let planned = |timer: &NewTimer| timer.when.planned.map(StoreTime::as_micros);
    let params: [&dyn Param; 12] = [
        &column(timers, |timer| timer.name.0.as_str()),
        &column(timers, |timer| timer.id),
        &column(timers, |timer| timer.when.at.as_micros()),
        &column(timers, |timer| micros(timer.when.after)),
        &column(timers, planned),
        &column(timers, |timer| timer.max_wait.map(micros)),
        &column(timers, |timer| timer.expires_after.map(micros)),
        &column(timers, |timer| timer.tag.as_deref()),
        &column(timers, |timer| timer.payload.as_slice()),
        &kept,
        &patience,
        &tell,
    ];
    let sql = "SELECT * FROM tickwheel.schedule_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
        $12, $13)";
    let rows = at.ask(sql, &params).await?;
    let mut changed = none(0);
    let mut answers = HashMap::with_capacity(timers.len());
    for row in &rows {
        let answer = match field::<i32>(row, 0)? {
            0 => {
                changed.now = time(row, 1)?;
                continue;
            }
            1 => Some(Scheduled::New),
            2 => Some(Scheduled::Replaced),
            _ => None,
        };
        changed.first = earlier(changed.first, place(row, 1)?);
        answers.insert(field::<i64>(row, 3)?, answer);
    }
    let answer = |timer: &NewTimer| match answers.get(&timer.id) {
        Some(answer) => *answer,
        // A kept timer was not written: the answer has no row for it.
        None => timer.keep.then_some(Scheduled::Kept),
    };
    changed.answers = column(timers, answer);
    Ok(changed)
}

/// After how many waits for a lock a batch is given up. To find one key of a thousand takes eleven.
const LOCK_WAITS: u32 = 32;

/// Schedules timers. If one of them makes all wait, each half is tried alone.
pub(super) async fn schedule(
    at: &impl Ask,
    timers: &[NewTimer],
    tell: bool,
) -> Result<Changed<Scheduled>, Error> {
    let mut all = none(0);
    let mut parts = vec![timers];
    let mut waits = 0;
    while let Some(part) = parts.pop() {
        // Many keys are locked: the rest is answered so, instead of waiting for each of them.
        if waits == LOCK_WAITS {
            all.answers.extend(part.iter().map(|_| None));
            continue;
        }
        match write(at, part, Some(LOCKED), tell).await {
            Ok(some) => {
                all.now = some.now;
                all.first = earlier(all.first, some.first);
                all.answers.extend(some.answers);
            }
            Err(error) if is_locked(&error) => {
                waits += 1;
                if part.len() == 1 {
                    all.answers.push(None);
                    continue;
                }
                // The batch has waited for a transaction that inserts one of the keys. The other
                // timers need not wait for it.
                let (one, rest) = part.split_at(part.len() / 2);
                parts.extend([rest, one]);
            }
            Err(error) if all.answers.iter().all(Option::is_none) => return Err(error),
            // An earlier part is written. Answered as if the rows were locked: each is tried alone
            // then, and the caller of the timer at fault gets the error.
            Err(error) if matches!(error, Error::Refused(_)) || may_be_of_a_trigger(&error) => {
                all.answers.extend(part.iter().map(|_| None));
            }
            // An earlier part is written and stays.
            Err(error) => return Err(Error::uncertain(error)),
        }
    }
    Ok(all)
}

/// Cancels timers. In a user's transaction (`waits`) this is one timer, and waits for another
/// transaction that has the row locked.
pub(super) async fn cancel(
    at: &impl Ask,
    names: &[Name],
    waits: bool,
) -> Result<Changed<Cancelled>, Error> {
    let own = column(names, |name| name.0.as_str());
    let sql = "SELECT * FROM tickwheel.cancel_batch($1, $2, $3)";
    let rows = at.ask(sql, &[&own, &waits]).await?;
    changed(&rows, names.len(), |row| {
        let payload: Option<Vec<u8>> = field(row, 4)?;
        Ok(match (field(row, 3)?, payload) {
            (true, Some(payload)) => Cancelled::Cancelled(payload),
            (true, None) => Cancelled::Running,
            (false, _) => Cancelled::Unknown,
        })
    })
}

/// Moves timers. In a user's transaction (`waits`) this is one timer, and waits for another
/// transaction that has the row locked.
pub(super) async fn touch(
    at: &impl Ask,
    moves: &[(Name, Moment)],
    tell: bool,
    waits: bool,
) -> Result<Changed<Touched>, Error> {
    let params: [&dyn Param; 6] = [
        &column(moves, |it| it.0.0.as_str()),
        &column(moves, |it| it.1.at.as_micros()),
        &column(moves, |it| micros(it.1.after)),
        &column(moves, |it| it.1.planned.map(StoreTime::as_micros)),
        &tell,
        &waits,
    ];
    let sql = "SELECT * FROM tickwheel.touch_batch($1, $2, $3, $4, $5, $6, $7)";
    let rows = at.ask(sql, &params).await?;
    changed(&rows, moves.len(), |row| {
        Ok(match field(row, 3)? {
            1 => Touched::Moved,
            2 => Touched::Running,
            _ => Touched::Unknown,
        })
    })
}
