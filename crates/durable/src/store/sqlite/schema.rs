//! The tables of a file, from version to version.

use crate::error::Error;
use rusqlite::Connection;
use std::path::Path;

/// What brings a file from each version to the next. Never changed once released; only added to.
const MIGRATIONS: [&str; 2] = [
    "
    CREATE TABLE timer (
        due INTEGER NOT NULL,
        id INTEGER NOT NULL,
        claim INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        key TEXT,
        tag TEXT,
        payload BLOB NOT NULL,
        PRIMARY KEY (due, id)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX timer_key ON timer (key) WHERE key IS NOT NULL;
    CREATE INDEX timer_tag ON timer (tag) WHERE tag IS NOT NULL;
    CREATE TABLE dead (
        number INTEGER PRIMARY KEY,
        id INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        key TEXT,
        tag TEXT,
        payload BLOB NOT NULL,
        reason TEXT NOT NULL
    );
    CREATE INDEX dead_id ON dead (id);
    CREATE TABLE owner (epoch INTEGER NOT NULL);
    INSERT INTO owner VALUES (0);
",
    // In how many crashes a timer was beside others.
    "ALTER TABLE timer ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;",
];

/// Opens a file for this process alone, and brings it up to date.
pub(super) fn open(path: &Path) -> Result<Connection, Error> {
    let mut file = Connection::open(path).map_err(Error::unavailable)?;
    prepare(&file).map_err(Error::unavailable)?;
    migrate(&mut file)?;
    Ok(file)
}

fn prepare(file: &Connection) -> rusqlite::Result<()> {
    // Exclusive before the log is opened: it lies in no shared memory then, and the lock is kept.
    file.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    file.pragma_update(None, "journal_mode", "WAL")?;
    // Each commit is on the disk before it is answered.
    file.pragma_update(None, "synchronous", "FULL")?;
    file.set_prepared_statement_cache_capacity(64);
    file.execute_batch("BEGIN EXCLUSIVE; COMMIT;")
}

fn migrate(file: &mut Connection) -> Result<(), Error> {
    let known = MIGRATIONS.len() as i32;
    let found: i32 = file
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(Error::unavailable)?;
    if found > known {
        return Err(Error::NewerSchema { found, known });
    }
    let mut change = || {
        let change = file.transaction()?;
        for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
            change.execute_batch(migration)?;
        }
        change.pragma_update(None, "user_version", known)?;
        change.commit()
    };
    change().map_err(Error::unavailable)
}

/// Counts the owners: a claim of an earlier process is told from one of this.
pub(super) fn next_epoch(file: &Connection) -> rusqlite::Result<i64> {
    file.query_row("UPDATE owner SET epoch = epoch + 1 RETURNING epoch", [], |row| row.get(0))
}
