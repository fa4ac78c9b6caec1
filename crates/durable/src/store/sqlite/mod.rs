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
use crate::entry::{
    Cancelled, DeadTimer, Error, Listed, Paused, Pending, Scheduled, Search, Touched,
};
use crate::store::rows::Rows;
use crate::store::sqlite::thread::Job;
use crate::store::{
    Ack, Bulk, Changed, Claims, Look, Name, NewTimer, Operations, Place, Renewal, Step, Want,
};
use crate::when::{Moment, StoreTime};
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

impl Operations for Sqlite {
    fn space(&self) -> &str {
        &self.space
    }

    async fn schedule(&self, timers: Vec<NewTimer>, _: bool) -> Result<Changed<Scheduled>, Error> {
        self.call(|rows, now| rows.schedule(timers, now)).await
    }

    async fn cancel(&self, names: Vec<Name>) -> Result<Changed<Cancelled>, Error> {
        self.call(|rows, now| rows.cancel(names, now)).await
    }

    async fn touch(&self, moves: Vec<(Name, Moment)>, _: bool) -> Result<Changed<Touched>, Error> {
        self.call(|rows, now| rows.touch(moves, now)).await
    }

    async fn claim(&self, want: Want) -> Result<Claims, Error> {
        self.call(move |rows, now| rows.claim(want, now)).await
    }

    async fn take_over(&self, most: u32, limit: u32, lease: Duration) -> Result<Claims, Error> {
        self.call(move |rows, now| rows.take_over(most, limit, lease, now))
            .await
    }

    async fn look(&self) -> Result<Look, Error> {
        self.call(|rows, now| rows.look(now)).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Result<Changed<bool>, Error> {
        self.call(|rows, now| rows.renew(renewals, now)).await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Changed<bool>, Error> {
        self.call(|rows, now| rows.acknowledge(acks, now)).await
    }

    async fn told(&self) -> Option<Place> {
        self.told.lock().await.recv().await
    }

    async fn get(&self, name: Name) -> Result<Option<Pending>, Error> {
        self.call(move |rows, _| rows.get(&name)).await
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.call(move |rows, _| rows.list(&search)).await
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.call(move |rows, _| rows.dead(&search)).await
    }

    async fn requeue(&self, id: i64) -> Result<Option<Place>, Error> {
        self.call(move |rows, now| rows.requeue(&Name::of_dead(id), now))
            .await
    }

    async fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> Result<Step, Error> {
        self.call(move |rows, now| rows.bulk(&bulk, after.as_ref(), limit, now))
            .await
    }

    async fn pause(&self, tag: Option<String>, until: Option<Moment>) -> Result<(), Error> {
        self.call(move |rows, now| rows.pause(tag, until.map(|until| until.due(now)), now))
            .await
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        self.call(|rows, now| rows.pauses(now)).await
    }

    async fn now(&self) -> Result<StoreTime, Error> {
        self.call(|_, now| Ok(now)).await
    }
}
