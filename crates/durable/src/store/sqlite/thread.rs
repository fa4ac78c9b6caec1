//! The file: its tables, and the thread that has it and commits for many at once.

use crate::durable::OpenStore;
use crate::entry::Error;
use crate::store::sqlite::{Sqlite, SqliteFile};
use crate::store::{NodeId, Place, StoreTime};
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How many jobs one transaction holds: the first of them waits for the last.
const GROUP: usize = 64;

/// What need not survive the process: there is one node, and it dies with it.
#[derive(Default)]
pub(super) struct State {
    pub(super) member: Option<NodeId>,
    pub(super) owner: Option<(NodeId, i64)>,
    pub(super) horizon: StoreTime,
    pub(super) hints: Vec<Place>,
    /// Until when the node rests, and is told of each timer; `MIN` if it does not.
    pub(super) rests_until: StoreTime,
    pub(super) told: Arc<Notify>,
}

impl State {
    pub(super) fn hint(&mut self, place: Place) {
        if place.due < self.horizon {
            self.hints.push(place);
        }
        if place.due < self.rests_until {
            self.told.notify_one();
        }
    }
}

/// Something to be done in a transaction, and answered once it is known whether that was committed.
pub(super) trait Job: Send {
    /// Returns whether it succeeded.
    fn run(&mut self, file: &Connection, state: &mut State) -> bool;

    /// Returns whether it shares its transaction with others.
    fn is_shared(&self) -> bool;

    fn answer(self: Box<Self>, error: Option<Error>);
}

struct Call<F, A, E> {
    run: Option<F>,
    result: Result<A, E>,
    answer: oneshot::Sender<Result<A, E>>,
    is_shared: bool,
    /// Makes an error of the transaction's one of its own.
    own: fn(Error) -> E,
}

impl<F, A, E> Job for Call<F, A, E>
where
    F: FnOnce(&Connection, &mut State) -> Result<A, E> + Send,
    A: Send,
    E: Send,
{
    fn run(&mut self, file: &Connection, state: &mut State) -> bool {
        if let Some(run) = self.run.take() {
            self.result = run(file, state);
        }
        self.result.is_ok()
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn answer(self: Box<Self>, error: Option<Error>) {
        let Call {
            result,
            answer,
            own,
            ..
        } = *self;
        // Its own error tells more. Nobody waits any more: dropped.
        let _ = answer.send(result.and_then(|answer| error.map_or(Ok(answer), |it| Err(own(it)))));
    }
}

impl OpenStore for SqliteFile {
    type Store = Sqlite;

    async fn open(self) -> Result<Sqlite, Error> {
        let (jobs, queue) = mpsc::channel();
        let told = Arc::new(Notify::new());
        let state = State {
            told: Arc::clone(&told),
            ..State::default()
        };
        let (opened, is_open) = oneshot::channel();
        let run = move || match open(&self) {
            Ok(file) => {
                let _ = opened.send(Ok(()));
                work(file, state, &queue);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = thread::Builder::new().name("tickwheel-sqlite".to_owned());
        thread.spawn(run).map_err(Error::unavailable)?;
        is_open
            .await
            .unwrap_or_else(|_| Err(Error::unavailable("the thread ended")))?;
        Ok(Sqlite { jobs, told })
    }
}

impl Sqlite {
    /// Calls something on the thread of the connection, in a transaction that it shares: nothing
    /// that a user has written, which might fail for all of them as it is committed.
    pub(super) async fn call<A: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut State) -> rusqlite::Result<A> + Send + 'static,
    ) -> Result<A, Error> {
        let job = move |file: &_, state: &mut _| job(file, state).map_err(Error::unavailable);
        self.ask(job, true, |error| error).await
    }

    /// Calls something in a transaction that it shares, or has alone. Makes an error of that one of
    /// the caller's kind by `own`.
    pub(super) async fn ask<A: Send + 'static, E: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection, &mut State) -> Result<A, E> + Send + 'static,
        is_shared: bool,
        own: fn(Error) -> E,
    ) -> Result<A, E> {
        let (sender, answer) = oneshot::channel();
        let result = Err(own(Error::unavailable("the transaction failed before")));
        let job = Box::new(Call {
            run: Some(job),
            result,
            answer: sender,
            is_shared,
            own,
        });
        self.jobs.send(job).map_err(|_| own(Error::Closed))?;
        answer
            .await
            .unwrap_or_else(|_| Err(own(Error::uncertain("the thread ended"))))
    }
}

fn work(file: Connection, mut state: State, queue: &mpsc::Receiver<Box<dyn Job>>) {
    let begin = if file.is_readonly(MAIN_DB) == Ok(true) {
        "BEGIN"
    } else {
        "BEGIN IMMEDIATE"
    };
    let mut kept = None;
    while let Some(first) = kept.take().or_else(|| queue.recv().ok()) {
        let mut group = vec![first];
        // What does not share begins the next one.
        let more = || {
            let next = if kept.is_none() {
                queue.try_recv().ok()?
            } else {
                return None;
            };
            if next.is_shared() {
                return Some(next);
            }
            kept = Some(next);
            None
        };
        let error = transact(&file, begin, &mut state, &mut group, more).err();
        group.into_iter().for_each(|job| job.answer(error.clone()));
    }
}

/// Does what waits in one transaction. One job that fails rolls it back for all: they are told that
/// nothing was done.
fn transact(
    file: &Connection,
    begin: &str,
    state: &mut State,
    group: &mut Vec<Box<dyn Job>>,
    mut more: impl FnMut() -> Option<Box<dyn Job>>,
) -> Result<(), Error> {
    file.execute_batch(begin).map_err(Error::unavailable)?;
    let mut next = 0;
    while let Some(job) = group.get_mut(next) {
        if !job.run(file, state) {
            let _ = file.execute_batch("ROLLBACK"); // Fails if SQLite did it already.
            return Err(Error::unavailable(
                "another write of the same transaction failed",
            ));
        }
        next += 1;
        if next < GROUP && group[0].is_shared() {
            group.extend(more());
        }
    }
    file.execute_batch("COMMIT").map_err(|error| {
        let _ = file.execute_batch("ROLLBACK");
        match error.sqlite_error_code() {
            // What did not fit is no commit, also to one who opens the file after a crash.
            Some(ErrorCode::DiskFull) => Error::unavailable(error),
            // A user's, that is checked only now.
            Some(ErrorCode::ConstraintViolation) => Error::Refused(Arc::new(error)),
            _ => Error::uncertain(error),
        }
    })
}

/// The steps to the oldest version that is migrated, and from each version to the next. Never
/// changed once released.
const MIGRATIONS: [&str; 2] = [
    // A timer's `crashes`: those beside other timers. `cancelled`: while claimed. `until`: up to
    // when a debounce may put the timer off. `planned`: when the timer was due before a pause or a
    // retry put it off. A pause without a tag is one of all timers.
    "
    CREATE TABLE timer (
        due INTEGER NOT NULL,
        id INTEGER NOT NULL,
        claim INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        key TEXT,
        tag TEXT,
        payload BLOB NOT NULL,
        crashes INTEGER NOT NULL DEFAULT 0,
        cancelled INTEGER NOT NULL DEFAULT 0,
        until INTEGER,
        planned INTEGER,
        PRIMARY KEY (due, id)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX timer_key ON timer (key) WHERE key IS NOT NULL;
    CREATE INDEX timer_tag ON timer (tag) WHERE tag IS NOT NULL;
    CREATE INDEX timer_planned ON timer (due) WHERE planned IS NOT NULL;
    CREATE TABLE dead (
        number INTEGER PRIMARY KEY,
        id INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        key TEXT,
        tag TEXT,
        payload BLOB NOT NULL,
        reason TEXT NOT NULL,
        died INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX dead_id ON dead (id);
    CREATE INDEX dead_tag ON dead (tag) WHERE tag IS NOT NULL;
    CREATE TABLE owner (epoch INTEGER NOT NULL);
    INSERT INTO owner VALUES (0);
    CREATE TABLE pause (tag TEXT, until INTEGER NOT NULL);
",
    // A claim reads the pauses of its own tag alone.
    "CREATE INDEX pause_tag ON pause (tag);",
];

/// The oldest version of the tables that is migrated.
const OLDEST: i32 = 5;

/// The version of the tables that this crate uses.
const VERSION: i32 = OLDEST + MIGRATIONS.len() as i32 - 1;

/// Opens a file for this process alone, and brings it up to date; or as it is, to look at it.
fn open(place: &SqliteFile) -> Result<Connection, Error> {
    let SqliteFile { path, is_written } = place;
    // Without those by which a path can ask for memory.
    let flags = match is_written {
        true => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        false => OpenFlags::SQLITE_OPEN_READ_ONLY,
    };
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut file = Connection::open_with_flags(path, flags).map_err(Error::unavailable)?;
    if !is_written {
        // A node that has it open keeps it; another one who looks is soon done.
        file.busy_timeout(Duration::from_secs(1))
            .map_err(Error::unavailable)?;
        let done = steps_done(&file)?;
        let why = format!("its tables are not of version {VERSION}: a node migrates them");
        return if done == MIGRATIONS.len() {
            Ok(file)
        } else {
            Err(Error::unavailable(why))
        };
    }
    if !prepare(&file).map_err(explain)? {
        return Err(Error::unavailable(format!(
            "{path:?} names no file that stays"
        )));
    }
    // Reads all of it. Otherwise what lies in a damaged page is told only when it is looked for.
    let told: String = file
        .pragma_query_value(None, "quick_check", |row| row.get(0))
        .map_err(explain)?;
    if told != "ok" {
        return Err(Error::unavailable(format!("{path:?} is damaged: {told}")));
    }
    migrate(&mut file)?;
    Ok(file)
}

/// Says what it means that a file is locked, or its folder is, as it is opened.
fn explain(error: rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => Error::unavailable(
            "another process has the file open, or a node of this one: drop all of its clones",
        ),
        // Also where nothing is changed.
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen) => Error::unavailable(format!(
            "{error}: SQLite writes beside a file that it reads. Copy it, and what is called as it \
            with `-wal` at the end, to a folder that may be written"
        )),
        _ => Error::unavailable(error),
    }
}

/// Returns whether it is a file: neither memory nor a temporary one has a log.
fn prepare(file: &Connection) -> rusqlite::Result<bool> {
    // Exclusive before the log is opened: it lies in no shared memory then, and the lock is kept.
    file.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let journal: String =
        file.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    // Each commit is on the disk before it is answered.
    file.pragma_update(None, "synchronous", "FULL")?;
    file.set_prepared_statement_cache_capacity(64);
    file.execute_batch("BEGIN EXCLUSIVE; COMMIT;")?;
    Ok(journal == "wal")
}

/// Returns how many steps were done.
fn steps_done(file: &Connection) -> Result<usize, Error> {
    let found = file
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(explain)?;
    match found {
        0 => Ok(0),
        OLDEST..=VERSION => Ok((found - OLDEST + 1) as usize),
        found => Err(Error::UnknownSchema {
            found,
            known: VERSION,
        }),
    }
}

fn migrate(file: &mut Connection) -> Result<(), Error> {
    let done = steps_done(file)?;
    let mut change = || {
        let change = file.transaction()?;
        for migration in MIGRATIONS.iter().skip(done) {
            change.execute_batch(migration)?;
        }
        change.pragma_update(None, "user_version", VERSION)?;
        change.commit()
    };
    change().map_err(Error::unavailable)
}

/// Counts the owners: a claim of an earlier process is told from one of this.
pub(super) fn next_epoch(file: &Connection) -> rusqlite::Result<i64> {
    file.query_row(
        "UPDATE owner SET epoch = epoch + 1 RETURNING epoch",
        [],
        |row| row.get(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Error::InvalidQuery;

    /// One of the last group fails: so it is seen who is in that.
    #[tokio::test]
    async fn what_is_alone_parts_what_is_committed_together() {
        let folder = tempfile::tempdir().unwrap();
        let place = SqliteFile {
            path: folder.path().join("timers"),
            is_written: true,
        };
        let file = place.open().await.unwrap();
        let (go, gone) = mpsc::channel();
        let waits = file.call(move |_, _| gone.recv().map_err(|_| InvalidQuery));
        let good = || file.call(|_, _| Ok(()));
        let alone = file.ask(|_, _| Ok::<_, Error>(()), false, |error| error);
        let bad = file.call(|_, _| Err::<(), _>(InvalidQuery));
        let go = async { go.send(()).is_ok() };
        let (first, before, alone, after, bad, _) =
            tokio::join!(waits, good(), alone, good(), bad, go);
        assert!(first.is_ok() && before.is_ok() && alone.is_ok());
        assert!(after.is_err() && bad.is_err());
    }
}
