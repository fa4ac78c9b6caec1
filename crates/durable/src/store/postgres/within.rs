//! Timers inside a transaction of the user's own: they change if and only if that commits.

use crate::durable::Durable;
use crate::entry::{Cancelled, Due, Entry, Error, Scheduled, Touched, check_name};
use crate::store::postgres::schema::On;
use crate::store::postgres::{Postgres, claims, timers};
use crate::store::{Ack, Ending, Name, Operations};
use crate::when::When;
use tokio_postgres::Transaction;

impl Durable<Postgres> {
    /// Schedules a timer inside your transaction: it exists if and only if that commits, and not
    /// before. The transaction is one on the same database.
    ///
    /// One that is due before the commit fires soon after it. If nodes were not told of it, because
    /// the transaction took longer than a second or the server's queue of notices was half full,
    /// that takes up to two seconds.
    ///
    /// The transaction may be of any isolation level. Above `READ COMMITTED` it fails with the
    /// database's 40001 if the key has changed since its snapshot: repeat it. Takes one round trip.
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
        let space = self.store().space();
        let answer = timers::schedule_in(&self.on(transaction), space, timer).await?;
        self.count(answer != Scheduled::Kept, false);
        Ok(answer)
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
        let name = Name::of_key(key);
        let answer = timers::cancel_in(&self.on(transaction), self.store().space(), name).await?;
        self.count(false, matches!(answer, Cancelled::Cancelled(_)));
        Ok(answer)
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
        let name = Name::of_key(key);
        let moment = when.into().into();
        timers::touch_in(&self.on(transaction), self.store().space(), name, moment).await
    }

    fn on<'a>(&'a self, transaction: &'a Transaction<'_>) -> On<'a> {
        self.store().connector.schema.on(transaction.client())
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
    /// for [`schedule_in`](Durable::schedule_in). [`Error::Closed`] if the node is gone.
    pub async fn ack_in(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let node = self.node::<Postgres>().ok_or(Error::Closed)?;
        let ack = Ack {
            name: Name(self.name.clone()),
            token: self.token,
            ending: Ending::Done,
        };
        match claims::acknowledge_in(&node.on(transaction), &self.space, ack).await? {
            true => Ok(()),
            false => Err(Error::Fenced),
        }
    }
}
