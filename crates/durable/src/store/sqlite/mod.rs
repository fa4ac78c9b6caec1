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
use crate::store::sqlite::thread::{Job, State};
use crate::when::StoreTime;
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

/// A store in a file of SQLite, which one node has at a time.
///
/// One thread has the connection. What many callers ask of it at once is committed together, except
/// for each [`transact`](Durable::transact). The file is written ahead and flushed at each commit:
/// what was answered survives a crash of the machine. The store's clock is this machine's. When
/// that leaps, claims last as long as before, and what has become due is found at once.
///
/// The node keeps the file to itself by a lock on a file beside it, whose name has `-lock` at the
/// end and which stays there. All that reads or writes the timers' tables does so through the node.
/// The file does not lie on a network's disk, where locks are not safe. Once a second the node
/// looks whether the file is still at its path. If it was deleted or replaced, the store closes:
/// each call answers [`Error::Unavailable`].
#[derive(Debug)]
pub struct Sqlite {
    /// The file's path.
    space: Arc<str>,
    /// The thread ends when this is dropped, after what it has been asked.
    jobs: mpsc::Sender<Box<dyn Job>>,
    /// Places that the node does not know of. Locked by the task that waits for them.
    told: Mutex<UnboundedReceiver<Place>>,
}

/// A file that [`Durable::sqlite`] opens.
#[derive(Debug)]
pub struct SqliteFile {
    path: PathBuf,
}

impl Durable<Sqlite> {
    /// Sets up a node whose timers lie in a file, which is made if there is none. A file is one
    /// namespace, and one node has it at a time: a second one is refused, after a second in which
    /// the first may end. So is a file that is damaged; to find out, a start reads all of it.
    pub fn sqlite(path: impl Into<PathBuf>) -> DurableBuilder<SqliteFile> {
        DurableBuilder::new(SqliteFile { path: path.into() })
    }
}

impl OpenStore for SqliteFile {
    type Store = Sqlite;

    async fn open(self, _: Duration) -> Result<Sqlite, Error> {
        thread::start(self.path, Box::new(thread::clocks)).await
    }
}

impl Alone for Sqlite {
    type Rows<'a> = Table<'a>;

    fn space(&self) -> &str {
        &self.space
    }

    /// Shares a transaction: nothing that a user has written, which might fail for all of them as
    /// it is committed.
    async fn with<A: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Table<'_>, StoreTime) -> Result<A, Error> + Send + 'static,
    ) -> Result<A, Error> {
        let run =
            move |file: &Connection, state: &mut State| change(&mut Table::new(file), state.now());
        self.ask(run, true, |error| error).await
    }

    /// There is no other node.
    fn tell(&self, _: Option<Place>) {}

    async fn told(&self) -> Option<Place> {
        self.told.lock().await.recv().await
    }
}
