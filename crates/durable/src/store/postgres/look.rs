//! The look for rows that no claim has met, and the floor below which there can be no rows.

use crate::entry::Error;
use crate::store::Look;
use crate::store::postgres::claims;
use crate::store::postgres::link::{Ask, Param, field, is_too_long, one, place, time};
use crate::sync::{Mutex, lock};
use crate::when::StoreTime;
use tokio_postgres::Row;

/// One of so many looks is a whole one: it ignores the floor, and lowers the floor to the first row
/// that it finds. Rows that were not written by this crate, but by `COPY` or a replication, may lie
/// below the floor.
const LOOKS: u32 = 64;

/// How long before the present the floor of a new node lies if its first look, a whole one, takes
/// longer than a statement may. In microseconds.
const HOUR: i64 = 3_600_000_000;

/// The place from which on a look searches. A look below the floor would find no row, but would
/// read the dead entries of the index each time. Vacuum may not remove them while a snapshot is
/// held.
///
/// Each statement that makes a row claimable, or claims it, first takes its transaction's number
/// and then writes a due time or a token that is at least the clock. A look reads the clock and
/// then takes a number. Once all transactions with smaller numbers have ended, no statement can
/// write a time before that clock any more: the clock is the new floor. The `xmax` of a snapshot
/// cannot replace that number, as greater numbers may have been given out already.
#[derive(Debug, Default)]
pub(super) struct Floor {
    dues: i64,
    /// The first token that a claim can have.
    pub(super) claims: i64,
    noted: Option<Noted>,
    /// The last number that was taken. The next one is taken once another transaction has ended: an
    /// idle server gives out no numbers.
    number: i64,
    /// The store's clock at the last look.
    now: i64,
    /// When the server was started. After a failover or a restore the floor begins anew: claims and
    /// rows may have been lost.
    started: i64,
    /// How many looks there were since the last whole one.
    looks: u32,
}

/// What the store's clock showed, and a transaction's number that was taken after that.
#[derive(Clone, Copy, Debug)]
struct Noted {
    now: i64,
    number: i64,
}

impl Floor {
    /// Returns where the next look searches.
    fn ask(&self) -> Asked {
        let is_whole = self.looks == 0;
        Asked {
            dues: if is_whole { 0 } else { self.dues },
            claims: if is_whole { 0 } else { self.claims },
            is_whole,
        }
    }

    /// Notes that a look has taken too long, as over millions of dead entries. The next looks begin
    /// at the floor. A whole look would fail again, and no look would find anything.
    fn give_up(&mut self, asked: &Asked, now: StoreTime) {
        self.looks = 1;
        if !asked.is_whole || self.dues == 0 {
            self.dues = nearer(self.dues, now.as_micros());
            self.claims = nearer(self.claims, now.as_micros());
        }
    }

    /// Raises or lowers the floor by what a look has returned.
    fn learn(&mut self, row: &Row, asked: &Asked) -> Result<(), Error> {
        let now: i64 = field(row, 0)?;
        let first: Option<i64> = field(row, 1)?;
        let oldest: Option<i64> = field(row, 4)?;
        let running: i64 = field(row, 6)?;
        let number: Option<i64> = field(row, 7)?;
        let started: i64 = field(row, 8)?;
        if started != self.started || now < self.now {
            *self = Floor {
                started,
                ..Floor::default()
            };
        } else {
            self.looks = (self.looks + 1) % LOOKS;
        }
        if asked.is_whole {
            self.dues = self.dues.min(first.unwrap_or(i64::MAX));
            self.claims = self.claims.min(oldest.unwrap_or(i64::MAX));
        }
        self.now = now;
        if let Some(noted) = self.noted.filter(|noted| noted.number <= running) {
            self.noted = None;
            // The floor stays at or below each row that the look has seen.
            self.dues = self.dues.max(noted.now.min(first.unwrap_or(i64::MAX)));
            self.claims = self.claims.max(noted.now.min(oldest.unwrap_or(i64::MAX)));
        }
        if let Some(number) = number {
            self.noted = Some(Noted { now, number });
            self.number = number;
        }
        Ok(())
    }

    /// Returns the number above which a transaction must have ended before the next one is taken.
    fn takes(&self) -> i64 {
        match self.noted {
            Some(_) => i64::MAX,
            None => self.number,
        }
    }
}

/// Returns a floor that is nearer to the present: a guess. A whole look finds the rows between them
/// once the dead entries are gone.
fn nearer(floor: i64, now: i64) -> i64 {
    match floor {
        0 => now - HOUR,
        floor => (floor + now) / 2,
    }
}

/// From where on a look searches.
struct Asked {
    dues: i64,
    claims: i64,
    is_whole: bool,
}

/// Looks for what can be claimed.
pub(super) async fn look(at: &impl Ask, floor: &Mutex<Floor>) -> Result<Look, Error> {
    let asked = lock(floor).ask();
    let takes = lock(floor).takes();
    let params: [&dyn Param; 3] = [&asked.dues, &asked.claims, &takes];
    let sql = "SELECT * FROM tickwheel.look($1, $2, $3, $4)";
    let rows = match at.ask(sql, &params).await {
        Ok(rows) => rows,
        Err(error) => {
            if is_too_long(&error) {
                let now = claims::renew(at, &[]).await?.now;
                lock(floor).give_up(&asked, now);
            }
            return Err(error);
        }
    };
    let row = one(&rows)?;
    lock(floor).learn(row, &asked)?;
    Ok(Look {
        now: time(row, 0)?,
        first: place(row, 1)?,
        held: field(row, 3)?,
        lapsed: field(row, 5)?,
    })
}
