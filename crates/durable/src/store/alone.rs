//! Stores that have all rows to themselves: their operations are those of [`Rows`].

use crate::entry::{Cancelled, DeadTimer, Error, Listed, Paused, Scheduled, Search, Touched};
use crate::store::rows::Rows;
use crate::store::{
    Ack, Answer, Bulk, Changed, Claims, Look, Name, NewTimer, Operations, Place, Renewal, Step,
    Want,
};
use crate::when::{Moment, StoreTime};
use std::future::Future;
use std::time::Duration;

pub(super) trait Alone: Send + Sync + 'static {
    type Rows<'a>: Rows;

    /// Changes rows in one atomic step. `change` gets the time of the store's clock.
    fn with<A: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Self::Rows<'_>, StoreTime) -> Result<A, Error> + Send + 'static,
    ) -> impl Answer<A>;

    /// Tells other nodes of a row, if the store can have any.
    fn tell(&self, place: Option<Place>);

    /// See [`Operations::told`].
    fn told(&self) -> impl Future<Output = Option<Place>> + Send;
}

impl<S: Alone> Operations for S {
    async fn schedule(
        &self,
        timers: Vec<NewTimer>,
        tell: bool,
    ) -> Result<Changed<Scheduled>, Error> {
        let changed = self.with(|rows, now| rows.schedule(timers, now)).await?;
        self.tell(changed.first.filter(|_| tell));
        Ok(changed)
    }

    async fn cancel(&self, names: Vec<Name>) -> Result<Changed<Cancelled>, Error> {
        self.with(|rows, now| rows.cancel(names, now)).await
    }

    async fn touch(
        &self,
        moves: Vec<(Name, Moment)>,
        tell: bool,
    ) -> Result<Changed<Touched>, Error> {
        let changed = self.with(|rows, now| rows.touch(moves, now)).await?;
        self.tell(changed.first.filter(|_| tell));
        Ok(changed)
    }

    async fn claim(&self, want: Want) -> Result<Claims, Error> {
        self.with(move |rows, now| rows.claim(want, now)).await
    }

    async fn take_over(&self, most: u32, limit: u32, lease: Duration) -> Result<Claims, Error> {
        self.with(move |rows, now| rows.take_over(most, limit, lease, now))
            .await
    }

    async fn look(&self) -> Result<Look, Error> {
        self.with(|rows, now| rows.look(now)).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Result<Changed<bool>, Error> {
        self.with(|rows, now| rows.renew(renewals, now)).await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Changed<bool>, Error> {
        self.with(|rows, now| rows.acknowledge(acks, now)).await
    }

    async fn told(&self) -> Option<Place> {
        Alone::told(self).await
    }

    async fn get(&self, name: Name) -> Result<Option<Listed>, Error> {
        self.with(move |rows, _| rows.get(&name)).await
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.with(move |rows, _| rows.list(&search)).await
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.with(move |rows, _| rows.dead(&search)).await
    }

    async fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> Result<Step, Error> {
        let bulk = move |rows: &mut S::Rows<'_>, now| rows.bulk(&bulk, after.as_ref(), limit, now);
        let step = self.with(bulk).await?;
        self.tell(step.first);
        Ok(step)
    }

    async fn pause(&self, tag: Option<String>, until: Option<Moment>) -> Result<(), Error> {
        self.with(move |rows, now| rows.pause(tag, until.map(|until| until.due(now)), now))
            .await
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        self.with(|rows, now| rows.pauses(now)).await
    }
}
