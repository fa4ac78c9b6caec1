//! Timers inside a transaction of the user's own: they change if and only if that commits.

use crate::durable::Durable;
use crate::entry::{Cancelled, Due, Entry, Error, Scheduled, Touched, When};
use crate::node::batcher::is_locked;
use crate::store::KeyName;
use crate::store::postgres::link::{Ask, Param, slot};
use crate::store::postgres::schema::{On, Schema};
use crate::store::postgres::{Postgres, is_missing, schedule, timers};
use tokio_postgres::Transaction;

/// Waits for a row that somebody has locked: only then it is known whose it is.
const DONE: &str = "DELETE FROM tickwheel.timer
    WHERE slot = $1 AND due = $2 AND id = $3 AND claim = $4 RETURNING id";

impl Durable<Postgres> {
    /// Schedules a timer inside your transaction: it exists if and only if that commits, and not
    /// before. The transaction is one on the same database.
    ///
    /// One that is due before the commit fires soon after it; where the transaction took more than
    /// seconds, up to 40 s after it, and more than ten minutes, up to ten minutes.
    ///
    /// The transaction may be of any isolation level. Takes one round trip.
    ///
    /// # Errors
    /// [`Error::BadName`], [`Error::PayloadTooLong`]; what the database says, as
    /// [`Error::Unavailable`]: roll the transaction back.
    pub async fn schedule_in(
        &self,
        transaction: &Transaction<'_>,
        entry: Entry,
    ) -> Result<Scheduled, Error> {
        let row = self.row(entry)?;
        let answer = schedule::schedule_in(&self.on(transaction), row).await;
        if answer.as_ref().is_err_and(is_missing) {
            self.store().mend().await?; // Not in a transaction for which others would wait.
        }
        let answer = answer?;
        self.count(usize::from(answer != Scheduled::Kept), 0);
        Ok(answer)
    }

    /// Cancels a key's timer inside your transaction, as [`cancel`](Durable::cancel) does: it is
    /// gone if and only if that commits. Until then no handler gets it. Waits for a transaction
    /// that has it locked. Takes two round trips.
    ///
    /// # Errors
    /// As for [`schedule_in`](Self::schedule_in).
    pub async fn cancel_in(
        &self,
        transaction: &Transaction<'_>,
        key: &str,
    ) -> Result<Cancelled, Error> {
        let name = self.lock(transaction, key).await?;
        let answer = timers::cancel(&self.on(transaction), vec![name])
            .await?
            .pop()
            .flatten();
        self.count(
            0,
            usize::from(matches!(answer, Some(Cancelled::Cancelled(_)))),
        );
        answer.ok_or_else(is_locked)
    }

    /// Moves a key's timer inside your transaction, as [`touch`](Durable::touch) does. Until that
    /// ends no handler gets it. Waits for a transaction that has it locked. Takes two round trips.
    ///
    /// # Errors
    /// As for [`schedule_in`](Self::schedule_in).
    pub async fn touch_in(
        &self,
        transaction: &Transaction<'_>,
        key: &str,
        when: impl Into<When>,
    ) -> Result<Touched, Error> {
        let due = self.resolve(when);
        let name = self.lock(transaction, key).await?;
        let on = self.on(transaction);
        timers::touch(&on, vec![(name, due)])
            .await?
            .pop()
            .flatten()
            .ok_or_else(is_locked)
    }

    fn on<'a>(&'a self, transaction: &'a Transaction<'_>) -> On<'a> {
        self.store().connector.schema.on(transaction.client())
    }

    /// Locks a key's timer, if it has one.
    async fn lock(&self, transaction: &Transaction<'_>, key: &str) -> Result<KeyName, Error> {
        let name = self.name(key)?;
        let sql = "SELECT FROM tickwheel.timer WHERE slot = $1 AND key = $2 FOR UPDATE";
        self.on(transaction)
            .ask(sql, &[&slot(name.slot), &key])
            .await?;
        Ok(name)
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
        let (schema, due) = (Schema(self.schema.clone()), self.at.as_micros());
        let claim: [&dyn Param; 4] = [&slot(self.slot), &due, &self.id, &self.token.epoch];
        let deleted = schema.on(transaction.client()).ask(DONE, &claim).await?;
        if deleted.is_empty() {
            Err(Error::Fenced)
        } else {
            Ok(())
        }
    }
}
