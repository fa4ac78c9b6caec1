//! The look for what no claim has met, and the floor below which nothing can lie.

use crate::entry::Error;
use crate::store::Look;
use crate::store::postgres::link::{Ask, Param, is_too_long, one, place, time};
use crate::sync::{Mutex, lock};
use crate::when::StoreTime;
use tokio_postgres::Row;

/// One of so many looks is a whole one, which begins without the floor, and lowers it to what it
/// has found. Rows that came in otherwise than by a statement of this crate, by a copy or a
/// replication, may be due below it.
const LOOKS: u32 = 64;

/// Where the floor is of a node that has just started, and whose first, whole, look takes longer
/// than a statement may: so long ago.
const HOUR: i64 = 3_600_000_000;

/// Below this no row can be that no look has seen: dead entries of an index, which nobody may
/// remove while a snapshot is held, are walked over once.
///
/// Each statement that makes a row claimable, or claims it, takes its transaction's number and then
/// writes a due time, or a token, that is the clock at least. A look reads the clock and takes a
/// number of its own. Once all transactions with lesser numbers have ended, whatever is written is
/// not before that time. The `xmax` of a snapshot would not do: numbers that were given out may be
/// greater.
#[derive(Debug, Default)]
pub(super) struct Floor {
    dues: i64,
    /// The first token that anybody can have.
    pub(super) claims: i64,
    noted: Option<Noted>,
    /// The last number that was taken: the next one is taken once another transaction has ended, so
    /// that an idle server counts nothing.
    number: i64,
    /// The store's clock at the last look.
    now: i64,
    /// When the server was started: another one, or one that was restored, may have lost claims.
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
    /// Begins at the store's present.
    pub(super) fn new(now: StoreTime) -> Self {
        Floor {
            now: now.as_micros(),
            ..Floor::default()
        }
    }

    /// Returns what a look is asked.
    fn ask(&self) -> Asked {
        let is_whole = self.looks == 0;
        Asked {
            dues: if is_whole { 0 } else { self.dues },
            claims: if is_whole { 0 } else { self.claims },
            is_whole,
        }
    }

    /// Learns that a look has taken too long, as it does over millions of dead entries each time.
    /// The next ones begin at the floor: otherwise nothing would be found any more.
    fn give_up(&mut self, asked: &Asked) {
        self.looks = 1;
        if !asked.is_whole || self.dues == 0 {
            self.dues = self.nearer(self.dues);
            self.claims = self.nearer(self.claims);
        }
    }

    /// Guesses a floor that is nearer to the present. What lies between, the next whole look finds
    /// once the dead entries are gone.
    fn nearer(&self, floor: i64) -> i64 {
        match floor {
            0 => self.now - HOUR,
            floor => (floor + self.now) / 2,
        }
    }

    /// Learns from a look.
    fn learn(&mut self, row: &Row, asked: &Asked) {
        let now: i64 = row.get(0);
        let first: Option<i64> = row.get(1);
        let oldest: Option<i64> = row.get(4);
        let running: i64 = row.get(6);
        let number: Option<i64> = row.get(7);
        let started: i64 = row.get(8);
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
            // A row that was seen holds it.
            self.dues = self.dues.max(noted.now.min(first.unwrap_or(i64::MAX)));
            self.claims = self.claims.max(noted.now.min(oldest.unwrap_or(i64::MAX)));
        }
        if let Some(number) = number {
            self.noted = Some(Noted { now, number });
            self.number = number;
        }
    }

    /// Returns the number above which a transaction must have ended before the next one is taken.
    fn takes(&self) -> i64 {
        match self.noted {
            Some(_) => i64::MAX,
            None => self.number,
        }
    }
}

/// From where on a look searches.
struct Asked {
    dues: i64,
    claims: i64,
    is_whole: bool,
}

/// Looks for what can be claimed.
pub(super) async fn look(at: &impl Ask, space: &str, floor: &Mutex<Floor>) -> Result<Look, Error> {
    let asked = lock(floor).ask();
    let takes = lock(floor).takes();
    let params: [&dyn Param; 4] = [&space, &asked.dues, &asked.claims, &takes];
    let sql = "SELECT * FROM tickwheel.look($1, $2, $3, $4)";
    let rows = match at.ask(sql, &params).await {
        Ok(rows) => rows,
        Err(error) => {
            if is_too_long(&error) {
                lock(floor).give_up(&asked);
            }
            return Err(error);
        }
    };
    let row = one(&rows)?;
    lock(floor).learn(row, &asked);
    Ok(Look {
        now: time(row, 0),
        first: place(row, 1),
        held: row.get(3),
        lapsed: row.get(5),
    })
}
