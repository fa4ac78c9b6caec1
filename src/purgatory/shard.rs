//! A shard of a purgatory: the watchers of its keys, the operations whose first key is one of them,
//! and the wheels that contain these operations.
//!
//! The record of an operation contains everything that belongs to it: the operation, its state, the
//! places of its entries, and, in the core, its deadline. This is plain data, which its
//! [owner](crate::purgatory::registration) keeps behind a lock. No user code is called here except
//! a key's `Eq`, `Clone` and `Drop`: operations go in and come out by value.
//!
//! A record is filed in the wheels when the thread that adds the operation lets go of it. It is no
//! longer filed once it was *handed*: the operation has expired, and its alarm is on its way
//! through the executor. Until the alarm arrives, any thread that wins the operation may end it.
//!
//! Invariants, checked by [`Shard::assert_invariants`] while no operation is being added: those of
//! the watchers and of the core, where exactly the operations that were not handed are filed; and
//! each operation has its entries.

use crate::purgatory::place::{Id, Places};
use crate::purgatory::service::Service;
use crate::purgatory::state::{Claim, EndedBy, Errand, Next, OperationState};
use crate::purgatory::watchers::Watchers;
use crate::store::key::Key;
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::Wakes;
use crate::timer::entry::Task;
use crate::timer::homes::Homes;
use crate::timer::owner::Queued;
use crate::timer::shard::Refusal;
use crate::wheel::bucket::Reference;
use crate::wheel::bucket_queue::Expiration;
use crate::wheel::core::{Core, Entry};
use crate::wheel::wheels::Wheels;
use crate::work;
use std::mem;
use std::sync::Arc;

/// A shard of a purgatory; see the [module](self).
pub(crate) struct Shard<K, O> {
    number: u16,
    pub(crate) watchers: Watchers<K>,
    pub(crate) core: Core<Delayed<O>>,
    /// The purgatory that it serves; `None` while it serves none.
    pub(crate) service: Option<Service>,
    /// Set by a shutdown of the purgatory or of its timer: from then on nothing can be added, and
    /// nothing is filed.
    pub(crate) closed: bool,
    /// How many operations have ended, by [`EndedBy`], and how often their code panicked.
    pub(crate) ended: [u64; EndedBy::COUNT],
    pub(crate) panicked: u64,
}

/// The record of an operation that waits, or is being added.
#[derive(Debug)]
pub(crate) struct Delayed<O> {
    places: Places,
    /// The number under which the operation has to be filed for the first time.
    filing: u32,
    state: OperationState,
    is_filed: bool,
    /// `None` while a thread holds it.
    operation: Option<O>,
}

/// The remains of an ended operation: the operation itself, unless its holder has it, and the
/// places of its entries, of which the first is removed already.
pub(crate) struct Ended<O> {
    pub(crate) operation: Option<O>,
    pub(crate) places: Places,
}

impl<K, O> Shard<K, O> {
    /// Returns the context, if the shard still serves the purgatory that this operation was in.
    pub(crate) fn context_of(&self, key: Key) -> Option<&Arc<TimerContext>> {
        let service = self.service.as_ref().filter(|_| self.core.entries.has_issued(key));
        service.map(|service| &service.context)
    }

    /// Returns the name of no operation, which tells this purgatory from the next one all the same.
    pub(crate) fn nobody(&self) -> Id {
        Id { shard: self.number, key: self.core.entries.nobody() }
    }
}

impl<K: Eq + Clone, O> Shard<K, O> {
    /// Creates a shard that serves no purgatory.
    pub(crate) fn new(number: u16) -> Self {
        Shard {
            number,
            watchers: Watchers::new(number),
            core: Core::idle(),
            service: None,
            closed: true,
            ended: [0; EndedBy::COUNT],
            panicked: 0,
        }
    }

    /// Begins to serve a purgatory; the shard must be free.
    pub(crate) fn serve(&mut self, service: Service, wheels: Wheels) {
        let ticks = service.context.time.ticks;
        self.restart(Core::new(ticks, wheels));
        self.service = Some(service);
        self.closed = false;
    }

    /// Gives back what the shard holds for its purgatory, which is gone. While a thread is still
    /// checking an operation, the shard keeps what that operation needs to leave. Returns the
    /// values that the caller has to drop without a lock.
    pub(crate) fn retire(&mut self) -> Option<Arc<Homes<Task>>> {
        let closures = self.service.as_mut().and_then(|service| service.closures.take());
        if self.is_free() {
            self.restart(Core::idle());
            self.service = None;
        }
        closures
    }

    fn restart(&mut self, core: Core<Delayed<O>>) {
        drop(self.core.restart(core));
        self.watchers = Watchers::new(self.number);
        (self.ended, self.panicked) = ([0; EndedBy::COUNT], 0);
    }

    /// Returns whether the shard is closed and empty.
    pub(crate) fn is_free(&self) -> bool {
        self.closed && self.core.len() == 0 && self.watchers.len() == 0
    }

    /// Makes a record for an operation that is being added.
    pub(crate) fn begin(&mut self, context: &TimerContext, deadline: u64) -> Result<Id, Refusal> {
        if self.closed {
            return Err(Refusal::Closed);
        }
        if context.limit.as_ref().is_some_and(|limit| !limit.acquire()) {
            return Err(Refusal::Full);
        }
        let record = Delayed {
            places: Places::NONE,
            filing: 0,
            state: OperationState::adding(),
            is_filed: false,
            operation: None,
        };
        let (key, reference) = self.core.insert(deadline, 0, record);
        self.core.at_mut(key.index).filing = reference.filing;
        Ok(Id { shard: self.number, key })
    }

    /// Stores the places of an operation's entries, one for each key.
    pub(crate) fn settle(&mut self, key: Key, places: Places) {
        self.held(key).places = places;
    }

    /// Hands the operation out so that its condition can be checked.
    #[inline]
    pub(crate) fn trigger(&mut self, key: Key) -> Option<O> {
        let expires = !self.closed;
        self.hand_out(key, |state| state.trigger(expires))
    }

    /// Asks for a check that the caller does not make. Returns whether the caller has to hand it on
    /// to the executor.
    pub(crate) fn hand_on(&mut self, key: Key) -> bool {
        let expires = !self.closed;
        self.core.task_mut(key).is_some_and(|delayed| delayed.state.hand_on(expires))
    }

    /// Hands the operation out for a check that was handed to the executor and has arrived.
    pub(crate) fn arrive(&mut self, key: Key) -> Option<O> {
        let expires = !self.closed;
        self.hand_out(key, |state| state.arrive(expires))
    }

    #[inline]
    fn hand_out(&mut self, key: Key, claim: impl Fn(&mut OperationState) -> Claim) -> Option<O> {
        let delayed = self.core.task_mut(key)?;
        if claim(&mut delayed.state) == Claim::Won { delayed.operation.take() } else { None }
    }

    /// Releases an operation whose condition its holder found false; the holder gets it back if
    /// something else has to be done with it. Also returns which sleepers to wake.
    pub(crate) fn release(
        &mut self,
        key: Key,
        operation: O,
        may_check: bool,
    ) -> (Next, Option<O>, Wakes) {
        let Shard { core, service: Some(Service { context, .. }), closed, .. } = self else {
            return (Next::LetGo(None), Some(operation), Wakes::Nobody);
        };
        let Entry { deadline, task: delayed } = core.entries.at_mut(key.index);
        let was_adding = delayed.state.is_adding();
        if *closed && was_adding {
            delayed.state.withdraw();
        }
        let next = delayed.state.release(may_check);
        if let Next::Keep(_) = next {
            return (next, Some(operation), Wakes::Nobody);
        }
        delayed.operation = Some(operation);
        let expires = next == Next::LetGo(Some(Errand::Expire));
        if was_adding {
            delayed.is_filed = true;
            let (filing, deadline) = (delayed.filing, deadline.get());
            let tick = context.time.ticks.ceil(deadline);
            let reference = Reference { tick: tick as u32, index: key.index, filing };
            (next, None, context.file_new(core, reference, tick, None, deadline))
        } else if expires && !*closed {
            (Next::LetGo(None), None, self.file_elapsed(key))
        } else {
            (next, None, Wakes::Nobody)
        }
    }

    /// Files the record of an expired operation again.
    fn file_elapsed(&mut self, key: Key) -> Wakes {
        let Shard { core, service: Some(Service { context, .. }), .. } = self else {
            return Wakes::Nobody;
        };
        core.at_mut(key.index).is_filed = true;
        let tick = core.ticks.ceil(core.deadline_at(key.index));
        let reference = core.file_anew(key.index, tick);
        let mut wakes = Wakes::Nobody;
        let arm = |bucket| wakes = context.delay_queue.offer(bucket);
        core.wheels.file_elapsed(reference, tick, arm);
        wakes
    }

    /// Ends an operation for its holder. Returns the places of its entries, of which the first is
    /// removed already.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, wants: EndedBy) -> (EndedBy, Places) {
        let held = self.held(key);
        let (ended_by, places) = (held.state.finish(wants), mem::take(&mut held.places));
        self.end(key, ended_by, &places);
        (ended_by, places)
    }

    /// Returns the record of an operation that the caller holds, so that it must exist.
    fn held(&mut self, key: Key) -> &mut Delayed<O> {
        self.core.at_mut(key.index)
    }

    /// Ends an operation if it is idle; otherwise leaves that to its holder.
    pub(crate) fn claim(&mut self, key: Key, wants: EndedBy) -> (Claim, Option<Ended<O>>) {
        let Some(delayed) = self.core.task_mut(key) else { return (Claim::Lost, None) };
        let claim = delayed.state.end(wants);
        if claim != Claim::Won {
            return (claim, None);
        }
        let places = mem::take(&mut delayed.places);
        let operation = delayed.operation.take();
        self.end(key, wants, &places);
        (claim, Some(Ended { operation, places }))
    }

    /// Cancels an operation in the same way, but skips it while it is still being added: then it
    /// counts as added after this call.
    pub(crate) fn cancel_unless_adding(&mut self, key: Key) -> (Claim, Option<Ended<O>>) {
        match self.core.task_mut(key) {
            Some(delayed) if !delayed.state.is_adding() => self.claim(key, EndedBy::Cancelled),
            _ => (Claim::Lost, None),
        }
    }

    /// Returns whether an operation waits and its end is undecided.
    pub(crate) fn is_pending(&mut self, key: Key) -> bool {
        self.core.task_mut(key).is_some_and(|delayed| !delayed.state.is_sealed())
    }

    /// Removes a record, which is empty, and its entry in this shard; the other entries are left to
    /// the caller.
    #[inline]
    fn end(&mut self, key: Key, ended_by: EndedBy, places: &Places) {
        let Shard { core, service: Some(Service { context, .. }), .. } = self else { return };
        if ended_by == EndedBy::Expired {
            drop(core.expire(key.index, context.time.now()));
        } else {
            drop(core.cancel(key));
        }
        // Under the lock: a thread that finds the operation gone also finds its permit free.
        context.release_permits(1);
        self.ended[ended_by as usize] += 1;
        if let Some(here) = places.first() {
            self.watchers.remove(here);
        }
    }

    /// Removes from a batch those operations of this shard that have ended. It is a loop of its
    /// own, so that their cache misses overlap.
    pub(crate) fn leave_out_ended(&mut self, operations: &mut Vec<Id>) {
        // mutants(()): an ended operation is left out when it is claimed as well.
        work::count(operations.len());
        operations.retain(|id| id.shard != self.number || self.is_pending(id.key));
    }

    /// Appends the operations of one part of the records to `out`. Returns whether there are parts
    /// after it.
    pub(crate) fn waiting(&self, part: usize, out: &mut Vec<Id>) -> bool {
        let shard = self.number;
        let records = self.core.entries.of_chunk(part);
        out.extend(records.map(|(key, _)| Id { shard, key }));
        // mutants(<=): one more part is asked for, and is empty.
        part + 1 < self.core.entries.chunks()
    }

    /// Flushes a batch of a bucket that was polled under the shard's lock. Calls `hand` with the
    /// name of each expired operation; after a shutdown nothing expires any more. Returns which
    /// sleepers to wake.
    pub(crate) fn flush(
        &mut self,
        context: &TimerContext,
        due: (Expiration, u64),
        armed: &mut Vec<Expiration>,
        mut hand: impl FnMut(Key),
    ) -> Wakes {
        let closed = self.closed;
        context.flush_in_place(&mut self.core, due, armed, |name, delayed| {
            delayed.is_filed = false;
            if !closed {
                hand(name);
            }
        })
    }

    /// Checks the invariants that the module states. Takes time proportional to the shard.
    pub(crate) fn assert_invariants(&self, queued: Option<&Queued>) {
        self.watchers.assert_invariants();
        if let Some(queued) = queued {
            let is_queued = |shard, id| queued.get(&(shard, id)).copied().unwrap_or(0);
            self.core.assert_invariants(is_queued, |delayed| delayed.is_filed);
        }
        for (_, entry) in self.core.entries.iter() {
            assert!(entry.task.places.first().is_some(), "who waits has entries");
        }
    }
}
