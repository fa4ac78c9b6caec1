//! What is done to many timers at once, in steps of 1,000.

use crate::durable::Durable;
use crate::entry::{Error, When, check_name};
use crate::node::Node;
use crate::node::batcher::{BATCH, is_locked, looks};
use crate::store::{Bulk, Scope, Store};

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
    /// step, and returns how many. One that is scheduled meanwhile may be among them.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be moved by then.
    pub async fn touch_tag(&self, tag: &str, when: impl Into<When>) -> Result<u64, Error> {
        self.steps(Some(tag), Bulk::Touch(self.resolve(when))).await
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
    /// step, as [`requeue`](Self::requeue) does, and returns how many.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be due by then.
    pub async fn requeue_all(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.steps(tag, Bulk::Requeue).await
    }

    /// Deletes all timers that were given up, or all of those with a tag, 1,000 in a step, and
    /// returns how many.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be deleted by then.
    pub async fn delete_dead(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.steps(tag, Bulk::Delete).await
    }

    /// Does it step by step until none is left, and looks again at those that are locked.
    async fn steps(&self, tag: Option<&str>, bulk: Bulk) -> Result<u64, Error> {
        tag.map_or(Ok(()), check_name)?;
        self.check_open()?;
        let Node { store, counters, timer, .. } = &*self.inner.node;
        let (mut all, mut pauses) = (0, looks());
        loop {
            let scope = Scope { tag: tag.map(str::to_owned), id: None };
            let some = store.bulk(scope, bulk, BATCH as u32).await?;
            all += some.count;
            if bulk == Bulk::Cancel {
                counters.cancelled.add(some.count as usize);
            }
            if !some.more {
                return Ok(all);
            } else if some.count > 0 {
                pauses = looks();
            } else {
                let pause = pauses.next().ok_or_else(is_locked)?;
                timer.sleep(pause).await.map_err(|_| Error::Closed)?;
            }
        }
    }
}
