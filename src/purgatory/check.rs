//! The check: what is done with one operation, from its adding to its end.
//!
//! Ending an operation means taking it out of its core first, so that no other thread finds it,
//! then removing it from all its keys, then calling its code, and then dropping it.

use crate::engine::clock::When;
use crate::engine::owner::{Owned, Set, Shards};
use crate::engine::shard::{Body, Refusal, Shard, Times};
use crate::purgatory::agenda::{Turn, take_turn};
use crate::purgatory::operation::{DelayedOperation, WatchError};
use crate::purgatory::operations::{Operations, Panics};
use crate::purgatory::state::{Claim, EndedBy, Next};
use crate::purgatory::wait_queue::{Id, WaitQueue};
use crate::purgatory::watchers::Spots;
use crate::store::slab::Key;
use crate::store::table::ShortHash;
use crate::timer::entry::{SharedClosure, Task};
use crate::timer::part::Expiring;
use crate::wheel::bucket_queue::Expiration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// How often a thread checks an operation before it lets go of it. In models, once for itself and
/// once for the triggers that arrive during that.
const MAX_CHECKS: u32 = if cfg!(tickwheel_model) { 2 } else { 8 };

/// A call that may run the code of a purgatory's operations.
pub(crate) struct Call<'a, K: 'static, O: 'static> {
    pub(crate) set: &'static Set<Operations<K, O>>,
    pub(crate) panics: &'a Arc<Panics>,
    pub(crate) turn: &'a Turn<'a>,
}

/// How an operation ended after its holder has served all requests; `None` if it waits, and another
/// thread may hold it now. One that is withdrawn from the thread that adds it comes back.
type Served<O> = Result<Option<EndedBy>, O>;

impl<K, O> Call<'_, K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Watches an operation on its keys, and checks it once more. Returns its reference, unless
    /// that check ended it.
    pub(crate) fn watch(
        &self,
        mut operation: O,
        times: Times,
        keys: &[K],
        hash_of: impl Fn(&K) -> u64,
    ) -> Result<Option<OperationRef<K, O>>, WatchError<O>> {
        let set = self.set;
        let mut spots = Spots::of(keys.len());
        let mut begun = Err(Refusal::Closed);
        // Caught only so that nothing is left behind when a key's `Hash`, `Eq` or `Clone` panics.
        let entered = catch_unwind(AssertUnwindSafe(|| {
            for (number, key) in keys.iter().enumerate() {
                let hash = hash_of(key);
                set.of_key(hash).with(|body| {
                    if number == 0 {
                        begun = body.begin(times.1);
                    }
                    if let Ok(id) = begun {
                        spots.set(number, body.content.watchers.push(hash, key, id));
                    }
                });
                if begun.is_err() {
                    return;
                }
            }
        }));
        let id = match begun {
            Ok(id) => id,
            Err(refusal) => {
                entered.unwrap_or_else(|panic| resume_unwind(panic));
                return Err(match refusal {
                    Refusal::Full => WatchError::Full(operation.into()),
                    Refusal::Closed => WatchError::Shutdown(operation.into()),
                });
            }
        };
        let ended_by = match &entered {
            Ok(()) => self.condition(&mut operation, EndedBy::AtOnce),
            Err(_) => Some(EndedBy::Withdrawn),
        };
        let served = match ended_by {
            None => {
                let added = Some((spots, times.0));
                let then = set.of(id).with(|body| body.release(id.key, operation, true, added));
                self.serve(id, then)
            }
            Some(ended_by) => {
                set.of(id).with(|body| body.settle(id.key, spots));
                self.end(id, operation, ended_by)
            }
        };
        if let Err(panic) = entered {
            resume_unwind(panic);
        }
        let ended_by = served.map_err(|operation| WatchError::Shutdown(operation.into()))?;
        Ok(ended_by.is_none().then_some(OperationRef { set, id }))
    }

    /// Checks those of some operations that no other thread holds. Returns how many this completed.
    pub(crate) fn check_all(&self, batch: &[Id]) -> usize {
        let (mut completed, mut taken) = (0, None);
        for (number, &id) in batch.iter().enumerate() {
            // It may have been taken along with the one before it.
            let held = taken.take().or_else(|| self.set.of(id).with(|body| body.hand_out(id.key)));
            let Some(held) = held else { continue };
            let (is_completed, next) = self.check(id, held, batch.get(number + 1).copied());
            completed += usize::from(is_completed);
            taken = next;
        }
        completed
    }

    /// Checks the condition of an operation that was triggered. Returns whether this call completed
    /// it. If the operation continues to wait, and the operation `next` is in the same shard,
    /// triggers `next` under the same lock and returns it too.
    #[inline]
    pub(crate) fn check(&self, id: Id, mut operation: O, next: Option<Id>) -> (bool, Option<O>) {
        if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
            return (was_triggered(self.end(id, operation, ended_by)), None);
        }
        let (then, triggered) = self.set.of(id).with(|body| {
            let then = body.release(id.key, operation, true, None);
            let waits = matches!(then, Next::LetGo(_));
            let next = next.filter(|next| next.shard == id.shard && waits);
            (then, next.and_then(|next| body.hand_out(next.key)))
        });
        (was_triggered(self.serve(id, then)), triggered)
    }

    /// Serves the requests that are left after the condition was found false. Checks a few times
    /// for the triggers that arrive during checks, and leaves later ones to a task: otherwise this
    /// thread could go on serving others without end.
    #[inline]
    fn serve(&self, id: Id, next: Next<O>) -> Served<O> {
        if let Next::LetGo(_) = next { Ok(None) } else { self.serve_others(id, next) }
    }

    #[cold]
    fn serve_others(&self, id: Id, mut next: Next<O>) -> Served<O> {
        for checks in 2.. {
            let mut operation = match next {
                Next::CheckAgain(operation) => operation,
                Next::End(operation, ended_by) => return self.end(id, operation, ended_by),
                Next::LetGo(_) => break,
            };
            if let Some(ended_by) = self.condition(&mut operation, EndedBy::Triggered) {
                return self.end(id, operation, ended_by);
            }
            let may_check = checks < MAX_CHECKS;
            next = self.set.of(id).with(|body| body.release(id.key, operation, may_check, None));
        }
        Ok(None)
    }

    /// Ends the operation as the holder `wants`, or as another thread was promised.
    fn end(&self, id: Id, operation: O, wants: EndedBy) -> Served<O> {
        let (shard, mut spots) = (self.set.of(id), Spots::NONE);
        let ended_by = shard.with(|body| body.finish(id.key, wants, &mut spots));
        self.set.leave(&spots);
        if ended_by == EndedBy::Withdrawn {
            return Err(operation);
        }
        self.panics.conclude(self.turn, operation, ended_by);
        Ok(Some(ended_by))
    }

    /// Does what a task was made for that has arrived: checks the operation, or expires it.
    fn arrive(&self, id: Id) {
        let (to_check, expired) = self.set.of(id).with(|body| body.arrive(id.key));
        if let Some(to_check) = to_check {
            self.check(id, to_check, None);
        } else if let Some((expired, spots)) = expired {
            self.set.leave(&spots);
            self.panics.conclude(self.turn, expired, EndedBy::Expired);
        }
    }

    /// Checks an operation. Returns how the check ends it: by what it `is` if its condition holds;
    /// `None` if its condition is false.
    #[inline]
    pub(crate) fn condition(&self, operation: &mut O, is: EndedBy) -> Option<EndedBy> {
        match self.turn.check(|| self.panics.catch(|| operation.try_complete())) {
            Some(false) => None,
            Some(true) => Some(is),
            None => Some(EndedBy::Panicked),
        }
    }
}

fn was_triggered<O>(served: Served<O>) -> bool {
    matches!(served, Ok(Some(EndedBy::Triggered)))
}

/// A reference to an operation, which stays harmless after the operation has ended.
pub(crate) struct OperationRef<K: 'static, O: 'static> {
    set: &'static Set<Operations<K, O>>,
    id: Id,
}

impl<K, O> OperationRef<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    /// Completes the operation, or makes its holder do so, unless its end is decided.
    pub(crate) fn force(&self) -> bool {
        match self.claim(EndedBy::Forced, Body::panics) {
            Claim::Won((operation, panics)) => {
                take_turn(|turn| panics.conclude(turn, operation, EndedBy::Forced));
                true
            }
            Claim::Deferred => true,
            Claim::Lost => false,
        }
    }

    /// Takes the operation out to cancel it, or makes its holder do so, unless its end is decided.
    pub(crate) fn cancel(&self) -> Claim<O> {
        self.claim(EndedBy::Cancelled, |_| ()).map(|(operation, ())| operation)
    }

    /// Cancels the operation in the same way, and drops it.
    pub(crate) fn cancel_and_drop(&self) {
        if let Claim::Won((operation, panics)) = self.claim(EndedBy::Cancelled, Body::panics) {
            panics.catch(|| drop(operation));
        }
    }

    /// Takes the operation out to end it, or makes its holder end it. Also returns what `see`
    /// returned, which is called under the lock.
    fn claim<R>(
        &self,
        wants: EndedBy,
        see: impl FnOnce(&Body<Operations<K, O>>) -> R,
    ) -> Claim<(O, R)> {
        let claimed = self.set.of(self.id).with(|body| {
            body.claim(self.id.key, wants).map(|(operation, spots)| (operation, spots, see(body)))
        });
        claimed.map(|(operation, spots, seen)| {
            self.set.leave(&spots);
            (operation, seen)
        })
    }

    /// Extends the operation's deadline, unless its time is up or its end is decided.
    pub(crate) fn touch(&self, when: When) -> bool {
        self.set.of(self.id).with(|body| body.touch(self.id.key, when))
    }

    /// Returns whether the operation waits and its end is undecided.
    pub(crate) fn is_pending(&self) -> bool {
        self.set.of(self.id).with(|body| body.is_pending(self.id.key))
    }
}

impl<K, O> Expiring for Operations<K, O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    type Shared = Common;

    fn flush(
        shared: &Self::Shared,
        body: &mut Body<Self>,
        (expiration, now): (Expiration, u64),
        tasks: &mut Vec<Task>,
    ) {
        let arrive = &shared.arrive[usize::from(body.content.watchers.shard)];
        body.core.flush_in_place(expiration, now, |key, record, is_due| {
            if record.state.flushed(is_due) {
                tasks.push(Task::due(Arc::clone(arrive), key.to_bits()));
            }
        });
    }

    /// Drops what is waiting, without calling its code.
    fn end(owned: &Owned<Self>) {
        for operation in shutdown(owned.shards.set) {
            let panics = &owned.beside.shared.panics;
            take_turn(|turn| panics.conclude(turn, operation, EndedBy::Withdrawn));
        }
    }
}

/// What a purgatory has once, for all its shards.
pub(crate) struct Common {
    pub(crate) panics: Arc<Panics>,
    /// What the tasks of each shard call with a record's key. So no task allocates.
    arrive: Box<[SharedClosure]>,
}

impl Common {
    pub(crate) fn new<K, O>(shards: &Arc<Shards<Operations<K, O>>>) -> Self
    where
        K: Eq + Clone + Send + 'static,
        O: DelayedOperation,
    {
        let panics = Panics::new(&shards.context.name);
        let arrive = (0..).zip(shards.set.iter()).map(|(ordinal, shard)| -> SharedClosure {
            shard.with(|body| {
                body.content.watchers.shard = ordinal;
                body.content.panics = Some(Arc::clone(&panics));
            });
            let (shards, panics) = (Arc::clone(shards), Arc::clone(&panics));
            Arc::new(move |key| {
                let id = Id { shard: ordinal, key: Key::from_bits(key) };
                take_turn(|turn| Call { set: shards.set, panics: &panics, turn }.arrive(id));
            })
        });
        Common { arrive: arrive.collect(), panics }
    }
}

/// Closes the shards of a purgatory, and takes back what is waiting there.
pub(crate) fn shutdown<K, O>(set: &'static Set<Operations<K, O>>) -> Vec<O>
where
    K: Eq + Clone + Send + 'static,
    O: DelayedOperation,
{
    set.close();
    let (mut pending, mut waiting) = (Vec::new(), Vec::new());
    for shard in set.iter() {
        // Nothing can be added any more, and nothing moves, so these are all operations. They are
        // taken in parts, so that the lock is never held for long.
        for part in 0.. {
            let more = shard.with(|body| body.waiting(part, &mut waiting));
            let cancel = |id| OperationRef { set, id }.cancel().won();
            pending.extend(waiting.drain(..).filter_map(cancel));
            if !more {
                break;
            }
        }
    }
    pending
}

/// Calls `see` with the operations of a queue, a batch at a time and without any lock, until what
/// it returns adds up to `limit`. Returns the sum.
pub(crate) fn visit<K: Eq + Clone, O>(
    shard: &Shard<Operations<K, O>>,
    hash: ShortHash,
    is_meant: impl Fn(&WaitQueue<K>) -> bool,
    limit: usize,
    mut see: impl FnMut(&[Id]) -> usize,
) -> usize {
    let (mut seen, mut batch) = (0, Vec::new());
    // No more are taken along than are still wanted, so each of them is seen, and no other.
    let mut visit = shard.with(|body| {
        let visit = body.content.watchers.visit(hash, is_meant, limit, &mut batch);
        body.leave_out_ended(&mut batch);
        visit
    });
    loop {
        seen += see(&batch);
        batch.clear();
        let Some(unfinished) = visit.filter(|_| seen < limit) else { return seen };
        visit = shard.with(|body| {
            let visit = body.content.watchers.resume(unfinished, limit - seen, &mut batch);
            body.leave_out_ended(&mut batch);
            visit
        });
    }
}
