//! The set of a purgatory's shards: where an operation is, and how its code is called.
//!
//! # Locks
//! A key's `Eq`, `Clone` and `Drop` may run under a shard's lock. The code of operations does not:
//! operations are called and dropped outside.

use crate::purgatory::callbacks::{CallbackTurn, postpone};
use crate::purgatory::operations::Operations;
use crate::purgatory::place::{Id, Places};
use crate::purgatory::state::EndedBy;
use crate::store::table::shard_of;
use crate::sync::thread_number;
use crate::timer::owner::Set;
use crate::timer::report::{contain, report_panic};
use crate::timer::shard::Shard;
use std::any::Any;

impl<K, O> Set<Operations<K, O>> {
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

    /// Calls the code of an operation; contains its panic, and reports it with the timer's name.
    /// The caller counts it.
    #[inline]
    pub(crate) fn catch_panic<R>(&self, id: Id, code: impl FnOnce() -> R) -> Option<R> {
        contain(code).map_err(|panic| self.report_panic(id, panic)).ok()
    }

    #[cold]
    fn report_panic(&self, id: Id, panic: Box<dyn Any + Send>) {
        // Not under the lock: a subscriber is the user's code.
        let context = self.of(id).with(|body| body.context_of(id.key).cloned());
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

    /// Counts the end of an operation that no shard knows. Returns the name of none.
    pub(crate) fn count(&self, ended_by: EndedBy) -> Id {
        self.home().with(|body| {
            body.content.ended[ended_by as usize] += 1;
            body.nobody()
        })
    }

    /// Counts a panic of an operation's code, unless the shard serves another purgatory by now.
    pub(crate) fn count_panic(&self, id: Id) {
        self.of(id).with(|body| {
            let counts = body.context_of(id.key).is_some();
            body.content.panicked += u64::from(counts);
        });
    }

    /// Calls the `code` with which an operation ends, and drops the operation. This happens now, or
    /// after the callback that this thread is running.
    pub(crate) fn conclude(
        &'static self,
        id: Id,
        mut operation: O,
        code: impl FnOnce(&mut O) + 'static,
    ) {
        let end = move || {
            if self.catch_panic(id, || code(&mut operation)).is_none() {
                self.count_panic(id);
            }
            if self.catch_panic(id, || drop(operation)).is_none() {
                self.count_panic(id);
            }
        };
        match CallbackTurn::begin() {
            Some(_turn) => end(),
            None => postpone(end),
        }
    }
}

impl<K: Eq + Clone, O> Set<Operations<K, O>> {
    /// Removes an ended operation from all its keys but the first.
    #[inline]
    pub(crate) fn leave(&self, places: &Places) {
        for place in places.others() {
            let shard = self.at(usize::from(place.shard));
            shard.with(|body| body.content.watchers.remove(place));
        }
    }
}
