//! A store in memory that fails.

use crate::entry::{Cancelled, DeadTimer, Error, Listed, Paused, Scheduled, Search, Touched};
use crate::store::memory::Memory;
use crate::store::{
    Ack, Bulk, Changed, Claims, Look, Name, NewTimer, Operations, Place, Renewal, Step, Want,
};
use crate::sync::{Mutex, lock};
use crate::when::Moment;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::Timer;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Refused,
    Unreachable,
    /// It is done, and its answer is lost.
    LostAnswer,
    /// It is lost itself.
    Lost,
    /// It is done, and its answer takes so long.
    Late(Duration),
    /// It is done after so long, as by a pooler that keeps it.
    Kept(Duration),
}

/// Draws the fault of a call, if any.
type Draw = Box<dyn FnMut(&'static str) -> Option<Fault> + Send>;
type Refuses = Box<dyn Fn(&Ack) -> Option<Error> + Send + Sync>;

/// A node's view of a store: the faults are its own, the timers are not.
#[derive(Clone)]
pub(crate) struct Faulty {
    pub(super) memory: Memory,
    pub(super) timer: Timer,
    pub(super) faults: Arc<Mutex<HashMap<&'static str, VecDeque<Fault>>>>,
    pub(crate) draw: Arc<Mutex<Option<Draw>>>,
    /// Which acknowledgements fail, each time.
    pub(super) refuses: Arc<Mutex<Option<Refuses>>>,
    /// The name whose renewal fails, each time.
    pub(super) spoilt: Arc<Mutex<Option<Name>>>,
    /// Names that a transaction has locked.
    pub(super) locked: Arc<Mutex<Vec<Name>>>,
    pub(super) calls: Arc<Mutex<HashMap<&'static str, u64>>>,
}

impl Faulty {
    pub(crate) fn new(memory: &Memory, timer: &Timer) -> Self {
        Faulty {
            memory: memory.clone(),
            timer: timer.clone(),
            faults: Arc::default(),
            draw: Arc::default(),
            refuses: Arc::default(),
            spoilt: Arc::default(),
            locked: Arc::default(),
            calls: Arc::default(),
        }
    }

    pub(super) fn inject(&self, operation: &'static str, fault: Fault, times: usize) {
        let mut faults = lock(&self.faults);
        let of_it = faults.entry(operation).or_default();
        of_it.extend(std::iter::repeat_n(fault, times));
    }

    pub(super) fn calls(&self, operation: &'static str) -> u64 {
        lock(&self.calls).get(operation).copied().unwrap_or(0)
    }

    async fn call<A>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<A, Error>>,
    ) -> Result<A, Error> {
        *lock(&self.calls).entry(operation).or_default() += 1;
        let injected = lock(&self.faults)
            .get_mut(operation)
            .and_then(VecDeque::pop_front);
        let fault = injected.or_else(|| lock(&self.draw).as_mut()?(operation));
        match fault {
            None => call.await,
            Some(Fault::Refused) => Err(refused()),
            Some(Fault::Unreachable) => Err(Error::unavailable("unreachable")),
            Some(Fault::Lost) => Err(Error::uncertain("lost")),
            Some(Fault::LostAnswer) => {
                call.await?;
                Err(Error::uncertain("the answer is lost"))
            }
            Some(Fault::Kept(by)) => {
                let _ = self.timer.sleep(by).await;
                call.await
            }
            Some(Fault::Late(by)) => {
                let answer = call.await;
                let _ = self.timer.sleep(by).await;
                answer
            }
        }
    }

    /// Leaves out of a batch what is locked.
    async fn unlocked<R, A, F: Future<Output = Result<Changed<A>, Error>>>(
        &self,
        batch: Vec<R>,
        name: impl Fn(&R) -> &Name,
        call: impl FnOnce(Vec<R>) -> F,
    ) -> Result<Changed<A>, Error> {
        let locked = lock(&self.locked).clone();
        let is_free: Vec<bool> = batch.iter().map(|it| !locked.contains(name(it))).collect();
        let mut free = is_free.iter();
        let batch = batch
            .into_iter()
            .filter(|_| *free.next().unwrap())
            .collect();
        let mut changed = call(batch).await?;
        let mut answers = changed.answers.into_iter();
        let answer = |free: bool| free.then(|| answers.next().flatten()).flatten();
        changed.answers = is_free.into_iter().map(answer).collect();
        Ok(changed)
    }
}

pub(super) fn refused() -> Error {
    let cause: Box<dyn std::error::Error + Send + Sync> = "refused".into();
    Error::Refused(Arc::from(cause))
}

impl Operations for Faulty {
    async fn schedule(
        &self,
        timers: Vec<NewTimer>,
        tell: bool,
    ) -> Result<Changed<Scheduled>, Error> {
        let call = |some| self.memory.schedule(some, tell);
        self.call("schedule", self.unlocked(timers, |it| &it.name, call))
            .await
    }

    async fn cancel(&self, names: Vec<Name>) -> Result<Changed<Cancelled>, Error> {
        let call = |some| self.memory.cancel(some);
        self.call("cancel", self.unlocked(names, |it| it, call))
            .await
    }

    async fn touch(
        &self,
        moves: Vec<(Name, Moment)>,
        tell: bool,
    ) -> Result<Changed<Touched>, Error> {
        let call = |some| self.memory.touch(some, tell);
        self.call("touch", self.unlocked(moves, |it| &it.0, call))
            .await
    }

    async fn claim(&self, want: Want) -> Result<Claims, Error> {
        self.call("claim", self.memory.claim(want)).await
    }

    async fn take_over(&self, most: u32, limit: u32, lease: Duration) -> Result<Claims, Error> {
        let call = self.memory.take_over(most, limit, lease);
        self.call("take_over", call).await
    }

    async fn look(&self) -> Result<Look, Error> {
        self.call("look", self.memory.look()).await
    }

    async fn renew(&self, renewals: Vec<Renewal>) -> Result<Changed<bool>, Error> {
        let spoilt = lock(&self.spoilt).clone();
        if renewals.iter().any(|it| Some(&it.name) == spoilt.as_ref()) {
            return Err(refused());
        }
        let call = |some| self.memory.renew(some);
        self.call("renew", self.unlocked(renewals, |it| &it.name, call))
            .await
    }

    async fn acknowledge(&self, acks: Vec<Ack>) -> Result<Changed<bool>, Error> {
        let error = lock(&self.refuses)
            .as_ref()
            .and_then(|refuses| acks.iter().find_map(refuses));
        if let Some(error) = error {
            return self.call("refused", async { Err(error) }).await;
        }
        let call = |some| self.memory.acknowledge(some);
        self.call("acknowledge", self.unlocked(acks, |it| &it.name, call))
            .await
    }

    async fn told(&self) -> Option<Place> {
        self.memory.told().await
    }

    async fn get(&self, name: Name) -> Result<Option<Listed>, Error> {
        self.memory.get(name).await
    }

    async fn list(&self, search: Search) -> Result<Vec<Listed>, Error> {
        self.memory.list(search).await
    }

    async fn dead(&self, search: Search) -> Result<Vec<DeadTimer>, Error> {
        self.memory.dead(search).await
    }

    async fn bulk(&self, bulk: Bulk, after: Option<Name>, limit: u32) -> Result<Step, Error> {
        self.call("bulk", self.memory.bulk(bulk, after, limit))
            .await
    }

    async fn pause(&self, tag: Option<String>, until: Option<Moment>) -> Result<(), Error> {
        self.call("pause", self.memory.pause(tag, until)).await
    }

    async fn pauses(&self) -> Result<Vec<Paused>, Error> {
        self.memory.pauses().await
    }
}
