//! Rows in a table. SQL finds, reads and writes them; [`Rows`] changes them.

use crate::entry::{Error, Paused};
use crate::store::rows::{Rows, Scan, Visit};
use crate::store::states::{Row, State, Then, Timer};
use crate::store::{Bulk, Name, Place};
use crate::when::{StoreTime, micros};
use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, params};
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The rows of a file, in a transaction.
pub(in crate::store) struct Table<'a> {
    file: &'a Connection,
    /// The greatest token of any claim since the start.
    greatest: &'a Cell<i64>,
    /// The statements for single rows. Finding one here costs less than in the connection's cache.
    used: RefCell<Vec<(&'static str, CachedStatement<'a>)>>,
}

impl ToSql for StoreTime {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_micros().into())
    }
}

impl FromSql for StoreTime {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        i64::column_result(value).map(StoreTime::from_micros)
    }
}

impl ToSql for Name {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

impl FromSql for Name {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        String::column_result(value).map(Name)
    }
}

/// Selects whole rows.
macro_rules! rows {
    ($which:literal) => {
        concat!(
            "SELECT dead, due, id, name, claim, until, attempts, crashes, cancelled, tag, planned, \
            expires, waits_until, held_from, next, next_id, former, payload, reason \
            FROM tickwheel_timer ",
            $which
        )
    };
}

// Each statement names its index, unless it reads the rows in the order of the table. Otherwise the
// planner's choice would depend on its statistics.
const FREE: &str =
    rows!("WHERE dead = 0 AND (due, id) >= (?1, ?2) AND claim <= 0 ORDER BY due, id");
const CLAIMED: &str = rows!("INDEXED BY tickwheel_timer_until WHERE claim > 0 ORDER BY until");
const DEAD: &str = rows!("WHERE dead = 1 AND (due, id) >= (?1, ?2) ORDER BY due, id");
const TAGGED: &str =
    rows!("INDEXED BY tickwheel_timer_tag WHERE tag = ?1 AND NOT dead AND name > ?2 ORDER BY name");
const HELD: &str = rows!(
    "INDEXED BY tickwheel_timer_held WHERE held_from IS NOT NULL AND name > ?1 ORDER BY name"
);
/// Dead timers: only their names begin with `d`.
const NAMED: &str =
    rows!("INDEXED BY tickwheel_timer_name WHERE name > max('d', ?1) AND name < 'e' ORDER BY name");
const ONE: &str = rows!("INDEXED BY tickwheel_timer_name WHERE name = ?1");
/// Inserts a whole row.
macro_rules! insert {
    ($otherwise:literal) => {
        concat!(
            "INSERT INTO tickwheel_timer VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
            ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19) ON CONFLICT (name) ",
            $otherwise
        )
    };
}

const ADD: &str = insert!("DO NOTHING");
const PUT: &str = insert!(
    "DO UPDATE SET dead = ?1, due = ?2, id = ?3, claim = ?5, until = ?6,
        attempts = ?7, crashes = ?8, cancelled = ?9, tag = ?10, planned = ?11, expires = ?12,
        waits_until = ?13, held_from = ?14, next = ?15, next_id = ?16, former = ?17, payload = ?18,
        reason = ?19"
);
const CLAIM: &str = "UPDATE tickwheel_timer INDEXED BY sqlite_autoindex_tickwheel_timer_1
    SET claim = ?5, until = ?6, attempts = ?7, crashes = ?8, cancelled = ?9, waits_until = NULL
    WHERE dead = ?1 AND due = ?2 AND id = ?3 AND name = ?4";

impl<'a> Table<'a> {
    pub(super) fn new(file: &'a Connection, greatest: &'a Cell<i64>) -> Self {
        let used = RefCell::default();
        Table {
            file,
            greatest,
            used,
        }
    }

    /// Runs a statement on one row.
    fn one<A>(
        &self,
        sql: &'static str,
        run: impl FnOnce(&mut CachedStatement<'a>) -> rusqlite::Result<A>,
    ) -> rusqlite::Result<A> {
        let mut used = self.used.borrow_mut();
        if let Some((_, statement)) = used.iter_mut().find(|(known, _)| *known == sql) {
            return run(statement);
        }
        let mut statement = self.file.prepare_cached(sql)?;
        let result = run(&mut statement);
        used.push((sql, statement));
        result
    }

    fn execute(&self, sql: &'static str, params: impl Params) -> rusqlite::Result<usize> {
        self.one(sql, |statement| statement.execute(params))
    }

    fn write(&self, sql: &'static str, name: &Name, row: &Row) -> rusqlite::Result<usize> {
        let Row {
            token,
            timer,
            state,
        } = row;
        let mut claim = -token;
        // The timer that waits for the end of the run, or is the only one.
        let mut waiting = timer;
        // Columns that are empty in most states.
        let mut ends = None;
        let mut next = None;
        let mut next_id = None;
        let mut reason = None;
        let mut former = None;
        match state {
            State::Free => {}
            State::Claimed { until, then } => {
                claim = *token;
                ends = Some(until);
                match then {
                    Then::Outcome => {}
                    Then::Next(timer) => {
                        next = Some(timer.due);
                        next_id = Some(timer.id);
                        waiting = timer;
                    }
                    Then::Nothing => next_id = Some(timer.id),
                }
            }
            State::Dead {
                reason: why,
                former: name,
            } => {
                reason = Some(why);
                former = Some(name);
            }
        }
        self.execute(
            sql,
            params![
                former.is_some(),
                timer.due,
                timer.id,
                name,
                claim,
                ends.unwrap_or(&timer.due),
                timer.attempts,
                timer.crashes,
                timer.marked,
                waiting.tag,
                waiting.planned,
                waiting.expires_after.map(micros),
                waiting.waits_until,
                timer.held_from,
                next,
                next_id,
                former,
                waiting.payload,
                reason,
            ],
        )
    }

    fn visit(&self, sql: &str, params: impl Params, visit: Visit<'_>) -> Result<(), Error> {
        let mut statement = self.file.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        while let Some(row) = rows.next()? {
            let (name, row) = read(row)?;
            if !visit(&name, &row)? {
                break;
            }
        }
        Ok(())
    }
}

/// Reads a whole row.
fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<(Name, Row)> {
    let name = row.get(3)?;
    let claim: i64 = row.get(4)?;
    let expires: Option<i64> = row.get(11)?;
    let mut timer = Timer {
        due: row.get(1)?,
        id: row.get(2)?,
        attempts: row.get(6)?,
        crashes: row.get(7)?,
        marked: row.get(8)?,
        tag: row.get(9)?,
        planned: row.get(10)?,
        expires_after: expires.map(|micros| Duration::from_micros(micros.unsigned_abs())),
        waits_until: row.get(12)?,
        // A claim leaves the column as it is. The write at the claim's end clears it.
        held_from: row.get::<_, Option<StoreTime>>(13)?.filter(|_| claim <= 0),
        payload: row.get(17)?,
    };
    let state = if row.get(0)? {
        State::Dead {
            reason: row.get(18)?,
            former: row.get(16)?,
        }
    } else if claim <= 0 {
        State::Free
    } else {
        let then = match (row.get(14)?, row.get(15)?) {
            (_, None) => Then::Outcome,
            (None, Some::<i64>(_)) => Then::Nothing,
            (Some(due), Some(id)) => {
                let payload = std::mem::take(&mut timer.payload);
                Then::Next(Timer {
                    due,
                    id,
                    payload,
                    attempts: 0,
                    crashes: 0,
                    marked: false,
                    ..timer.clone()
                })
            }
        };
        State::Claimed {
            until: row.get(5)?,
            then,
        }
    };
    let token = claim.abs();
    let row = Row {
        token,
        timer,
        state,
    };
    Ok((name, row))
}

impl Rows for Table<'_> {
    fn load(&self, name: &Name) -> Result<Option<Row>, Error> {
        let found = self.one(ONE, |it| it.query_row([name], read).optional())?;
        Ok(found.map(|(_, row)| row))
    }

    fn greatest(&self) -> i64 {
        self.greatest.get()
    }

    fn add(&mut self, name: &Name, row: Row) -> Result<Option<Row>, Error> {
        let added = self.write(ADD, name, &row)?;
        if added > 0 { Ok(None) } else { self.load(name) }
    }

    fn put(&mut self, name: &Name, row: Option<Row>) -> Result<(), Error> {
        let Some(row) = row else {
            self.execute("DELETE FROM tickwheel_timer WHERE name = ?1", [name])?;
            return Ok(());
        };
        self.greatest.set(self.greatest.get().max(row.token));
        match &row.state {
            // A claim and a renewal change only these columns.
            State::Claimed {
                until,
                then: Then::Outcome,
            } => self.execute(
                CLAIM,
                params![
                    false,
                    row.timer.due,
                    row.timer.id,
                    name,
                    row.token,
                    until,
                    row.timer.attempts,
                    row.timer.crashes,
                    row.timer.marked
                ],
            ),
            _ => self.write(PUT, name, &row),
        }?;
        Ok(())
    }

    fn end(&mut self, name: &Name, token: i64) -> Result<bool, Error> {
        let end = "DELETE FROM tickwheel_timer WHERE name = ?1 AND claim = ?2 AND next IS NULL";
        Ok(self.execute(end, params![name, token])? > 0)
    }

    fn scan(&self, scan: Scan<'_>, visit: Visit<'_>) -> Result<(), Error> {
        match scan {
            Scan::Free(Place { due, id }) => self.visit(FREE, params![due, id], visit),
            Scan::Claimed => self.visit(CLAIMED, [], visit),
            Scan::Dead(Place { due, id }) => self.visit(DEAD, params![due, id], visit),
            Scan::Of(Bulk::Cancel(tag) | Bulk::Touch(tag, _), after) => {
                self.visit(TAGGED, [tag.as_str(), after], visit)
            }
            Scan::Of(Bulk::Release(_), after) => self.visit(HELD, [after], visit),
            Scan::Of(_, after) => self.visit(NAMED, [after], visit),
        }
    }

    fn pause(
        &mut self,
        tag: Option<String>,
        until: Option<StoreTime>,
        now: StoreTime,
    ) -> Result<(), Error> {
        // Deletes pauses that are over as well.
        let former = "DELETE FROM tickwheel_pause WHERE tag IS ?1 OR until <= ?2";
        self.execute(former, params![tag, now])?;
        if let Some(until) = until {
            let new = "INSERT INTO tickwheel_pause VALUES (?1, ?2)";
            self.execute(new, params![tag, until])?;
        }
        Ok(())
    }

    fn pauses(&self, now: StoreTime) -> Result<Vec<Paused>, Error> {
        let pauses = "SELECT tag, until FROM tickwheel_pause WHERE until > ?1";
        let mut pauses = self.file.prepare_cached(pauses)?;
        let pauses = pauses.query_map([now], |row| {
            Ok(Paused {
                tag: row.get(0)?,
                until: row.get(1)?,
            })
        })?;
        Ok(pauses.collect::<rusqlite::Result<Vec<Paused>>>()?)
    }
}

#[cfg(test)]
pub(super) mod scans {
    use super::*;

    /// Statements, and what the planner says of their indexes.
    pub(in crate::store) const SCANS: [(&str, &str); 8] = [
        (FREE, "PRIMARY KEY (dead=? AND (due,id)>(?,?))"),
        (CLAIMED, "tickwheel_timer_until"),
        (DEAD, "PRIMARY KEY (dead=? AND (due,id)>(?,?))"),
        (TAGGED, "tickwheel_timer_tag (tag=? AND name>?)"),
        (HELD, "tickwheel_timer_held (name>?)"),
        (NAMED, "tickwheel_timer_name (name>? AND name<?)"),
        (ONE, "tickwheel_timer_name (name=?)"),
        (CLAIM, "PRIMARY KEY (dead=? AND due=? AND id=? AND name=?)"),
    ];
}
