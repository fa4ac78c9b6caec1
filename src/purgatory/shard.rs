//! A shard of a purgatory: the watchers of its keys, and the records of the operations whose first
//! key is one of them.
//!
//! Each has a lock, under which all of this happens. Nothing is called here but a key's `Eq`,
//! `Clone` and `Drop`: operations go in and come out by value.
//!
//! Invariants, checked by [`Shard::assert_invariants`] while no operation is being added: those of
//! the watchers, and an operation that waits has its entries, and one that does not has none.

use crate::purgatory::delayed::{Content, Delayed};
use crate::purgatory::entries::{Begin, Visit};
use crate::purgatory::place::{Id, Place, Places};
use crate::purgatory::state::{Claim, EndedBy, Next, State};
use crate::purgatory::watchers::Watchers;
use crate::store::key::Key;
use crate::store::slab::Slab;
use crate::timer::timeout::Timeout;
use crate::work;
use std::borrow::Borrow;
use std::mem;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Shard<K, O> {
    number: u16,
    watchers: Watchers<K>,
    operations: Slab<Delayed<O>>,
    /// Set by shutdown: from then on nothing comes in.
    closed: bool,
    /// Operations that wait.
    delayed: usize,
    /// How many ended, by [`EndedBy`].
    ended: [u64; EndedBy::COUNT],
}

impl<K: Eq + Clone, O> Shard<K, O> {
    pub(crate) fn new(number: u16) -> Self {
        Shard {
            number,
            watchers: Watchers::new(number),
            operations: Slab::new(),
            closed: false,
            delayed: 0,
            ended: [0; EndedBy::COUNT],
        }
    }

    /// Makes a record for an operation that is being added; not after shutdown.
    pub(crate) fn begin(&mut self) -> Option<Id> {
        if self.closed {
            return None;
        }
        self.delayed += 1;
        Some(Id { shard: self.number, key: self.operations.insert(Delayed::adding(), 0) })
    }

    /// Adds an operation to a key's watchers. Also after shutdown: that has found its record, and
    /// its adder takes it back.
    pub(crate) fn watch(&mut self, hash: u64, key: &K, operation: Id) -> Place {
        self.watchers.push(hash, key, operation)
    }

    /// Takes an entry out.
    pub(crate) fn unwatch(&mut self, place: Place) {
        self.watchers.remove(place);
    }

    /// The holder of a new operation has made what it needs to wait.
    pub(crate) fn settle(&mut self, key: Key, timeout: Option<Timeout>, places: Places) {
        self.held(key).content = Content { operation: None, timeout, places };
    }

    /// Hands the operation out, to check its condition.
    pub(crate) fn trigger(&mut self, key: Key) -> Option<O> {
        self.hand_out(key, State::trigger)
    }

    /// The same for a check that was handed on and has arrived.
    pub(crate) fn arrive(&mut self, key: Key) -> Option<O> {
        self.hand_out(key, State::arrive)
    }

    fn hand_out(&mut self, key: Key, claim: fn(&mut State) -> Claim) -> Option<O> {
        let delayed = self.operations.get_mut(key)?;
        if claim(&mut delayed.state) == Claim::Won {
            delayed.content.operation.take()
        } else {
            None
        }
    }

    /// Its holder lets go of the operation, whose condition is false; or gets it back, if something
    /// is left to do with it.
    pub(crate) fn release(&mut self, key: Key, operation: O, may_check: bool) -> (Next, Option<O>) {
        let delayed = self.held(key);
        let was_adding = delayed.state.is_adding();
        let next = delayed.state.release(may_check);
        if let Next::Keep(_) = next {
            return (next, Some(operation));
        }
        delayed.content.operation = Some(operation);
        // Its adder returns one.
        delayed.has_handle |= was_adding;
        (next, None)
    }

    /// It was filed anew in the timer. If it has ended meanwhile, the timeout comes back.
    pub(crate) fn set_timeout(&mut self, key: Key, timeout: Timeout) -> Option<Timeout> {
        match self.operations.get_mut(key).filter(|delayed| !delayed.state.has_ended()) {
            Some(delayed) => delayed.content.timeout.replace(timeout),
            None => Some(timeout),
        }
    }

    /// Its holder ends it.
    pub(crate) fn finish(&mut self, key: Key, wants: EndedBy) -> (EndedBy, Content<O>) {
        let fate = self.held(key).state.finish(wants);
        (fate, self.end(key, fate))
    }

    /// The record of an operation that the caller holds: so it is there.
    fn held(&mut self, key: Key) -> &mut Delayed<O> {
        self.operations.at_mut(key.index)
    }

    /// Ends it if it is idle; otherwise leaves that to its holder.
    pub(crate) fn claim(&mut self, key: Key, fate: EndedBy) -> (Claim, Option<Content<O>>) {
        let delayed = self.operations.get_mut(key);
        match delayed.map_or(Claim::Lost, |delayed| delayed.state.end(fate)) {
            Claim::Won => (Claim::Won, Some(self.end(key, fate))),
            claim => (claim, None),
        }
    }

    /// Cancels it likewise; but leaves it alone while it is still being added: it counts as added
    /// after this.
    pub(crate) fn cancel_unless_adding(&mut self, key: Key) -> (Claim, Option<Content<O>>) {
        match self.operations.get(key) {
            Some(delayed) if !delayed.state.is_adding() => self.claim(key, EndedBy::Cancelled),
            _ => (Claim::Lost, None),
        }
    }

    /// Takes what an operation has, that has ended, and its entry here; those in other shards are
    /// left to the caller.
    fn end(&mut self, key: Key, fate: EndedBy) -> Content<O> {
        self.delayed -= 1;
        self.ended[fate as usize] += 1;
        let delayed = self.held(key);
        let content = mem::replace(&mut delayed.content, Content::EMPTY);
        if !delayed.has_handle {
            self.operations.release(key.index);
        }
        let here = content.places.iter().next();
        here.into_iter().for_each(|place| self.unwatch(place));
        content
    }

    /// Whether the operation was completed, or will be by its holder.
    pub(crate) fn is_completed(&self, key: Key) -> bool {
        self.operations.get(key).is_some_and(|delayed| delayed.state.is_completed())
    }

    /// Begins to visit the operations that are watched on a key now: appends some of them to `out`,
    /// and no more than there is `room` for. Whoever gets a visit has to [resume](Self::resume) it.
    pub(crate) fn visit<Q>(
        &mut self,
        hash: u64,
        key: &Q,
        begin: Begin,
        room: usize,
        out: &mut Vec<Id>,
    ) -> Option<Visit>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let visit = self.watchers.visit(hash, key, begin, room, out);
        self.leave_out_ended(out);
        visit
    }

    /// Goes on with a visit: likewise. Ends it if there is no room any more.
    pub(crate) fn resume(&mut self, visit: Visit, room: usize, out: &mut Vec<Id>) -> Option<Visit> {
        let visit = self.watchers.resume(visit, room, out);
        self.leave_out_ended(out);
        visit
    }

    /// A loop of its own over the records that are here, so that their cache misses overlap.
    fn leave_out_ended(&self, operations: &mut Vec<Id>) {
        work::count(operations.len());
        operations.retain(|id| {
            let is_here = id.shard == self.number;
            !is_here || self.operations.get(id.key).is_some_and(|it| !it.state.is_sealed())
        });
    }

    /// Lets nothing come in any more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Appends the operations to `out` that wait, and those that are being added, of one part of
    /// the records. Returns whether there are parts after it.
    pub(crate) fn waiting(&self, part: usize, out: &mut Vec<Key>) -> bool {
        let records = self.operations.of_chunk(part);
        let waiting = records.filter(|(_, delayed)| !delayed.state.has_ended());
        out.extend(waiting.map(|(key, _)| key));
        part + 1 < self.operations.chunks()
    }

    /// Entries of all keys.
    pub(crate) fn watched(&self) -> usize {
        self.watchers.len()
    }

    /// Entries of one key.
    pub(crate) fn watched_for<Q>(&self, hash: u64, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.watchers.len_of(hash, key)
    }

    /// Operations and handles that have a record.
    pub(crate) fn records(&self) -> usize {
        self.operations.len()
    }

    pub(crate) fn delayed(&self) -> usize {
        self.delayed
    }

    pub(crate) fn ended(&self, fate: EndedBy) -> u64 {
        self.ended[fate as usize]
    }

    /// Checks the invariants of the head of this file. Takes time proportional to the shard.
    pub(crate) fn assert_invariants(&self) {
        self.watchers.assert_invariants();
        self.operations.assert_invariants();
        let mut delayed = 0;
        for (_, Delayed { state, has_handle, content }) in self.operations.iter() {
            let entries = content.places.iter().count();
            assert_eq!(state.has_ended(), entries == 0, "who waits has entries");
            assert!(*has_handle || !state.has_ended(), "what nobody asks about is gone");
            delayed += usize::from(!state.has_ended());
        }
        assert_eq!(self.delayed, delayed);
    }
}

/// For any key, so that handles need not say what theirs can.
impl<K, O> Shard<K, O> {
    /// Nobody has the operation's handle any more.
    pub(crate) fn forget_handle(&mut self, key: Key) {
        let Some(delayed) = self.operations.get_mut(key) else { return };
        delayed.has_handle = false;
        if delayed.state.has_ended() {
            // Empty: nothing of the user's is dropped.
            self.operations.release(key.index);
        }
    }
}
