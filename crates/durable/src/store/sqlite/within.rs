//! Timers inside a user's own transaction, on the connection of the file.

use crate::durable::Durable;
use crate::entry::{Cancelled, Due, Entry, Error, Scheduled, Touched, check_name};
use crate::store::rows::Rows;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::rows::Table;
use crate::store::sqlite::thread::State;
use crate::store::{Ack, Changed, Ending, Name, Place, earlier};
use crate::when::{StoreTime, When};
use rusqlite::{Connection, ErrorCode};
use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A transaction of the file in which the timers lie: see [`Durable::transact`].
pub struct Transaction<'a> {
    file: &'a Connection,
    state: &'a State,
    /// Whether a statement has rolled the transaction back. Set and read on one thread: relaxed.
    ended: Arc<AtomicBool>,
    /// The first place of the changed rows that can be claimed.
    first: Option<Place>,
}

/// Why a transaction did nothing.
enum Failed<E> {
    Told(E),
    Panicked(Box<dyn Any + Send>),
}

impl Durable<Sqlite> {
    /// Changes timers and tables of your own in one transaction, which shares its commit with no
    /// other call. Commits if `change` returns `Ok`; if it returns an error or panics, nothing is
    /// done.
    ///
    /// Nothing is done either if a statement ends the transaction, as `INSERT OR ROLLBACK` or
    /// `COMMIT` does: later calls and writes in `change` fail, and so does `transact`.
    ///
    /// The file is the node's alone, so this is the way to tables of yours that lie in it. `change`
    /// runs on the thread of the connection, and all that is asked of the node waits for it: keep
    /// it short, and do not call the node there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Timer;
    /// use tickwheel_durable::{Durable, Entry, Error, Outcome};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("timers");
    /// let timer = Timer::builder().start()?;
    /// let node = Durable::sqlite(path).start(&timer, |_| async { Outcome::Done }).await?;
    /// node.transact(|transaction| {
    ///     let file = transaction.connection();
    ///     file.execute_batch("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY)")?;
    ///     file.execute("INSERT INTO orders VALUES (7)", [])?;
    ///     transaction.schedule(Entry::keyed("order-7", Duration::from_secs(1800), "not paid"))
    /// })
    /// .await?;
    /// assert!(node.get("order-7").await?.is_some());
    /// node.transact(|transaction| {
    ///     transaction.connection().execute("DELETE FROM orders", [])?;
    ///     Ok::<(), Error>(())
    /// })
    /// .await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What `change` returns; [`Error::Unavailable`], and [`Error::Refused`] where a statement has
    /// ended the transaction or a constraint that is checked last is violated: nothing was done;
    /// [`Error::Uncertain`]: it may have been; [`Error::Closed`] after a drain.
    ///
    /// # Panics
    /// If `change` does.
    pub async fn transact<A, E>(
        &self,
        change: impl FnOnce(&mut Transaction<'_>) -> Result<A, E> + Send + 'static,
    ) -> Result<A, E>
    where
        A: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.check_open()?;
        let run = move |file: &Connection, state: &State| {
            let mut transaction = Transaction::begin(file, state);
            // The conversion of an error is the caller's code as well.
            let changed = catch_unwind(AssertUnwindSafe(|| {
                let answer = change(&mut transaction)?;
                transaction.check()?;
                Ok((answer, transaction.first))
            }));
            // Also after a panic, as other jobs use the connection next.
            transaction.end();
            match changed {
                Ok(changed) => changed.map_err(Failed::Told),
                Err(panic) => Err(Failed::Panicked(panic)),
            }
        };
        match self.store().ask(run, false).await? {
            Ok((answer, first)) => {
                let agenda = &self.node().agenda;
                agenda.note_change();
                if let Some(first) = first {
                    agenda.note(None, first, false);
                }
                Ok(answer)
            }
            Err(Failed::Told(error)) => Err(error),
            // Panics in the caller's task. The thread goes on.
            Err(Failed::Panicked(panic)) => resume_unwind(panic),
        }
    }

    /// Copies the file, your own tables included, to another one, as it is at one moment of the
    /// call. The copy is whole once this returns `Ok`; remove it after a failure. A node can be
    /// started on the copy: it treats claims in the copy as those of a crashed node.
    ///
    /// All other calls wait until the file is copied. If that takes longer than the
    /// [lease](crate::DurableBuilder::lease), claims run out, and running timers may run again.
    ///
    /// To restore a copy, put it in the file's place while no node has the file, and remove the old
    /// file's `-wal`: SQLite would write its contents over the copy.
    ///
    /// # Errors
    /// What SQLite says, as [`Error::Refused`] or [`Error::Unavailable`]: at the path there must
    /// be no file, or an empty one.
    pub async fn backup(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        // Absolute: SQLite takes some relative names for a database in memory, or a temporary one.
        let path = std::path::absolute(path).and_then(|path| {
            let path = path.into_os_string().into_string();
            path.map_err(|_| io::ErrorKind::InvalidInput.into())
        });
        let path = path.map_err(Error::refused)?;
        let copy = move |file: &Connection, _: &State| {
            // SQLite refuses `VACUUM` inside a transaction. Ends this one, which did nothing, and
            // begins another for the thread to commit.
            file.execute_batch("COMMIT")?;
            let copied = file.execute("VACUUM INTO ?", [path]);
            file.execute_batch("BEGIN")?;
            copied.map(drop).map_err(Error::from)
        };
        self.store().ask(copy, false).await?
    }
}

impl<'a> Transaction<'a> {
    fn begin(file: &'a Connection, state: &'a State) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let rolled_back = Arc::clone(&ended);
        file.rollback_hook(Some(move || rolled_back.store(true, Relaxed)));
        // A hook that returns `true` turns a commit into a rollback: that of a `COMMIT`, and that
        // of a statement after a rollback.
        file.commit_hook(Some(|| true));
        Transaction {
            file,
            state,
            ended,
            first: None,
        }
    }

    /// Lets the transaction be committed.
    fn end(self) {
        self.file.commit_hook(None::<fn() -> bool>);
        self.file.rollback_hook(None::<fn()>);
    }

    fn check(&self) -> Result<(), Error> {
        if self.ended.load(Relaxed) || self.file.is_autocommit() {
            let why = "a statement has ended the transaction: nothing of it is done";
            return Err(Error::refused(why));
        }
        Ok(())
    }

    /// Returns the connection, for statements on your own tables. Do not end the transaction by it,
    /// and leave the tables of the timers alone.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        self.file
    }

    /// Changes one timer.
    fn one<A>(
        &mut self,
        change: impl FnOnce(&mut Table<'_>, StoreTime) -> Result<Changed<A>, Error>,
    ) -> Result<A, Error> {
        self.check()?;
        let mut rows = Table::new(self.file, &self.state.greatest);
        let changed = change(&mut rows, self.state.now())?;
        self.first = earlier(self.first, changed.first);
        changed.only()
    }

    /// Schedules a timer, as [`Durable::schedule`] does.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::PayloadTooLong`]; what SQLite says, as [`Error::Unavailable`];
    /// [`Error::Refused`] if a statement has ended the transaction.
    pub fn schedule(&mut self, entry: Entry) -> Result<Scheduled, Error> {
        let timer = entry.timer()?;
        self.one(|rows, now| rows.schedule(vec![timer], now))
    }

    /// Cancels a key's timer, as [`Durable::cancel`] does.
    ///
    /// # Errors
    /// As for [`schedule`](Self::schedule).
    pub fn cancel(&mut self, key: &str) -> Result<Cancelled, Error> {
        check_name("key", key)?;
        self.one(|rows, now| rows.cancel(vec![Name::of_key(key)], now))
    }

    /// Moves a key's timer, as [`Durable::touch`] does.
    ///
    /// # Errors
    /// As for [`schedule`](Self::schedule).
    pub fn touch(&mut self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        check_name("key", key)?;
        let moment = when.into().into();
        self.one(|rows, now| rows.touch(vec![(Name::of_key(key), moment)], now))
    }

    /// Acknowledges a timer together with its effect: both are committed, or neither. So the effect
    /// happens once. Answer [`Outcome::Done`](crate::Outcome::Done) after the commit: another
    /// outcome changes nothing then, and is logged. Answer [`Failed`](crate::Outcome::Failed) or
    /// [`RetryAt`](crate::Outcome::RetryAt) if the transaction failed.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim is over: return it, so that nothing is done.
    /// Otherwise as for [`schedule`](Self::schedule).
    pub fn ack(&mut self, due: &Due) -> Result<(), Error> {
        self.end_claim(due.ack(Ending::Done))
    }

    /// Acknowledges a timer as [`ack`](Self::ack) does, and makes it due again with this payload,
    /// as [`Outcome::Again`](crate::Outcome::Again) does: not if it was cancelled while this
    /// handler had it, and a timer of its key that waits takes its place.
    ///
    /// # Errors
    /// As for [`ack`](Self::ack); [`Error::PayloadTooLong`].
    pub fn again(
        &mut self,
        due: &Due,
        when: impl Into<When>,
        payload: impl Into<Vec<u8>>,
    ) -> Result<(), Error> {
        let again = Ending::again(when.into(), payload.into())?;
        self.end_claim(due.ack(again))
    }

    fn end_claim(&mut self, ack: Ack) -> Result<(), Error> {
        match self.one(|rows, now| rows.acknowledge(vec![ack], now))? {
            true => Ok(()),
            false => Err(Error::Fenced),
        }
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

/// For [`Durable::transact`], where an error rolls everything back.
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(
                ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::ReadOnly,
            ) => Error::unavailable(error),
            _ => Error::refused(error),
        }
    }
}
