//! The file: its lock, the check that it is still at its path, and its tables.

use crate::entry::Error;
use crate::store::sqlite::SqliteFile;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long a node waits for the lock: a node that was dropped may be about to close the file.
const PATIENCE: Duration = Duration::from_secs(1);

/// The version of the tables. Stored in a table: tools use `user_version` for the user's own
/// tables.
const VERSION: i32 = 1;

/// The lock of a file: only one node has the file as long as this lives.
pub(super) struct Guard {
    /// The file and the lock: both must stay at their paths.
    watched: [(PathBuf, Identity); 2],
    _lock: File,
}

/// What a node is told if another one has the file.
const TAKEN: &str =
    "another process has the file open, or a node of this one: drop all of its clones";

/// Identifies a file: a file that replaces it at its path has another identity.
#[cfg(unix)]
type Identity = (u64, u64);
#[cfg(not(unix))]
type Identity = ();

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// On other systems an open file can be neither deleted nor replaced.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Identity {}

/// Locks a file unless it is locked, and returns whether it did. Not with SQLite's kind of lock,
/// which a process loses when it closes any other descriptor of the file.
#[cfg(unix)]
fn try_lock(file: &File) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// On other systems a process does not lose SQLite's own lock that way.
#[cfg(not(unix))]
fn try_lock(_: &File) -> io::Result<bool> {
    Ok(true)
}

impl Guard {
    fn take(path: &Path) -> io::Result<Guard> {
        let mut beside = OsString::from(path);
        beside.push("-lock");
        let beside = PathBuf::from(beside);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&beside)?;
        let begun = Instant::now();
        while !try_lock(&lock)? {
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::other(TAKEN));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let watched = [
            (path.to_owned(), identity(&fs::metadata(path)?)),
            (beside, identity(&lock.metadata()?)),
        ];
        Ok(Guard {
            watched,
            _lock: lock,
        })
    }

    /// Fails if the file was deleted or replaced: further writes to it would be lost.
    pub(super) fn check(&self) -> Result<(), Error> {
        for (path, known) in &self.watched {
            let is_there = match fs::metadata(path) {
                Ok(metadata) => identity(&metadata) == *known,
                // Other errors do not tell that the file is gone.
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

/// Returns the canonical path, which all nodes of the file use. Makes the file if there is none and
/// its tables may be made.
fn find(what: &SqliteFile) -> io::Result<PathBuf> {
    let path = &what.path;
    let found = match path.canonicalize() {
        Err(error) if what.makes_tables && error.kind() == io::ErrorKind::NotFound => {
            // There was no file: closing this descriptor drops no other node's lock.
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)?;
            path.canonicalize()
        }
        found => found,
    }?;
    // No lock is left beside a device or a folder.
    match fs::metadata(&found)?.is_file() {
        true => Ok(found),
        false => Err(io::Error::other(format!("{found:?} is no file"))),
    }
}

/// Opens a file for this node alone, and makes the tables if they are missing.
pub(super) fn open(what: &SqliteFile) -> Result<(Connection, Guard), Error> {
    let path = &find(what).map_err(Error::unavailable)?;
    let guard = Guard::take(path).map_err(Error::unavailable)?;
    // If the file is read-only, SQLite would open it for reading, and fail later at a lock.
    let writable = OpenOptions::new().append(true).open(path);
    drop(writable.map_err(Error::unavailable)?);
    // Without the flags that let a path ask for a database in memory.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut file = Connection::open_with_flags(path, flags).map_err(Error::unavailable)?;
    let found = prepare(&mut file, what.makes_tables).map_err(explain)?;
    if found != VERSION {
        let known = VERSION;
        return Err(Error::UnknownSchema { found, known });
    }
    // Reads all timers. Otherwise a damaged page is noticed only when a timer there is due. Does
    // not read the user's tables: their checks and indexes may need functions that only the user
    // has.
    let told: String = file
        .query_row("PRAGMA quick_check(tickwheel_timer)", [], |row| row.get(0))
        .map_err(explain)?;
    if told != "ok" {
        return Err(Error::unavailable(format!("{path:?} is damaged: {told}")));
    }
    // The nodes that had claims are dead, as this node has the lock.
    file.execute("UPDATE tickwheel_timer SET until = 0 WHERE claim > 0", [])
        .map_err(explain)?;
    Ok((file, guard))
}

/// Takes SQLite's lock, makes the tables if there are none, and returns their version; 0 if there
/// are none and none are made.
fn prepare(file: &mut Connection, makes_tables: bool) -> rusqlite::Result<i32> {
    // Set before the log is opened: SQLite then keeps its lock, and needs no shared memory.
    file.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let is_new = !file.table_exists(None, "tickwheel_version")?;
    if is_new && !makes_tables {
        return Ok(0);
    }
    file.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    // Each commit is on the disk before it is answered.
    file.pragma_update(None, "synchronous", "FULL")?;
    // In KiB. Rows lie by time and by name, so that a claim touches pages in many places.
    file.pragma_update(None, "cache_size", -16_384)?;
    file.set_prepared_statement_cache_capacity(64);
    file.execute_batch("BEGIN EXCLUSIVE; COMMIT;")?;
    // From now on this connection alone has the file. A backup onto another file that is busy, or
    // onto this one, must not keep all calls waiting.
    file.busy_timeout(Duration::ZERO)?;
    if !is_new {
        return file.query_row("SELECT version FROM tickwheel_version", [], |row| {
            row.get(0)
        });
    }
    let change = file.transaction()?;
    change.execute_batch(include_str!("tables.sql"))?;
    change.execute("INSERT INTO tickwheel_version VALUES (?1)", [VERSION])?;
    change.commit()?;
    Ok(VERSION)
}

/// Translates an error of opening the file. A busy file is another process's.
fn explain(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => Error::unavailable(TAKEN),
        _ => Error::unavailable(error),
    }
}
