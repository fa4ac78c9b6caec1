//! A store in a file: SQLite, for one node.

mod bulk;
mod thread;
mod timers;
mod within;

pub use within::Transaction;

use crate::durable::{Durable, DurableBuilder};
use crate::entry::{Cancelled, DeadTimer, Error, Listed, Paused, Pending, Search, Touched};
use crate::store::sqlite::thread::Job;
use crate::store::{
    Ack, Bars, Bulk, Claim, Claims, First, Hints, KeyName, NewRow, NodeId, Owned, Page, Place,
    Scope, Sealed, Step, Store, StoreTime, Survey, Written,
};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;

/// A store in a file of SQLite, which one process has at a time.
///
/// One thread has the connection; what many callers ask of it at once is committed together, but
/// for each [`transact`](Durable::transact). The file is written ahead and flushed at each commit:
/// what was answered survives a crash of the machine. Its clock is this machine's.
#[derive(Debug)]
pub struct Sqlite {
    /// The thread ends when this is dropped, after what it has been asked.
    jobs: mpsc::Sender<Box<dyn Job>>,
    /// Notified of each timer that the node which rests is told of.
    told: Arc<Notify>,
}

/// A file that [`Durable::sqlite`] opens.
#[derive(Debug)]
pub struct SqliteFile {
    path: PathBuf,
    is_written: bool,
}

impl SqliteFile {
    /// Has it opened to be looked at: it is not written, made or migrated, and each call of the
    /// store that would change something fails. While a node has it open, it is refused, and a node
    /// that is started while somebody looks waits for that, at most five seconds.
    #[must_use]
    pub fn read_only(self) -> Self {
        SqliteFile {
            is_written: false,
            ..self
        }
    }
}

impl Durable<Sqlite> {
    /// Sets up a node whose timers lie in a file. It is made if there is none. A file is one
    /// namespace, and no two nodes have it at a time: the second one is refused. So is a file that
    /// is damaged; to find out, a start reads all of it.
    pub fn sqlite(path: impl Into<PathBuf>) -> DurableBuilder<SqliteFile> {
        DurableBuilder::new(SqliteFile {
            path: path.into(),
            is_written: true,
        })
    }
}

/// The only slot.
const SLOT: u32 = 0;

fn now() -> StoreTime {
    StoreTime::from(SystemTime::now())
}

impl Sealed for Sqlite {}

impl Store for Sqlite {
    fn slots(&self) -> u32 {
        1
    }

    fn slot(&self, _: u64) -> u32 {
        SLOT
    }

    async fn join(&self, node: NodeId, _: Duration) -> Result<(), Error> {
        // The former node has lost its lease: a node joins again only then.
        self.call(move |_, state| {
            (state.member, state.owner) = (Some(node), None);
            Ok(())
        })
        .await
    }

    async fn renew(&self, node: NodeId, _: Duration) -> Result<bool, Error> {
        self.call(move |_, state| Ok(state.member == Some(node)))
            .await
    }

    async fn survey(&self, node: NodeId) -> Result<Survey, Error> {
        self.call(move |_, state| {
            let own = state.owner.filter(|(owner, _)| *owner == node);
            let owned = own.map(|(_, epoch)| Owned { slot: SLOT, epoch });
            let (live, free) = (
                state.member.iter().count(),
                u32::from(state.owner.is_none()),
            );
            let (owned, next_end) = (owned.into_iter().collect(), None);
            Ok(Survey {
                live: live as u32,
                slots: 1,
                owned,
                free,
                next_end,
            })
        })
        .await
    }

    async fn take(&self, node: NodeId, at_most: u32) -> Result<Vec<Owned>, Error> {
        self.call(move |file, state| {
            if state.member != Some(node) || state.owner.is_some() || at_most == 0 {
                return Ok(Vec::new());
            }
            let epoch = thread::next_epoch(file)?;
            state.owner = Some((node, epoch));
            Ok(vec![Owned { slot: SLOT, epoch }])
        })
        .await
    }

    /// Does nothing: there is no other node.
    async fn retire(&self, _: NodeId) -> Result<(), Error> {
        Ok(())
    }

    async fn release(&self, node: NodeId, slots: Vec<Owned>) -> Result<(), Error> {
        self.call(move |_, state| {
            let given = |owner: &(NodeId, i64)| {
                owner.0 == node
                    && slots.contains(&Owned {
                        slot: SLOT,
                        epoch: owner.1,
                    })
            };
            state.owner = state.owner.filter(|owner| !given(owner));
            Ok(())
        })
        .await
    }

    async fn leave(&self, node: NodeId) -> Result<(), Error> {
        self.call(move |_, state| {
            state.member = state.member.filter(|member| *member != node);
            state.rests_until = StoreTime::MIN;
            state.owner = state.owner.filter(|(owner, _)| *owner != node);
            Ok(())
        })
        .await
    }

    async fn rest(&self, _: NodeId, until: StoreTime) -> Result<bool, Error> {
        self.call(move |_, state| {
            state.rests_until = until;
            Ok(true)
        })
        .await
    }

    async fn told(&self, _: NodeId) -> Result<(), Error> {
        self.told.notified().await;
        Ok(())
    }

    async fn first(&self) -> Result<First, Error> {
        self.call(|file, _| {
            Ok(First {
                due: timers::first(file)?,
                open: false,
                now: now(),
            })
        })
        .await
    }

    async fn publish(&self, _: NodeId, horizon: StoreTime) -> Result<(), Error> {
        self.call(move |_, state| {
            state.horizon = horizon;
            Ok(())
        })
        .await
    }

    async fn hints(&self, _: NodeId) -> Result<Hints, Error> {
        self.call(|_, state| {
            Ok(Hints {
                places: std::mem::take(&mut state.hints),
                now: now(),
            })
        })
        .await
    }

    async fn load(&self, page: Page) -> Result<Vec<Place>, Error> {
        self.call(move |file, _| timers::load(file, &page)).await
    }

    async fn schedule(&self, _: NodeId, rows: Vec<NewRow>) -> Result<Vec<Option<Written>>, Error> {
        // The one node knows what it schedules: no hints.
        self.call(move |file, _| {
            rows.into_iter()
                .map(|row| timers::write(file, row).map(Some))
                .collect()
        })
        .await
    }

    async fn cancel(&self, keys: Vec<KeyName>) -> Result<Vec<Option<Cancelled>>, Error> {
        self.call(move |file, _| {
            keys.iter()
                .map(|name| timers::cancel(file, &name.key).map(Some))
                .collect()
        })
        .await
    }

    async fn touch(&self, keys: Vec<(KeyName, StoreTime)>) -> Result<Vec<Option<Touched>>, Error> {
        self.call(move |file, state| {
            let touch = |(name, due): (KeyName, StoreTime)| {
                let (answer, moved) = timers::touch(file, &name.key, due)?;
                moved.into_iter().for_each(|place| state.hint(place));
                Ok(Some(answer))
            };
            keys.into_iter().map(touch).collect()
        })
        .await
    }

    async fn pause(&self, tag: Option<String>, until: Option<StoreTime>) -> Result<(), Error> {
        self.call(move |file, _| timers::pause(file, tag, until).map(drop))
            .await
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        self.call(|file, _| timers::pauses(file)).await
    }

    async fn bulk(&self, scope: Scope, bulk: Bulk, limit: u32) -> Result<Step, Error> {
        self.call(move |file, state| {
            let (step, moved) = bulk::step(file, &scope, bulk, limit)?;
            moved.into_iter().for_each(|place| state.hint(place));
            Ok(step)
        })
        .await
    }

    async fn claim(&self, node: NodeId, claims: Vec<Claim>, crashes: u32) -> Result<Claims, Error> {
        self.call(move |file, state| {
            let mut answer = Claims {
                now: now(),
                ..Claims::default()
            };
            let own = |claim: &Claim| state.owner == Some((node, claim.epoch));
            let now = answer.now;
            for claim in claims
                .into_iter()
                .filter(|it| own(it) && it.place.due <= now)
            {
                timers::claim(file, claim, crashes, &mut answer)?;
            }
            Ok(answer)
        })
        .await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Vec<Claim>, Error> {
        self.call(move |file, _| {
            acks.into_iter()
                .try_for_each(|ack| timers::acknowledge(file, ack, now()))?;
            Ok(Vec::new())
        })
        .await
    }

    async fn get(&self, key: KeyName) -> Result<Option<Pending>, Error> {
        self.call(move |file, _| timers::get(file, &key.key)).await
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.call(move |file, _| timers::list(file, &search)).await
    }

    async fn histogram(&self, bars: Bars) -> Result<Vec<u64>, Error> {
        self.call(move |file, _| timers::histogram(file, bars))
            .await
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.call(move |file, _| timers::dead(file, &search)).await
    }
}
