//! Timers inside a transaction of the user's own: they change if and only if that commits.

use crate::durable::Durable;
use crate::entry::{Cancelled, Due, Entry, Error, Scheduled, Touched, check_name};
use crate::store::postgres::schema::On;
use crate::store::postgres::{Postgres, claims, timers};
use crate::store::{Ending, Name};
use crate::when::When;
use tokio_postgres::Transaction;

impl Durable<Postgres> {
    /// Schedules a timer inside your transaction: the timer exists if and only if the transaction
    /// commits, and not before. The transaction must be on the node's database.
    ///
    /// A timer that is due before the commit fires soon after it. Nodes are told at the commit if
    /// the timer is due within 1.5 s of this call and the server's queue of notices is less than
    /// half full. Otherwise they find the timer up to two seconds after the commit.
    ///
    /// Takes one round trip, and waits for a transaction that has the key locked, up to your
    /// `lock_timeout`. Above `READ COMMITTED`, a key that has changed since the snapshot gives
    /// SQLSTATE 40001, in an [`Error::Unavailable`] with the `tokio_postgres::Error` as its cause:
    /// repeat the transaction.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::PayloadTooLong`]; what the database says:
    /// [`Error::Refused`] of the timer, [`Error::Unavailable`] otherwise, [`Error::Uncertain`] if
    /// the connection is lost. Roll the transaction back.
    pub async fn schedule_in(
        &self,
        transaction: &Transaction<'_>,
        entry: Entry,
    ) -> Result<Scheduled, Error> {
        let timer = entry.timer()?;
        let on = self.on(transaction);
        let changed = timers::write(&on, &[timer], None, true).await?;
        changed.only()
    }

    /// Cancels a key's timer inside your transaction, as [`cancel`](Durable::cancel) does: it is
    /// gone if and only if that commits. Until then no handler gets it. Waits for a transaction
    /// that has it locked. Takes one round trip.
    ///
    /// # Errors
    /// As for [`schedule_in`](Self::schedule_in).
    pub async fn cancel_in(
        &self,
        transaction: &Transaction<'_>,
        key: &str,
    ) -> Result<Cancelled, Error> {
        check_name("key", key)?;
        let names = [Name::of_key(key)];
        let on = self.on(transaction);
        let changed = timers::cancel(&on, &names, true).await?;
        changed.only()
    }

    /// Moves a key's timer inside your transaction, as [`touch`](Durable::touch) does. Until that
    /// ends no handler gets it. Waits for a transaction that has it locked. Takes one round trip.
    ///
    /// # Errors
    /// As for [`schedule_in`](Self::schedule_in).
    pub async fn touch_in(
        &self,
        transaction: &Transaction<'_>,
        key: &str,
        when: impl Into<When>,
    ) -> Result<Touched, Error> {
        check_name("key", key)?;
        let moves = [(Name::of_key(key), when.into().into())];
        let on = self.on(transaction);
        timers::touch(&on, &moves, true, true).await?.only()
    }

    fn on<'a>(&'a self, transaction: &'a Transaction<'_>) -> On<'a> {
        self.store().connector.schema.on(transaction.client())
    }
}

impl Due {
    /// Acknowledges a timer inside your transaction, together with its effect: both are committed,
    /// or neither. Answer [`Outcome::Done`](crate::Outcome::Done) after the commit: another outcome
    /// changes nothing then, and is logged. Answer [`Failed`](crate::Outcome::Failed) or
    /// [`RetryAt`](crate::Outcome::RetryAt) if the transaction failed.
    ///
    /// Until the transaction ends nobody else can run the timer to its end: so its effect happens
    /// once.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the claim is over: roll back. What the database says, as
    /// for [`schedule_in`](Durable::schedule_in). [`Error::Closed`] if the node is gone.
    pub async fn ack_in(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        self.end_in(transaction, Ending::Done).await
    }

    /// Acknowledges a timer as [`ack_in`](Self::ack_in) does, and makes it due again with this
    /// payload, as [`Outcome::Again`](crate::Outcome::Again) does: not if it was cancelled while
    /// this handler had it, and a timer of its key that waits takes its place. The next run may
    /// begin beside this handler on another node: return soon after the commit.
    ///
    /// # Errors
    /// As for [`ack_in`](Self::ack_in); [`Error::PayloadTooLong`].
    pub async fn again_in(
        &self,
        transaction: &Transaction<'_>,
        when: impl Into<When>,
        payload: impl Into<Vec<u8>>,
    ) -> Result<(), Error> {
        let again = Ending::again(when.into(), payload.into())?;
        self.end_in(transaction, again).await
    }

    async fn end_in(&self, transaction: &Transaction<'_>, ending: Ending) -> Result<(), Error> {
        let node = self.node::<Postgres>().ok_or(Error::Closed)?;
        let on = node.on(transaction);
        let ended = claims::acknowledge(&on, &[self.ack(ending)], true).await?;
        match ended.only()? {
            true => Ok(()),
            false => Err(Error::Fenced),
        }
    }
}
