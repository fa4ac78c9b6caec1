//! An operation that does what a test wants, and writes down what it is asked.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use tickwheel::purgatory::DelayedOperation;

/// What was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum What {
    Checked,
    Completed,
    Expired,
    Cancelled,
    Dropped,
    /// A trigger from an operation's code returned this number instead of an operation's.
    Returned,
}

/// What was called of which operation, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(What, u32)>>>);

impl Log {
    pub(crate) fn write(&self, what: What, id: u32) {
        self.0.lock().unwrap().push((what, id));
    }

    /// Returns all calls since this was asked last.
    pub(crate) fn take(&self) -> Vec<(What, u32)> {
        mem::take(&mut *self.0.lock().unwrap())
    }

    /// Returns the same without checks.
    pub(crate) fn ends(&self) -> Vec<(What, u32)> {
        let mut all = self.take();
        all.retain(|(what, _)| *what != What::Checked);
        all
    }

    /// Returns the operations of which `what` was called, in order.
    pub(crate) fn of(&self, what: What) -> Vec<u32> {
        let all = self.take().into_iter();
        all.filter(|(called, _)| *called == what)
            .map(|(_, id)| id)
            .collect()
    }
}

type Hook = Box<dyn FnOnce() + Send>;

pub(crate) struct Script {
    pub(crate) id: u32,
    log: Log,
    condition: Box<dyn FnMut() -> bool + Send>,
    completed: Option<Hook>,
    expired: Option<Hook>,
    cancelled: Option<Hook>,
    dropped: Option<Hook>,
    alive: Arc<()>,
}

impl Script {
    /// Creates an operation whose condition never holds.
    pub(crate) fn new(id: u32, log: &Log) -> Self {
        Script {
            id,
            log: log.clone(),
            condition: Box::new(|| false),
            completed: None,
            expired: None,
            cancelled: None,
            dropped: None,
            alive: Arc::new(()),
        }
    }

    pub(crate) fn when(mut self, condition: impl FnMut() -> bool + Send + 'static) -> Self {
        self.condition = Box::new(condition);
        self
    }

    pub(crate) fn when_set(self, flag: &Arc<AtomicBool>) -> Self {
        let flag = Arc::clone(flag);
        self.when(move || flag.load(SeqCst))
    }

    /// Makes the condition hold from this check on, the first one being 1.
    pub(crate) fn at_check(self, number: u32) -> Self {
        let mut checks = 0;
        self.when(move || {
            checks += 1;
            checks >= number
        })
    }

    pub(crate) fn on_complete(mut self, hook: impl FnOnce() + Send + 'static) -> Self {
        self.completed = Some(Box::new(hook));
        self
    }

    pub(crate) fn on_expiration(mut self, hook: impl FnOnce() + Send + 'static) -> Self {
        self.expired = Some(Box::new(hook));
        self
    }

    pub(crate) fn on_cancellation(mut self, hook: impl FnOnce() + Send + 'static) -> Self {
        self.cancelled = Some(Box::new(hook));
        self
    }

    pub(crate) fn on_drop(mut self, hook: impl FnOnce() + Send + 'static) -> Self {
        self.dropped = Some(Box::new(hook));
        self
    }

    /// Returns a reference that is dead when the operation is.
    pub(crate) fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    fn called(&self, what: What, hook: Option<Hook>) {
        self.log.write(what, self.id);
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl DelayedOperation for Script {
    fn try_complete(&mut self) -> bool {
        self.called(What::Checked, None);
        (self.condition)()
    }

    fn on_complete(&mut self) {
        let hook = self.completed.take();
        self.called(What::Completed, hook);
    }

    fn on_expiration(&mut self) {
        let hook = self.expired.take();
        self.called(What::Expired, hook);
    }

    fn on_cancellation(&mut self) {
        let hook = self.cancelled.take();
        self.called(What::Cancelled, hook);
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let hook = self.dropped.take();
        self.called(What::Dropped, hook);
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({})", self.id)
    }
}
