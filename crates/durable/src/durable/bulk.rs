//! Changes of many timers at once, in steps of 1,000.

use crate::durable::Durable;
use crate::entry::{Error, Paused, check_name};
use crate::node::batcher::{BATCH, locked_error, retry_pauses};
use crate::store::{Bulk, Store};
use crate::when::{Moment, When};
use std::time::Duration;

impl<S: Store> Durable<S> {
    /// Cancels all timers of a tag that no handler has, 1,000 in a step, and returns their number.
    /// A timer that is moved meanwhile is cancelled as well. A timer that is scheduled meanwhile
    /// may be. A timer that a handler has may be due again after that run: to end all timers of a
    /// tag, repeat the call until [`list`](Self::list) has none of them.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be cancelled by then.
    pub async fn cancel_tag(&self, tag: &str) -> Result<u64, Error> {
        let cancelled = self.steps(Bulk::Cancel(tag.to_owned())).await?;
        self.inner.node.count().cancelled += cancelled;
        Ok(cancelled)
    }

    /// Moves all timers of a tag that no handler has to one moment, 1,000 in a step, and returns
    /// their number. [`When::Spread`] draws one moment for all of them. A timer that is scheduled
    /// meanwhile may be moved.
    ///
    /// The call starts over if other transactions had timers locked. Then a timer that has fired
    /// and is due again is moved twice, and a timer that has ended meanwhile is not counted.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be moved by then.
    pub async fn touch_tag(&self, tag: &str, when: impl Into<When>) -> Result<u64, Error> {
        self.steps(Bulk::Touch(tag.to_owned(), when.into().into()))
            .await
    }

    /// Makes a dead timer due at once, with no attempts. Returns `false` if no dead timer has this
    /// id, or if its key has a timer again: then the dead timer stays dead.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel).
    pub async fn requeue(&self, id: i64) -> Result<bool, Error> {
        Ok(self.steps(Bulk::RequeueOne(id)).await? > 0)
    }

    /// Makes all dead timers due at once, or those of a tag, 1,000 in a step, as
    /// [`requeue`](Self::requeue) does. Returns their number. A timer that dies meanwhile may be
    /// requeued as well.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel), and [`Error::Unavailable`] while another transaction
    /// inserts the key of a dead timer; some may be due by then.
    pub async fn requeue_all(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.steps(Bulk::Requeue(tag.map(str::to_owned))).await
    }

    /// Deletes all dead timers, or those of a tag, 1,000 in a step, and returns their number. A
    /// timer that dies meanwhile may be deleted as well.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel); some may be deleted by then.
    pub async fn delete_dead(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.steps(Bulk::Delete(tag.map(str::to_owned))).await
    }

    /// Holds all timers of the namespace, or those of a tag, until a time. The pause is in the
    /// store: it holds on all nodes, and after a restart. A timer that is due before that time is
    /// due at the end of the pause instead. A timer that several pauses hold waits for the last of
    /// them. A new pause of all timers, or of a tag, replaces the former one.
    ///
    /// A handler that has a timer goes on. If its node dies, the timer runs again in spite of the
    /// pause. A claim that is under way as the pause begins may still call handlers.
    ///
    /// A held timer costs one write when it is due, or soon after if many are due at once, and
    /// nothing else until the pause ends. A call that replaces a pause writes the timers that the
    /// pause has put off twice. The time of the pause does not count as the lateness of timers that
    /// were put off. Each claim reads all present pauses: a thousand of them are many.
    ///
    /// # Errors
    /// As for [`cancel`](Self::cancel), but the pause may be set already: repeat the call.
    pub async fn pause(&self, tag: Option<&str>, until: impl Into<When>) -> Result<(), Error> {
        self.hold(tag, Some(until.into().into())).await.map(drop)
    }

    /// Ends a [`pause`](Self::pause) of all timers, or of a tag, and returns how many timers the
    /// pause had put off, 1,000 in a step. Timers that another pause holds are counted, and put off
    /// again. Timers that have just become due may fire a second later. If the call is dropped, or
    /// its process dies, some timers are still held though [`pauses`](Self::pauses) lists no pause:
    /// repeat the call.
    ///
    /// # Errors
    /// As for [`pause`](Self::pause); some timers may still be held: repeat the call.
    pub async fn resume(&self, tag: Option<&str>) -> Result<u64, Error> {
        self.hold(tag, None).await
    }

    /// Lists the present pauses: the pause of all timers first, then those of tags, in the order of
    /// the tags.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        let mut pauses = self.store().pauses().await?;
        pauses.sort();
        Ok(pauses)
    }

    /// Sets or ends a pause, and releases the timers that the former one has put off.
    async fn hold(&self, tag: Option<&str>, until: Option<Moment>) -> Result<u64, Error> {
        self.check(tag)?;
        let tag = tag.map(str::to_owned);
        self.store().pause(tag.clone(), until).await?;
        self.steps(Bulk::Release(tag)).await
    }

    fn check(&self, tag: Option<&str>) -> Result<(), Error> {
        if let Some(tag) = tag {
            check_name("tag", tag)?;
        }
        self.check_open()
    }

    /// Makes a change step by step, and starts over while rows are locked.
    async fn steps(&self, mut bulk: Bulk) -> Result<u64, Error> {
        self.check(bulk.tag())?;
        let node = &self.inner.node;
        let mut pauses = retry_pauses();
        let mut all = 0;
        loop {
            let mut count = 0;
            let mut locked = false;
            let mut after = None;
            loop {
                let step = node.store.bulk(bulk.clone(), after, BATCH as u32).await?;
                node.agenda.note_change();
                node.note(step.now, step.first);
                if let Bulk::Touch(_, moment) = &mut bulk {
                    // "In an hour" means one moment, however long the steps take.
                    moment.at = moment.due(step.now);
                    moment.after = Duration::ZERO;
                }
                count += step.count;
                locked |= step.locked;
                after = step.more;
                if after.is_none() {
                    break;
                }
            }
            // A move finds moved timers again when it starts over; other changes do not.
            match bulk {
                Bulk::Touch(..) => all = count,
                _ => all += count,
            }
            if !locked {
                return Ok(all);
            }
            let pause = pauses.next().ok_or_else(locked_error)?;
            node.timer.sleep(pause).await.map_err(|_| Error::Closed)?;
        }
    }
}
