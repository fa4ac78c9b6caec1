//! The look for what no claim has met, and the floor below which nothing can lie.

use crate::entry::Error;
use crate::store::Look;
use crate::store::postgres::link::{Ask, Param, one, place, time};
use crate::sync::{Mutex, lock};
use tokio_postgres::Row;

/// So many looks have the floor in common; the next one begins without. Rows that came in otherwise
/// than by a statement of this crate, by a copy or a replication, may be due below it.
const LOOKS: u32 = 64;

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
    looks: u32,
}

/// What the store's clock showed, and a transaction's number that was taken after that.
#[derive(Clone, Copy, Debug)]
struct Noted {
    now: i64,
    number: i64,
}

impl Floor {
    /// Learns from a look.
    fn learn(&mut self, row: &Row) {
        let now: i64 = row.get(0);
        let first: Option<i64> = row.get(1);
        let oldest: Option<i64> = row.get(4);
        let running: i64 = row.get(6);
        let number: Option<i64> = row.get(7);
        let started: i64 = row.get(8);
        self.looks += 1;
        if started != self.started || now < self.now || self.looks > LOOKS {
            *self = Floor {
                started,
                ..Floor::default()
            };
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

/// Looks for what can be claimed. The floor is as before if that fails.
pub(super) async fn look(at: &impl Ask, space: &str, floor: &Mutex<Floor>) -> Result<Look, Error> {
    let dues = lock(floor).dues;
    let claims = lock(floor).claims;
    let takes = lock(floor).takes();
    let params: [&dyn Param; 4] = [&space, &dues, &claims, &takes];
    let sql = "SELECT * FROM tickwheel.look($1, $2, $3, $4)";
    let rows = at.ask(sql, &params).await?;
    let row = one(&rows)?;
    lock(floor).learn(row);
    Ok(Look {
        now: time(row, 0),
        first: place(row, 1),
        held: row.get(3),
        lapsed: row.get(5),
    })
}
