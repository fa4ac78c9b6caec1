//! What is done to many timers at once, in steps of 1,000.

use crate::durable::Durable;
use crate::entry::{Error, Paused, When, check_name};
use crate::node::Node;
use crate::node::batcher::{BATCH, is_locked, looks};
use crate::store::{Bulk, Scope, Step, Store, StoreTime};

/// Before all timers, in the order in which they are moved.
const FIRST: (u32, i64) = (0, i64::MIN);

impl<S: Store> Durable<S> {
    /// Cancels all timers of a tag that no handler has, 1,000 in a step, and returns how many:
    /// also those that are moved meanwhile. One that is scheduled meanwhile may be among them.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be cancelled by then.
    pub async fn cancel_tag(&self, tag: &str) -> Result<u64, Error> {
        self.steps(Some(tag), Bulk::Cancel).await
    }

    /// Moves all timers of a tag that no handler has to another moment, all to the same, 1,000 in a
    /// step, and returns how many. One that is scheduled meanwhile may be among them. One that runs
    /// meanwhile and is due again is not moved again, unless a transaction has others locked.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be moved by then.
    pub async fn touch_tag(&self, tag: &str, when: impl Into<When>) -> Result<u64, Error> {
        self.steps(Some(tag), Bulk::Touch(self.resolve(when), FIRST))
            .await
    }

    /// Makes a timer that was given up due at once, with no attempts. Returns whether there is one;
    /// one whose key has a timer again stays where it is.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn requeue(&self, id: i64) -> Result<bool, Error> {
        self.inner.node.store.requeue(id).await
    }

    /// Makes all timers that were given up due at once, or all of those with a tag, 1,000 in a
    /// step, as [`requeue`](Self::requeue) does, and returns how many. What is given up after the
    /// call has begun stays so, by the store's clock: none is requeued twice.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be due by then.
    pub async fn requeue_all(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.steps(tag, Bulk::Requeue(self.store().after_the_dead().await?))
            .await
    }

    /// Deletes all timers that were given up, or all of those with a tag, 1,000 in a step, and
    /// returns how many. What is given up after the call has begun stays, by the store's clock.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be deleted by then.
    pub async fn delete_dead(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.steps(tag, Bulk::Delete(self.store().after_the_dead().await?))
            .await
    }

    /// Holds all timers of the namespace, or all of a tag, back until a time, on each node, also
    /// after a restart. One that is due before is not given to a handler, but due then. What a
    /// handler has, or is about to get, goes on. A pause ends up to an eighth of a second later
    /// than is said; one of the same scope replaces it, and of several the last one to end counts.
    ///
    /// Held timers go at the pace of [`catch_up_rate`](crate::DurableBuilder::catch_up_rate), after
    /// those on time; how late that makes them does not count as lateness. Each of them costs a
    /// write when it is due, and nothing else until the pause ends.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel): to ask again is harmless.
    pub async fn pause(&self, tag: Option<&str>, until: impl Into<When>) -> Result<(), Error> {
        self.hold(tag, Some(self.resolve(until).marked()))
            .await
            .map(drop)
    }

    /// Ends a [`pause`](Self::pause) of all timers, or of a tag, and returns how many are let go,
    /// 1,000 in a step. They go at the pace that is said there; one that another pause holds, when
    /// that ends.
    ///
    /// # Errors
    /// As for [`pause`](Self::pause); some may be held until it is asked again.
    pub async fn resume(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.hold(tag, None).await
    }

    /// Lists the pauses that are not over, that of all timers first, and those of tags by these.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        let mut pauses = self.inner.node.store.pauses().await?;
        pauses.sort();
        Ok(pauses)
    }

    async fn hold(&self, tag: Option<&str>, until: Option<StoreTime>) -> Result<u64, Error> {
        tag.map_or(Ok(()), |tag| check_name("tag", tag))?;
        self.check_open()?;
        let Node { store, clock, .. } = &*self.inner.node;
        store.pause(tag.map(str::to_owned), until).await?;
        let to = until.unwrap_or_else(|| clock.latest().marked());
        self.steps(tag, Bulk::Release(to)).await
    }

    /// Does it step by step until none is left, and looks again at those that are locked.
    async fn steps(&self, tag: Option<&str>, mut bulk: Bulk) -> Result<u64, Error> {
        tag.map_or(Ok(()), |tag| check_name("tag", tag))?;
        self.check_open()?;
        let Node {
            store,
            counters,
            timer,
            ..
        } = &*self.inner.node;
        let (mut all, mut pauses) = (0, looks());
        loop {
            let scope = Scope {
                tag: tag.map(str::to_owned),
                id: None,
            };
            let Step { count, more } = store.bulk(scope, bulk, BATCH as u32).await?;
            all += count;
            if bulk == Bulk::Cancel {
                counters.lock().cancelled += count;
            }
            let Some(more) = more else { return Ok(all) };
            if let Bulk::Touch(_, from) = &mut bulk {
                *from = more;
            }
            if count > 0 {
                pauses = looks();
            } else {
                let pause = pauses.next().ok_or_else(is_locked)?;
                timer.sleep(pause).await.map_err(|_| Error::Closed)?;
            }
        }
    }
}
