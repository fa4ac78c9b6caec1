//! The operations of a purgatory's models, and the ledger of what becomes of them.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread::{self, ThreadId};
use std::sync::{Arc, Mutex};
use tickwheel::purgatory::{Cancelled, DelayedOperation, Pending};

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
        self.ends.lock().unwrap().iter().find(|end| end.0 == id).map(|end| end.1)
    }

    pub(crate) fn completed_by(&self, thread: ThreadId) -> usize {
        let ends = self.ends.lock().unwrap();
        ends.iter().filter(|end| (end.1, end.2) == (Fate::Completed, thread)).count()
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
        assert_eq!(opened, ends.iter().map(|end| end.0).collect::<Vec<_>>(), "{ends:?}");
        let handles = std::mem::take(&mut *self.handles.lock().unwrap());
        for (id, handle) in handles {
            assert!(!handle.is_pending(), "operation {id}: {ends:?}");
            assert!(!handle.force_complete(), "operation {id} can be forced after its end");
            assert!(matches!(handle.cancel(), Cancelled::Finished), "operation {id} ended");
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
            self.ledger.fault(format!("operation {} ends inside another", self.id));
        }
        self.ledger.inside.lock().unwrap().push(me);
        self.calls.push(call);
        if matches!(call, Call::Complete) {
            (self.then)();
        }
        self.ledger.inside.lock().unwrap().retain(|thread| *thread != me);
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
                return self.ledger.fault(format!("operation {}: {given:?} {calls:?}", self.id));
            }
        };
        self.ledger.ends.lock().unwrap().push((self.id, fate, thread::current().id()));
    }
}
