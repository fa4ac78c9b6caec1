//! Timers inside a transaction of the user's own, on the connection that has the file.

use crate::durable::Durable;
use crate::entry::{Cancelled, Due, Entry, Error, Scheduled, Touched, When, check_name};
use crate::node::draw;
use crate::store::sqlite::{SLOT, Sqlite, now, timers};
use crate::store::{Claim, Place, Written};
use rusqlite::{Connection, ErrorCode};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

/// A transaction of the file in which the timers lie: see [`Durable::transact`].
#[derive(Debug)]
pub struct Transaction<'a> {
    file: &'a Connection,
    scheduled: usize,
    cancelled: usize,
    /// What the node has to be told of.
    places: Vec<Place>,
}

impl Durable<Sqlite> {
    /// Changes timers and tables of your own in one transaction. It is committed, alone, if
    /// `change` returns `Ok`; if it returns an error or panics, nothing of it was done.
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What `change` returns; [`Error::Unavailable`], and [`Error::Refused`] where a constraint
    /// that is checked last is violated: nothing was done; [`Error::Uncertain`]: it may have been;
    /// [`Error::Closed`] after a drain.
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
        let run = move |file: &Connection, state: &mut super::thread::State| {
            let mut transaction = Transaction {
                file,
                scheduled: 0,
                cancelled: 0,
                places: Vec::new(),
            };
            let changed = catch_unwind(AssertUnwindSafe(|| change(&mut transaction)));
            let changed = changed.map_err(Err)?.map_err(Ok)?;
            let Transaction {
                scheduled,
                cancelled,
                places,
                ..
            } = transaction;
            places.into_iter().for_each(|place| state.hint(place));
            Ok((changed, scheduled, cancelled))
        };
        // An error is the user's, or a panic.
        match self
            .store()
            .ask(run, false, |error| Ok(E::from(error)))
            .await
        {
            Ok((changed, scheduled, cancelled)) => {
                self.count(scheduled, cancelled);
                Ok(changed)
            }
            Err(failed) => Err(failed.unwrap_or_else(|panic| resume_unwind(panic))),
        }
    }

    /// Copies the file to another one, as it is at some moment of the call: timers and tables of
    /// your own. A node can be started on the copy, which has claims of this one as those of a
    /// crash.
    ///
    /// All that is asked of the node waits meanwhile, about as long as it takes to write so much.
    /// Where that is longer than the [lease](crate::DurableBuilder::lease) the node loses it, and
    /// what its handlers had runs again. The copy is whole once this returns `Ok`; remove what is
    /// there after a failure.
    ///
    /// # Errors
    /// What SQLite says, as [`Error::Refused`] or [`Error::Unavailable`]: there must be no such
    /// file, or an empty one.
    pub async fn backup(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        // Absolute: no name of memory or of a file that SQLite deletes.
        let path = std::path::absolute(path).and_then(|path| {
            path.into_os_string()
                .into_string()
                .map_err(|_| io::ErrorKind::InvalidInput.into())
        });
        let path = path.map_err(|error| Error::Refused(Arc::new(error)))?;
        let copy = move |file: &Connection, _: &mut super::thread::State| {
            // Not in a transaction: this one, in which nothing was done, is left for as long.
            file.execute_batch("COMMIT")?;
            let copied = file.execute("VACUUM INTO ?", [path]);
            file.execute_batch("BEGIN")?;
            copied.map(drop).map_err(Error::from)
        };
        self.store().ask(copy, false, |error| error).await
    }
}

impl Transaction<'_> {
    /// Returns the connection, for statements on your own tables. Do not end the transaction by it,
    /// and leave the tables of the timers alone.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        self.file
    }

    /// Schedules a timer, as [`Durable::schedule`] does.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::PayloadTooLong`]; what SQLite says, as [`Error::Refused`] or
    /// [`Error::Unavailable`].
    pub fn schedule(&mut self, entry: Entry) -> Result<Scheduled, Error> {
        entry.check()?;
        let id = draw();
        let Written { answer, due } = timers::write(self.file, entry.row(SLOT, id, now()..=now()))?;
        if answer != Scheduled::Kept {
            self.places.push(Place {
                due,
                slot: SLOT,
                id,
            });
            self.scheduled += 1;
        }
        Ok(answer)
    }

    /// Cancels a key's timer, as [`Durable::cancel`] does.
    ///
    /// # Errors
    /// As for [`schedule`](Self::schedule).
    pub fn cancel(&mut self, key: &str) -> Result<Cancelled, Error> {
        check_name("key", key)?;
        let answer = timers::cancel(self.file, key)?;
        self.cancelled += usize::from(matches!(answer, Cancelled::Cancelled(_)));
        Ok(answer)
    }

    /// Moves a key's timer, as [`Durable::touch`] does.
    ///
    /// # Errors
    /// As for [`schedule`](Self::schedule).
    pub fn touch(&mut self, key: &str, when: impl Into<When>) -> Result<Touched, Error> {
        check_name("key", key)?;
        let due = when.into().resolve(now()..=now());
        let (answer, moved) = timers::touch(self.file, key, due)?;
        self.places.extend(moved);
        Ok(answer)
    }

    /// Acknowledges a timer together with its effect: both are committed, or neither. So the effect
    /// happens once. Answer [`Outcome::Done`](crate::Outcome::Done) after the commit, and
    /// [`RetryAt`](crate::Outcome::RetryAt) if it failed.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the timer is another's by now: return it, so that nothing is done.
    /// Otherwise as for [`schedule`](Self::schedule).
    pub fn ack(&mut self, due: &Due) -> Result<(), Error> {
        let place = Place {
            due: due.at,
            slot: SLOT,
            id: due.id,
        };
        match timers::end(
            self.file,
            &Claim {
                place,
                epoch: due.token.epoch,
            },
        )? {
            0 => Err(Error::Fenced),
            _ => Ok(()),
        }
    }
}

/// For [`Durable::transact`], where an error takes everything back.
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => Error::unavailable(error),
            _ => Error::Refused(Arc::new(error)),
        }
    }
}
