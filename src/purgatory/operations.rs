//! The operations in a shard of a purgatory: the watchers of its keys, and the records of the
//! operations whose first key is one of them.
//!
//! The record of an operation contains everything that belongs to it: the operation, its state, the
//! spots of its entries, and, in the core, its deadline. This is plain data. No user code is
//! called here except a key's `Eq`, `Clone` and `Drop`: operations go in and come out by value.
//!
//! A record is filed in the wheels when the thread that adds the operation lets go of it. It is no
//! longer filed once its time is up and its alarm is on its way through the executor. Until the
//! alarm arrives, any thread that wins the operation may end it.
//!
//! Invariants, checked by [`Body::assert_operations`] while no operation is being added, and, of
//! the core, by the owner: those of the watchers; each operation has its entries; and exactly the
//! operations whose alarm is not on its way are filed.
//!
//! # The set
//! The set of a purgatory's shards: where an operation is, and how its code is called.
//!
//! ## Locks
//! A key's `Eq`, `Clone` and `Drop` may run under a shard's lock. The code of operations does not:
//! operations are called and dropped outside.
//!
//! # Callbacks
//! The code of operations runs one callback after the other, never one inside another. A callback
//! may complete other operations, whose callbacks complete others, and so on. If each ran inside
//! the one before, a long chain would overflow the stack. So a callback that comes up while another
//! one runs on the same thread is postponed until that one has returned.

use crate::engine::clock::When;
use crate::engine::owner::Set;
use crate::engine::report::{contain, report_panic};
use crate::engine::shard::{Body, Content, Refusal, Shard};
use crate::purgatory::operation::DelayedOperation;
use crate::purgatory::state::{Claim, EndedBy, Errand, Next, OperationState};
use crate::purgatory::wait_queue::Id;
use crate::purgatory::watchers::{Spots, Watchers};
use crate::store::slab::Key;
use crate::store::table::shard_of;
use crate::sync::thread_number;
use crate::timer::entry::Task;
use crate::timer::homes::Homes;
use crate::wheel::bucket::Reference;
use crate::wheel::core::Entry;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem;
use std::sync::Weak;

/// The operations of a shard; see the [module](self).
pub(crate) struct Operations<K, O> {
    pub(crate) watchers: Watchers<K>,
    /// Where the checks are added that are left to the executor.
    pub(crate) homes: Weak<Homes<Task>>,
    /// How many operations have ended, by [`EndedBy`], and how often their code panicked.
    pub(crate) ended: [u64; EndedBy::Withdrawn as usize + 1],
    pub(crate) panicked: u64,
    operations: PhantomData<O>,
}

/// The record of an operation that waits, or is being added.
#[derive(Debug)]
pub(crate) struct Record<O> {
    spots: Spots,
    state: OperationState,
    pub(crate) is_filed: bool,
    /// `None` while a thread holds it.
    operation: Option<O>,
}

impl<K, O> Content for Operations<K, O> {
    type Item = Record<O>;

    fn new() -> Self {
        Operations {
            watchers: Watchers::new(),
            homes: Weak::new(),
            ended: [0; EndedBy::Withdrawn as usize + 1],
            panicked: 0,
            operations: PhantomData,
        }
    }

    fn is_empty(&self) -> bool {
        self.watchers.len == 0
    }

    fn is_filed(record: &Record<O>) -> bool {
        record.is_filed
    }
}

impl<K: Eq + Clone, O> Body<Operations<K, O>> {
    /// Returns the name of no operation, which tells this purgatory from the next one all the same.
    pub(crate) fn nobody(&self) -> Id {
        Id { shard: self.content.watchers.shard, key: self.core.entries.nobody() }
    }

    /// Makes a record for an operation that is being added.
    pub(crate) fn begin(&mut self, deadline: u64) -> Result<Id, Refusal> {
        self.admit()?;
        let record = Record {
            spots: Spots::NONE,
            state: OperationState::adding(),
            is_filed: false,
            operation: None,
        };
        let (key, _) = self.core.insert(deadline, 0, record);
        Ok(Id { shard: self.content.watchers.shard, key })
    }

    /// Stores the spots of an operation's entries, one for each key.
    pub(crate) fn settle(&mut self, key: Key, spots: Spots) {
        self.core.at_mut(key.index).spots = spots;
    }

    /// Hands the operation out so that its condition can be checked, for a trigger or a check that
    /// has arrived from the executor.
    #[inline]
    pub(crate) fn hand_out(
        &mut self,
        key: Key,
        claim: impl Fn(&mut OperationState, bool) -> Claim,
    ) -> Option<O> {
        let expires = !self.closed;
        let record = self.core.item_mut(key)?;
        claim(&mut record.state, expires).won().and_then(|()| record.operation.take())
    }

    /// Asks for a check that the caller does not make. Returns whether the caller has to hand it on
    /// to the executor.
    pub(crate) fn hand_on(&mut self, key: Key) -> bool {
        let expires = !self.closed;
        self.core.item_mut(key).is_some_and(|record| record.state.hand_on(expires))
    }

    /// Releases an operation whose condition its holder found false; the holder gets it back if
    /// something else has to be done with it. The holder says whether it still `may_check` then.
    /// Whoever added it brings its spots, and the present, or zero if it was not read.
    pub(crate) fn release(
        &mut self,
        key: Key,
        operation: O,
        may_check: bool,
        added: Option<(Spots, u64)>,
    ) -> Next<O> {
        let (filing, entry) = self.core.entries.at_mut_with_tag(key.index);
        let Entry { deadline, item: record } = entry;
        let mut now = 0;
        if let Some(added) = added {
            (record.spots, now) = added;
        }
        let was_adding = record.state.is_adding();
        if self.closed && was_adding {
            record.state.end(EndedBy::Cancelled); // It goes back to the thread that adds it.
        }
        let errand = match record.state.release(may_check) {
            Next::CheckAgain(()) => return Next::CheckAgain(operation),
            Next::End(()) => return Next::End(operation),
            Next::LetGo(errand) => errand,
        };
        record.operation = Some(operation);
        let deadline = deadline.get();
        let files_again = errand == Some(Errand::Expire) && !self.closed;
        if !was_adding && !files_again {
            return Next::LetGo(errand);
        }
        record.is_filed = true;
        let tick = self.core.ticks.ceil(deadline);
        if was_adding {
            let reference = Reference { tick: tick as u32, index: key.index, filing };
            self.file_new(reference, tick, (now, deadline));
            Next::LetGo(errand)
        } else {
            let reference = self.core.file_anew(key.index, tick);
            self.file(reference, tick, (0, deadline));
            Next::LetGo(None)
        }
    }

    /// Ends an operation for its holder. Stores the spots of its entries, of which the first is
    /// removed already, in `spots`: returning them would move them once more.
    #[inline]
    pub(crate) fn finish(&mut self, key: Key, wants: EndedBy, spots: &mut Spots) -> EndedBy {
        self.end(key, spots, |record| record.state.finish(wants))
    }

    /// Ends an operation if it is idle; otherwise leaves that to its holder. Returns the spots of
    /// its entries with it, of which the first is removed already.
    pub(crate) fn claim(&mut self, key: Key, wants: EndedBy) -> Claim<(O, Spots)> {
        let Some(record) = self.core.item_mut(key) else { return Claim::Lost };
        let claim = record.state.end(wants);
        let claim = claim.map(|()| record.operation.take().expect("no thread holds it"));
        claim.map(|operation| {
            let mut spots = Spots::NONE;
            self.end(key, &mut spots, |_| wants);
            (operation, spots)
        })
    }

    /// Cancels an operation in the same way, but skips it while it is still being added: then it
    /// counts as added after this call.
    pub(crate) fn cancel_unless_adding(&mut self, key: Key) -> Claim<(O, Spots)> {
        match self.core.item_mut(key) {
            Some(record) if !record.state.is_adding() => self.claim(key, EndedBy::Cancelled),
            _ => Claim::Lost,
        }
    }

    /// Returns whether an operation waits and its end is undecided.
    pub(crate) fn is_pending(&mut self, key: Key) -> bool {
        self.core.item_mut(key).is_some_and(|record| !record.state.is_sealed())
    }

    /// Extends an operation's deadline, unless its time is up or its end is decided.
    pub(crate) fn touch(&mut self, key: Key, when: When) -> bool {
        let Some(context) = self.open_context() else { return false };
        let (now, deadline) = context.resolve(when);
        let now = context.time.or_now(now);
        let is_up = self.core.deadline(key).is_none_or(|deadline| deadline <= now);
        let record = self.core.item_mut(key).filter(|_| !is_up);
        let in_time = record.is_some_and(|record| record.is_filed && record.state.is_in_time());
        if in_time {
            self.core.extend(key.index, deadline);
        }
        in_time
    }

    /// Removes the record of an operation that is out of it, and its entry in this shard; the other
    /// entries are left to the caller.
    #[inline]
    fn end(
        &mut self,
        key: Key,
        spots: &mut Spots,
        decide: impl FnOnce(&mut Record<O>) -> EndedBy,
    ) -> EndedBy {
        let mut ended_by = EndedBy::Cancelled;
        let ended = self.core.entries.remove_if(key.index, |Entry { item: record, .. }| {
            ended_by = decide(record);
            *spots = mem::take(&mut record.spots);
            true
        });
        let ended = ended.expect("who ends an operation holds it");
        if ended_by == EndedBy::Expired {
            let now = self.context().map_or(0, |context| context.time.now());
            self.core.expired(ended, now);
        } else {
            self.core.cancelled(ended);
        }
        self.release_permits(1);
        self.content.ended[ended_by as usize] += 1;
        if let Some(here) = spots.first() {
            self.content.watchers.remove(here);
        }
        ended_by
    }

    /// Removes from a batch those operations of this shard that have ended. It is a loop of its
    /// own, so that their cache misses overlap.
    pub(crate) fn leave_out_ended(&mut self, operations: &mut Vec<Id>) {
        // mutants(()): an ended operation is left out when it is claimed as well.
        let shard = self.content.watchers.shard;
        operations.retain(|id| id.shard != shard || self.is_pending(id.key));
    }

    /// Appends the operations of one part of the records to `out`. Returns whether there are parts
    /// after it.
    pub(crate) fn waiting(&self, part: usize, out: &mut Vec<Id>) -> bool {
        let shard = self.content.watchers.shard;
        let records = self.core.entries.of_chunk(part);
        out.extend(records.map(|(key, _)| Id { shard, key }));
        // mutants(<=): one more part is asked for, and is empty.
        part + 1 < self.core.entries.chunks()
    }

    /// Checks the invariants that the module states. Takes time proportional to the shard.
    pub(crate) fn assert_operations(&self) {
        self.content.watchers.assert_invariants();
        for (_, entry) in self.core.entries.iter() {
            assert!(entry.item.spots.first().is_some(), "who waits has entries");
        }
    }
}

impl<K: Eq + Clone, O> Set<Operations<K, O>> {
    /// Returns the shard of an operation.
    #[inline]
    pub(crate) fn of(&self, id: Id) -> &Shard<Operations<K, O>> {
        self.at(usize::from(id.shard))
    }

    /// Returns the shard of the keys with this hash.
    #[inline]
    pub(crate) fn of_key(&self, hash: u64) -> &Shard<Operations<K, O>> {
        self.at(shard_of(hash, self.len()))
    }

    /// Calls the code of an operation; contains its panic, counts it, and reports it with the
    /// timer's name, unless the shard serves another purgatory by now.
    #[inline]
    pub(crate) fn catch_panic<R>(&self, id: Id, code: impl FnOnce() -> R) -> Option<R> {
        contain(code).map_err(|panic| self.report_panic(id, panic)).ok()
    }

    #[cold]
    fn report_panic(&self, id: Id, panic: Box<dyn Any + Send>) {
        // Not under the lock: a subscriber is the user's code.
        let context = self.of(id).with(|body| {
            let context = body.issuer(id.key);
            body.content.panicked += u64::from(context.is_some());
            context
        });
        report_panic(context.as_ref().map(|context| &*context.name), panic);
    }

    /// Returns the shard in which the calling thread counts, so that threads do not contend.
    fn home(&self) -> &Shard<Operations<K, O>> {
        self.at(thread_number() as usize & (self.len() - 1))
    }

    /// Returns the name of no operation.
    pub(crate) fn nobody(&self) -> Id {
        self.home().with(|body| body.nobody())
    }

    /// Counts the end of an operation that no shard knows, and a panic of its check. Returns the
    /// name of none.
    pub(crate) fn count(&self, ended_by: EndedBy) -> Id {
        self.home().with(|body| {
            body.content.ended[ended_by as usize] += 1;
            body.content.panicked += u64::from(ended_by == EndedBy::Panicked);
            body.nobody()
        })
    }

    /// Calls the code with which an operation ends, and drops the operation: now, or after the
    /// callback that this thread is running.
    pub(crate) fn conclude(&'static self, id: Id, mut operation: O, ended_by: EndedBy)
    where
        O: DelayedOperation,
    {
        call_in_turn(move || {
            self.catch_panic(id, || match ended_by {
                EndedBy::AtOnce | EndedBy::Triggered | EndedBy::Forced => operation.on_complete(),
                EndedBy::Expired => {
                    operation.on_complete();
                    operation.on_expiration();
                }
                EndedBy::Cancelled => operation.on_cancellation(),
                EndedBy::Panicked | EndedBy::Withdrawn => {}
            });
            self.catch_panic(id, || drop(operation));
        });
    }

    /// Removes an ended operation from all its keys but the first.
    #[inline]
    pub(crate) fn leave(&self, spots: &Spots) {
        for spot in spots.others() {
            let shard = self.at(usize::from(spot.shard));
            shard.with(|body| body.content.watchers.remove(spot));
        }
    }
}

type Callback = Box<dyn FnOnce()>;

crate::sync::thread_local! {
    /// How many callbacks this thread runs, or has postponed since it began to.
    static CALLBACKS: Cell<u64> = const { Cell::new(0) };
    static POSTPONED: RefCell<VecDeque<Callback>> = const { RefCell::new(VecDeque::new()) };
}

/// Calls a callback, which does not panic, and then those that were postponed meanwhile; unless
/// this thread runs one: then it is postponed itself.
#[inline]
fn call_in_turn(callback: impl FnOnce() + 'static) {
    let before = CALLBACKS.with(|callbacks| callbacks.replace(callbacks.get() + 1));
    if before > 0 {
        return postpone(callback);
    }
    callback();
    if CALLBACKS.with(Cell::get) > 1 {
        run_postponed();
    }
    CALLBACKS.with(|callbacks| callbacks.set(0));
}

#[cold]
fn run_postponed() {
    while let Some(callback) = next_postponed() {
        callback();
    }
}

/// Takes the next postponed callback. A thread that is so near its end that it has no thread-local
/// storage has postponed none.
fn next_postponed() -> Option<Callback> {
    let next = POSTPONED.try_with(|postponed| {
        let mut postponed = postponed.borrow_mut();
        let next = postponed.pop_front();
        // mutants(>=): from which size on the queue is given back.
        if next.is_none() && postponed.capacity() > 1024 {
            *postponed = VecDeque::new();
        }
        next
    });
    next.ok().flatten()
}

fn postpone(callback: impl FnOnce() + 'static) {
    let mut callback: Option<Callback> = Some(Box::new(callback));
    let _ = POSTPONED.try_with(|postponed| postponed.borrow_mut().extend(callback.take()));
    if let Some(callback) = callback {
        callback();
    }
}
