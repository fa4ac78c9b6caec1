//! Timers inside a transaction of the user's own.

use crate::answer::Scheduled;
use crate::due::Due;
use crate::durable::Durable;
use crate::entry::Entry;
use crate::error::Error;
use crate::store::postgres::Postgres;
use crate::store::postgres::columns::Claims;
use crate::store::postgres::link::explain;
use crate::store::postgres::schedule::{Rows, SCHEDULE};
use crate::store::{Claim, NodeId};
use tokio_postgres::Transaction;

/// Waits for a row that somebody has locked: only then it is known whose it is.
const DONE: &str = "DELETE FROM tickwheel.timer t
    USING unnest($1, $2, $3, $4) AS i(slot, due, id, epoch)
    WHERE t.slot = i.slot AND t.due = i.due AND t.id = i.id AND t.claim = i.epoch
    RETURNING t.id";

impl Durable<Postgres> {
    /// Schedules a timer inside your transaction: it exists if and only if that commits, and not
    /// before. The transaction is one on the same database.
    ///
    /// One that is due before the commit fires soon after it; where the transaction took more than
    /// seconds, up to 40 s after it, and more than ten minutes, up to ten minutes.
    ///
    /// The transaction may be of any isolation level: whether the timer's slot is served here is
    /// looked up on a connection of the node's own, which sees what has
    /// [moved](crate::Sharded::move_slots) since the transaction began. Takes three round trips.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::PayloadTooLong`]; [`Error::Moved`]: nothing was scheduled; what
    /// the database says, as [`Error::Unavailable`]: roll the transaction back.
    pub async fn schedule_in(
        &self,
        transaction: &Transaction<'_>,
        entry: Entry,
    ) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        // With the lock of one who writes, no slot is closed until the transaction ends. But its
        // own look may be at the past, in which a slot that has moved since is served here.
        let lock = "LOCK TABLE tickwheel.timer IN ROW EXCLUSIVE MODE";
        transaction.batch_execute(lock).await.map_err(explain)?;
        if !self.store().serves(row.place.slot).await? {
            return Err(Error::Moved);
        }
        // Nobody knows of it before the commit: its owner is told by it, this node as well.
        let rows = [row];
        let row = Rows::new(NodeId(0), &rows, None);
        let written = transaction.query_typed(SCHEDULE, &row.params()).await.map_err(explain)?;
        Ok(row.answers(&written)?.pop().flatten().unwrap_or(Scheduled::New))
    }
}

impl Due {
    /// Acknowledges a timer inside your transaction, together with its effect: both are committed,
    /// or neither. Answer [`Outcome::Done`](crate::Outcome::Done) after the commit, and
    /// [`RetryAt`](crate::Outcome::RetryAt) if it failed.
    ///
    /// Until the transaction ends nobody else can run the timer to its end: so its effect happens
    /// once.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the timer is another's by now: roll back. What the database says, as
    /// [`Error::Unavailable`].
    pub async fn ack_in(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let mut claim = Claims::default();
        claim.push(&Claim { place: self.place(), epoch: self.token.epoch });
        let deleted = transaction.query_typed(DONE, &claim.params()).await.map_err(explain)?;
        if deleted.is_empty() { Err(Error::Fenced) } else { Ok(()) }
    }
}
