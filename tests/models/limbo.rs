//! The world of a purgatory's models: their operations, and the ledger of what becomes of them.

use crate::futures::{by_hand, pass};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use shuttle::thread::ThreadId;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::purgatory::{Cancel, DelayedOperation, Pending, Purgatory, Watch, WatchError};
use tickwheel::{ManualClock, Timer};

/// Hashes a key to itself, so that every run of a schedule is the same. With two shards, key 0 is
/// in the first, keys 1 and 2 in the second.
#[derive(Default)]
pub(crate) struct ToItself(u64);

impl Hasher for ToItself {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(crate) type KeyHasher = BuildHasherDefault<ToItself>;

/// A purgatory on a timer that is driven by hand, with a tick of a nanosecond.
pub(crate) struct Limbo<O: DelayedOperation = Op> {
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
    pub(crate) purgatory: Purgatory<u64, O, KeyHasher>,
    pub(crate) ledger: Arc<Ledger>,
    conditions: Conditions,
}

impl<O: DelayedOperation> Limbo<O> {
    pub(crate) fn new() -> Self {
        let (timer, clock) = by_hand();
        let purgatory = Purgatory::with_hasher(&timer, KeyHasher::default());
        let (ledger, conditions) = <(Arc<Ledger>, Conditions)>::default();
        Limbo {
            timer,
            clock,
            purgatory,
            ledger,
            conditions,
        }
    }

    /// Lets time pass and expires what is due.
    pub(crate) fn pass(&self, nanos: u32) {
        pass(&self.timer, &self.clock, nanos);
    }

    /// Asserts at quiescence that nothing is left behind anywhere.
    pub(crate) fn assert_empty(&self) {
        self.purgatory.assert_invariants();
        self.timer.assert_invariants();
        assert_eq!(
            (self.purgatory.stats().watched, self.purgatory.len()),
            (0, 0)
        );
        assert!(self.timer.is_empty(), "a timeout is left behind");
    }
}

impl Limbo {
    /// Watches operation `id` on `keys` for two nanoseconds.
    pub(crate) fn watch(&self, id: usize, keys: &[u64]) -> Option<Handle> {
        self.watch_with(id, keys, || (), || ())
    }

    /// Watches an operation that calls `during` in each check and `then` in `on_complete`.
    pub(crate) fn watch_with(
        &self,
        id: usize,
        keys: &[u64],
        during: impl FnMut() + Send + 'static,
        then: impl FnMut() + Send + 'static,
    ) -> Option<Handle> {
        self.ledger.opened.lock().unwrap().push(id);
        let op = Op {
            id,
            conditions: Arc::clone(&self.conditions),
            calls: Vec::new(),
            given: None,
            during: Box::new(during),
            then: Box::new(then),
            ledger: Arc::clone(&self.ledger),
        };
        match self
            .purgatory
            .try_complete_else_watch(op, Duration::from_nanos(2), keys)
        {
            Ok(Watch::Completed) => {
                *self.ledger.triggered.lock().unwrap() += 1;
                None
            }
            Ok(Watch::Pending(pending)) => {
                let handle = Arc::new(pending);
                self.ledger
                    .handles
                    .lock()
                    .unwrap()
                    .push((id, Arc::clone(&handle)));
                Some(handle)
            }
            Err(WatchError::Shutdown(op)) => {
                op.into_inner().give(Fate::Refused);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes an operation's condition true.
    pub(crate) fn set(&self, id: usize) {
        self.conditions[id].store(true, Ordering::SeqCst);
    }

    /// Triggers a key: the operations that the trigger counts were completed when it returns, on
    /// this thread.
    pub(crate) fn trigger(&self, key: u64) -> usize {
        let me = thread::current().id();
        let before = self.ledger.completed_by(me);
        let completed = self.purgatory.check_and_complete(&key);
        let inside = self.ledger.inside.lock().unwrap().contains(&me);
        let seen = self.ledger.completed_by(me) - before;
        assert!(
            inside || seen >= completed,
            "{completed} completed, {seen} seen"
        );
        *self.ledger.triggered.lock().unwrap() += completed as u64;
        completed
    }

    /// Makes an operation's condition true, and triggers a key of it.
    pub(crate) fn announce(&self, id: usize, key: u64) -> usize {
        self.set(id);
        self.trigger(key)
    }

    pub(crate) fn force(&self, handle: &Handle) -> bool {
        let forced = handle.force_complete();
        assert!(!forced || !handle.is_pending(), "it is sealed at least");
        *self.ledger.forced.lock().unwrap() += u64::from(forced);
        forced
    }

    /// Cancels by the handle. Returns its answer without the operation, which ends here if it is
    /// returned.
    pub(crate) fn cancel(&self, handle: &Handle) -> Cancel<usize> {
        match handle.cancel() {
            Cancel::Cancelled(op) => Cancel::Cancelled(op.give(Fate::Returned)),
            Cancel::Deferred => Cancel::Deferred,
            Cancel::Finished => Cancel::Finished,
        }
    }

    /// Cancels for a key. Returns the operations that were returned, which end here.
    pub(crate) fn cancel_for_key(&self, key: u64) -> Vec<usize> {
        returned(self.purgatory.cancel_for_key(&key))
    }

    /// Shuts down. Returns the operations that were returned, which end here.
    pub(crate) fn shutdown(&self) -> Vec<usize> {
        returned(self.purgatory.shutdown())
    }

    pub(crate) fn fate(&self, id: usize) -> Option<Fate> {
        self.ledger.fate(id)
    }

    /// Expires at quiescence what still waits, and settles.
    pub(crate) fn finish(&self) -> String {
        self.purgatory.assert_invariants();
        self.pass(90);
        self.settle()
    }

    /// Settles where the executor may have made checks: what it completes is in nobody's answer.
    pub(crate) fn settle_with_tasks(&self) -> String {
        *self.ledger.triggered.lock().unwrap() = self.purgatory.stats().completed_by_trigger;
        self.settle()
    }

    /// Checks at quiescence, with nothing watched, that every operation has ended once and is gone
    /// everywhere, and that the statistics agree. Returns how they ended.
    pub(crate) fn settle(&self) -> String {
        let ends = self.ledger.settle();
        self.assert_empty();
        let stats = self.purgatory.stats();
        let count =
            |fates: &[Fate]| ends.iter().filter(|end| fates.contains(&end.1)).count() as u64;
        let triggered = stats.completed_by_trigger;
        let forced = stats.completed_by_force;
        let answered = *self.ledger.triggered.lock().unwrap();
        assert_eq!(
            stats.completed_at_once + triggered,
            answered,
            "what triggers answered"
        );
        assert_eq!(
            forced,
            *self.ledger.forced.lock().unwrap(),
            "what `force_complete` answered"
        );
        let completed = stats.completed_at_once + triggered + forced;
        assert_eq!((completed, stats.panicked), (count(&[Fate::Completed]), 0));
        assert_eq!(stats.expired, count(&[Fate::Expired]));
        assert_eq!(
            stats.cancelled,
            count(&[Fate::Cancelled, Fate::Returned]),
            "{ends:?}"
        );
        format!("{ends:?}, {triggered} triggered, {forced} forced")
    }
}

fn returned(ops: Vec<Op>) -> Vec<usize> {
    ops.into_iter().map(|op| op.give(Fate::Returned)).collect()
}

pub(crate) type Handle = Arc<Pending<u64, Op>>;

/// How an operation ended: exactly one of these for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// `on_complete`.
    Completed,
    /// `on_complete`, then `on_expiration`.
    Expired,
    /// `on_cancellation`.
    Cancelled,
    /// By a cancel or a shutdown. Its code is not called, nor in the cases below.
    Returned,
    /// To who tried to have it watched.
    Refused,
    /// With the purgatory that it was watched in.
    Dropped,
}

/// What became of the operations of a model. std's locks, because they are never held for a step of
/// a schedule.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) opened: Mutex<Vec<usize>>,
    ends: Mutex<Vec<(usize, Fate, ThreadId)>>,
    pub(crate) handles: Mutex<Vec<(usize, Handle)>>,
    /// The threads that are in an operation's last method.
    pub(crate) inside: Mutex<Vec<ThreadId>>,
    /// Operations' panics are contained, so they write down what is wrong instead.
    faults: Mutex<Vec<String>>,
    /// What triggers answered, and who had operations watched that were complete then, in sum; and
    /// what `force_complete` answered.
    pub(crate) triggered: Mutex<u64>,
    pub(crate) forced: Mutex<u64>,
}

impl Ledger {
    fn fault(&self, fault: String) {
        self.faults.lock().unwrap().push(fault);
    }

    /// Returns how operation `id` ended, if it has.
    pub(crate) fn fate(&self, id: usize) -> Option<Fate> {
        self.ends
            .lock()
            .unwrap()
            .iter()
            .find(|end| end.0 == id)
            .map(|end| end.1)
    }

    pub(crate) fn completed_by(&self, thread: ThreadId) -> usize {
        let ends = self.ends.lock().unwrap();
        ends.iter()
            .filter(|end| (end.1, end.2) == (Fate::Completed, thread))
            .count()
    }

    /// Checks that every operation has ended once, and that handles know how. Returns how all of
    /// them ended.
    pub(crate) fn settle(&self) -> Vec<(usize, Fate)> {
        assert_eq!(*self.faults.lock().unwrap(), [""; 0]);
        let mut ends = Vec::new();
        for (id, fate, _) in &*self.ends.lock().unwrap() {
            ends.push((*id, *fate));
        }
        ends.sort_by_key(|end| end.0);
        let mut opened = self.opened.lock().unwrap().clone();
        opened.sort_unstable();
        assert_eq!(
            opened,
            ends.iter().map(|end| end.0).collect::<Vec<_>>(),
            "{ends:?}"
        );
        let handles = std::mem::take(&mut *self.handles.lock().unwrap());
        for (id, handle) in handles {
            assert!(!handle.is_pending(), "operation {id}: {ends:?}");
            assert!(
                !handle.force_complete(),
                "operation {id} can be forced after its end"
            );
            assert!(
                matches!(handle.cancel(), Cancel::Finished),
                "operation {id} ended"
            );
        }
        ends
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Complete,
    Expiration,
    Cancellation,
}

pub(crate) type Conditions = Arc<[AtomicBool; 8]>;

/// The operation of the models: its condition is one of the world's.
pub(crate) struct Op {
    pub(crate) id: usize,
    pub(crate) conditions: Conditions,
    pub(crate) calls: Vec<Call>,
    pub(crate) given: Option<Fate>,
    pub(crate) during: Box<dyn FnMut() + Send>,
    pub(crate) then: Box<dyn FnMut() + Send>,
    pub(crate) ledger: Arc<Ledger>,
}

impl Op {
    fn call(&mut self, call: Call) {
        let me = thread::current().id();
        if self.ledger.inside.lock().unwrap().contains(&me) {
            self.ledger
                .fault(format!("operation {} ends inside another", self.id));
        }
        self.ledger.inside.lock().unwrap().push(me);
        self.calls.push(call);
        if matches!(call, Call::Complete) {
            (self.then)();
        }
        self.ledger
            .inside
            .lock()
            .unwrap()
            .retain(|thread| *thread != me);
    }

    pub(crate) fn give(mut self, fate: Fate) -> usize {
        self.given = Some(fate);
        self.id
    }
}

impl DelayedOperation for Op {
    fn try_complete(&mut self) -> bool {
        (self.during)();
        self.conditions[self.id].load(Ordering::SeqCst)
    }

    fn on_complete(&mut self) {
        self.call(Call::Complete);
    }

    fn on_expiration(&mut self) {
        self.call(Call::Expiration);
    }

    fn on_cancellation(&mut self) {
        self.call(Call::Cancellation);
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let fate = match (self.given, &self.calls[..]) {
            (Some(fate), []) => fate,
            (None, []) => Fate::Dropped,
            (None, [Call::Complete]) => Fate::Completed,
            (None, [Call::Complete, Call::Expiration]) => Fate::Expired,
            (None, [Call::Cancellation]) => Fate::Cancelled,
            (given, calls) => {
                return self
                    .ledger
                    .fault(format!("operation {}: {given:?} {calls:?}", self.id));
            }
        };
        self.ledger
            .ends
            .lock()
            .unwrap()
            .push((self.id, fate, thread::current().id()));
    }
}
