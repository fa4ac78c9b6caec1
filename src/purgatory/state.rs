//! A delayed operation while it waits: the operation itself, unless a thread holds it, and which
//! requests it got since.
//!
//! A thread has to hold an operation to touch it, and no thread waits for that. A thread that finds
//! the operation held leaves a request here and moves on; the holder serves all requests
//! before it lets go. So no trigger is lost, no thread blocks, and no two pieces of an operation's
//! code ever run at the same time.
//!
//! No thread serves others without a bound: a holder checks a few times. After that it leaves a
//! check to a task.
//!
//! ```text
//!             trigger, and the holder found the condition false
//!             +--------------------------------------+
//!             v                                      |
//! (added) -> idle ---- trigger ----> held -----------+
//!             |                       |  condition true, force, cancel, expiry
//!             | force, cancel, expiry v
//!             +------------------> finished
//! ```
//!
//! All of it happens under the lock of the shard where the operation's record is.

use crate::purgatory::operation::Cancel;

/// Its holder is still adding it.
const ADDING: u8 = 1;
/// Requests to the holder: check again; expire the operation; complete it; let it go.
const AGAIN: u8 = 2;
const EXPIRED: u8 = 4;
const FORCED: u8 = 8;
const CANCELLED: u8 = 16;
/// No other request takes effect after one of these.
const SEALED: u8 = FORCED | CANCELLED;
/// A check is left to a task: the record is filed as due at once, or the task is on its way.
const CHECK: u8 = 32;
/// The time is up: the record is filed nowhere, and a task that expires it is on its way.
const DUE: u8 = 64;

/// An operation that has not ended, and its state. Its record is removed when it ends.
pub(crate) struct OperationState<O> {
    /// `None` while a thread holds it.
    operation: Option<O>,
    word: u8,
}

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// By one of the two checks of the thread that adds it.
    AtOnce,
    Triggered,
    Forced,
    Expired,
    Cancelled,
    /// Its check panicked.
    Panicked,
    /// Without a call to its code: it goes back to the thread that adds it, or is dropped.
    Withdrawn,
}

/// What follows after a holder has found the condition false.
pub(crate) enum Next<O> {
    /// The holder keeps the operation, to check it again.
    CheckAgain(O),
    /// The holder keeps the operation, to end it as was requested.
    End(O, EndedBy),
    /// The holder has let go. If it leaves a check to a task, the record has to be filed as due at
    /// once.
    LetGo { leaves_check: bool },
}

impl<O> OperationState<O> {
    /// Creates the state of an operation that its creator holds in order to add it.
    pub(crate) fn adding() -> Self {
        OperationState { operation: None, word: ADDING }
    }

    /// Hands the operation out, so that its condition can be checked, unless a thread holds it;
    /// otherwise leaves that to its holder.
    pub(crate) fn trigger(&mut self) -> Option<O> {
        if self.operation.is_none() {
            self.word |= AGAIN;
        }
        self.operation.take()
    }

    /// Notes that the record was flushed, and whether its time is up. Returns whether there has to
    /// be a task.
    pub(crate) fn flushed(&mut self, is_due: bool) -> bool {
        self.word |= if is_due { DUE } else { 0 };
        self.word & (DUE | CHECK) != 0
    }

    /// Takes note that the record's task runs. Returns the operation if the caller has to do
    /// something with it: to check it, as after a trigger; or to expire it.
    pub(crate) fn task_runs(&mut self) -> Option<(O, EndedBy)> {
        let (checks, is_due) = (self.word & CHECK != 0, self.word & DUE != 0);
        self.word &= !CHECK;
        if is_due && (checks || self.operation.is_none()) {
            self.word |= EXPIRED;
        }
        if checks {
            return Some((self.trigger()?, EndedBy::Triggered));
        }
        let expired = if is_due { self.operation.take() } else { None };
        Some((expired?, EndedBy::Expired))
    }

    /// Hands the operation out to be ended, unless a thread holds it; otherwise leaves that to its
    /// holder. Has no effect if its end is decided; nor if it is being added: whoever lets go of it
    /// looks whether the shard was closed meanwhile.
    pub(crate) fn end(&mut self, wants: EndedBy) -> Cancel<O> {
        if self.word & (SEALED | ADDING) != 0 {
            return Cancel::Finished;
        }
        if let Some(operation) = self.operation.take() {
            return Cancel::Cancelled(operation);
        }
        self.word |= if wants == EndedBy::Forced { FORCED } else { CANCELLED };
        Cancel::Deferred
    }

    /// Releases the operation, whose condition its holder found false. The holder says whether it
    /// still `may_check` for the triggers that arrived since, and whether a task could.
    pub(crate) fn release(&mut self, operation: O, may_check: bool, may_leave: bool) -> Next<O> {
        let asked = self.word & AGAIN != 0;
        self.word &= !AGAIN;
        if self.word & SEALED != 0 {
            return Next::End(operation, EndedBy::Cancelled);
        } else if asked && may_check {
            return Next::CheckAgain(operation);
        } else if self.word & EXPIRED != 0 {
            return Next::End(operation, EndedBy::Expired);
        }
        self.operation = Some(operation);
        self.word &= !ADDING;
        let leaves = asked && may_leave && self.word & CHECK == 0;
        self.word |= if leaves { CHECK } else { 0 };
        Next::LetGo { leaves_check: leaves && self.word & DUE == 0 }
    }

    /// Returns how the operation ends: as its holder `wants`, or as another thread has requested
    /// since. A check that returned true may have claimed an item, so a cancel is too late then. A
    /// force completes the operation as well, and only changes how it is counted. Neither has an
    /// effect on an operation whose check panicked.
    pub(crate) fn finish(&self, wants: EndedBy) -> EndedBy {
        if wants != EndedBy::Panicked && self.word & FORCED != 0 {
            EndedBy::Forced
        } else if wants == EndedBy::Expired && self.word & CANCELLED != 0 {
            EndedBy::Cancelled
        } else {
            wants
        }
    }

    /// Returns whether the record is filed: it was added, and its time is not up.
    pub(crate) fn is_filed(&self) -> bool {
        self.word & (ADDING | DUE) == 0
    }

    /// Returns whether a check is left to a task, which the next turn hands over.
    pub(crate) fn awaits_check(&self) -> bool {
        self.word & CHECK != 0
    }

    /// Returns whether the end is decided; if so, its holder will carry it out.
    pub(crate) fn is_sealed(&self) -> bool {
        self.word & SEALED != 0
    }
}
