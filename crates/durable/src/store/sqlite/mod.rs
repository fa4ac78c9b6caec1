//! A store in a file: SQLite, for one node.

mod file;
mod rows;
#[cfg(test)]
#[path = "../../../tests/inside/sqlite.rs"]
mod tests;
mod thread;
mod within;

pub use within::Transaction;

use crate::durable::{Durable, DurableBuilder, OpenStore};
use crate::entry::Error;
use crate::store::Place;
use crate::store::alone::Alone;
use crate::store::sqlite::rows::Table;
use crate::store::sqlite::thread::{Job, Shown, State};
use crate::when::StoreTime;
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// A store in a file of SQLite, which one node has at a time.
///
/// One thread has the connection. It commits simultaneous calls together, except for each
/// [`transact`](Durable::transact). Each commit is flushed to the disk: an answered call survives a
/// crash of the machine. The store's clock is this machine's time of day. When it leaps, claims
/// last as long as before, and timers that have become due are found within a second.
///
/// The node locks a second file, whose name ends in `-lock`, and leaves it there. Read and write
/// the timers' tables, whose names begin with `tickwheel_`, only through the node. Do not put the
/// file on a network disk, where locks are not safe. Once a second the node checks that the file is
/// still at its path. If the file was deleted or replaced, the store closes, and each call fails
/// with [`Error::Unavailable`].
#[derive(Debug)]
pub struct Sqlite {
    /// When this is dropped, the thread does the jobs that wait, and ends.
    jobs: mpsc::Sender<Job>,
}

/// A file that [`Durable::sqlite`] opens.
#[derive(Debug)]
pub struct SqliteFile {
    path: PathBuf,
    makes_tables: bool,
}

impl Durable<Sqlite> {
    /// Sets up a node whose timers lie in a file. The file is made if there is none; its folder
    /// must exist. A file is one namespace, and one node has it at a time: another node waits 1 s
    /// for the first one to end, and then fails to start. A start reads all timers, and fails if
    /// their table is damaged.
    pub fn sqlite(path: impl Into<PathBuf>) -> DurableBuilder<SqliteFile> {
        DurableBuilder::new(SqliteFile {
            path: path.into(),
            makes_tables: true,
        })
    }
}

impl DurableBuilder<SqliteFile> {
    /// Refuses to start if there is no file, or no table of timers in it: nothing is made.
    pub fn existing_tables(mut self) -> Self {
        self.store.makes_tables = false;
        self
    }
}

impl OpenStore for SqliteFile {
    type Store = Sqlite;

    async fn open(self, _: Duration) -> Result<Sqlite, Error> {
        thread::start(self, Box::new(Shown::now)).await
    }
}

impl Alone for Sqlite {
    type Rows<'a> = Table<'a>;

    /// Shares a transaction with other calls. A user's statements share none: a deferred constraint
    /// that they violate would fail the other calls at the commit.
    async fn with<A: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Table<'_>, StoreTime) -> Result<A, Error> + Send + 'static,
    ) -> Result<A, Error> {
        let run = move |file: &Connection, state: &State| {
            change(&mut Table::new(file, &state.greatest), state.now())
        };
        self.ask(run, true).await?
    }

    /// There is no other node.
    fn tell(&self, _: Option<Place>) {}

    async fn told(&self) -> Option<Place> {
        std::future::pending().await
    }
}
