//! The file: who has it, whether it is still at its path, and its tables.

use crate::entry::Error;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long a node waits for the lock: one that was dropped may be about to close the file.
const PATIENCE: Duration = Duration::from_secs(1);

/// The version of the tables, which lies in a table: `user_version` is for the user's own tables.
const VERSION: i32 = 1;

/// Keeps a file to one node, for as long as it lives.
pub(super) struct Guard {
    /// Must stay where they are.
    file: Watched,
    beside: Watched,
    _lock: File,
}

/// A file that was at a path.
struct Watched {
    path: PathBuf,
    known: Identity,
}

/// Tells a file from another one at the same path.
#[cfg(unix)]
type Identity = (u64, u64);
#[cfg(not(unix))]
type Identity = ();

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Elsewhere a file that is open can be neither deleted nor replaced.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Identity {}

/// Locks a file unless somebody has; returns whether. Not with SQLite's own kind of lock, which a
/// process loses as it closes any other descriptor of the file.
#[cfg(unix)]
fn try_lock(file: &File) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Elsewhere SQLite's own lock is not lost so.
#[cfg(not(unix))]
fn try_lock(_: &File) -> io::Result<bool> {
    Ok(true)
}

impl Guard {
    fn take(path: &Path) -> Result<Guard, Error> {
        let mut beside = OsString::from(path);
        beside.push("-lock");
        let beside = PathBuf::from(beside);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&beside)
            .map_err(Error::unavailable)?;
        let begun = Instant::now();
        while !try_lock(&lock).map_err(Error::unavailable)? {
            if begun.elapsed() > PATIENCE {
                return Err(taken_error());
            }
            thread::sleep(Duration::from_millis(10));
        }
        let watched = |path: PathBuf, metadata: io::Result<fs::Metadata>| {
            let metadata = metadata.map_err(Error::unavailable)?;
            let known = identity(&metadata);
            Ok::<Watched, Error>(Watched { path, known })
        };
        Ok(Guard {
            file: watched(path.to_owned(), fs::metadata(path))?,
            beside: watched(beside, lock.metadata())?,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Fails if the file was deleted or replaced: what is written to it is lost.
    pub(super) fn check(&self) -> Result<(), Error> {
        for Watched { path, known } in [&self.file, &self.beside] {
            let is_there = match fs::metadata(path) {
                Ok(metadata) => identity(&metadata) == *known,
                // Other errors say nothing of the file.
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            };
            if !is_there {
                let why = "was deleted or replaced, and the store is closed: start another node";
                return Err(Error::unavailable(format!("{path:?} {why}")));
            }
        }
        Ok(())
    }
}

fn taken_error() -> Error {
    Error::unavailable(
        "another process has the file open, or a node of this one: drop all of its clones",
    )
}

/// Returns the path by which all who open the file know it; makes the file if there is none.
pub(super) fn find(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Nobody has it open: this closes no descriptor whose lock somebody needs.
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)?;
            path.canonicalize()
        }
        found => found,
    }
}

/// Opens a file for this node alone, and makes its tables.
pub(super) fn open(path: &Path) -> Result<(Connection, Guard), Error> {
    let guard = Guard::take(path)?;
    // SQLite would open it for reading then, and say later that it cannot lock it.
    let writable = OpenOptions::new().append(true).open(path);
    drop(writable.map_err(Error::unavailable)?);
    // Without the flags by which a path can ask for memory.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut file = Connection::open_with_flags(path, flags).map_err(Error::unavailable)?;
    prepare(&file).map_err(explain)?;
    match version(&file).map_err(explain)? {
        0 => make(&mut file).map_err(explain)?,
        VERSION => {}
        found => {
            let known = VERSION;
            return Err(Error::UnknownSchema { found, known });
        }
    }
    // Reads all timers. Otherwise what lies in a damaged page is told only when it is looked for.
    // Not the user's tables: a check or an index there may need functions that only the user has.
    let told: String = file
        .query_row("PRAGMA quick_check(tickwheel_timer)", [], |row| row.get(0))
        .map_err(explain)?;
    if told != "ok" {
        return Err(Error::unavailable(format!("{path:?} is damaged: {told}")));
    }
    // Whoever had claims is dead: nobody else has the file.
    file.execute("UPDATE tickwheel_timer SET until = 0 WHERE claim > 0", [])
        .map_err(explain)?;
    Ok((file, guard))
}

fn prepare(file: &Connection) -> rusqlite::Result<()> {
    // Exclusive before the log is opened: it lies in no shared memory then, and the lock is kept.
    file.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    file.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    // Each commit is on the disk before it is answered.
    file.pragma_update(None, "synchronous", "FULL")?;
    // In KiB: timers go by time and their names lie in order, so that many pages are in turn.
    file.pragma_update(None, "cache_size", -16_384)?;
    file.set_prepared_statement_cache_capacity(64);
    file.execute_batch("BEGIN EXCLUSIVE; COMMIT;")
}

/// Returns the version of the tables; 0 if there are none.
fn version(file: &Connection) -> rusqlite::Result<i32> {
    if !file.table_exists(None, "tickwheel_version")? {
        return Ok(0);
    }
    file.query_row("SELECT version FROM tickwheel_version", [], |row| {
        row.get(0)
    })
}

fn make(file: &mut Connection) -> rusqlite::Result<()> {
    let change = file.transaction()?;
    change.execute_batch(include_str!("tables.sql"))?;
    change.execute("INSERT INTO tickwheel_version VALUES (?1)", [VERSION])?;
    change.commit()
}

/// Says what it means that a file is locked by SQLite's means, as it is opened.
fn explain(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => taken_error(),
        _ => Error::unavailable(error),
    }
}
