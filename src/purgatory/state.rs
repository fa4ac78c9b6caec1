//! The state word of a delayed operation: whether a thread holds it, and which requests it got
//! since.
//!
//! A thread has to hold an operation to touch it, and no thread waits for that. A thread that finds
//! the operation held leaves a request in the word and moves on; the holder serves all requests
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

/// A thread holds the operation.
const HELD: u8 = 1;
/// Its holder is still adding it.
const ADDING: u8 = 2;
/// Requests to the holder: check again; expire the operation; complete it; let it go.
const AGAIN: u8 = 4;
const EXPIRED: u8 = 8;
const FORCED: u8 = 16;
const CANCELLED: u8 = 32;
/// No other request takes effect after one of these.
const SEALED: u8 = FORCED | CANCELLED;
/// A check is left to a task: the record is filed as due at once, or the task is on its way.
const CHECK: u8 = 64;
/// The time is up: the record is filed nowhere, and a task that expires it is on its way.
const DUE: u8 = 128;

/// The state of an operation that has not ended. Its record is removed when it ends.
pub(crate) struct OperationState(u8);

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// By the check after it was watched.
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
pub(crate) enum Next<O = ()> {
    /// The holder keeps the operation, to check it again.
    CheckAgain(O),
    /// The holder keeps the operation, to end it as was requested.
    End(O, EndedBy),
    /// The holder has let go; if so, the record has to be filed as due at once, for a check.
    LetGo(bool),
}

impl OperationState {
    /// Creates the state of an operation that its creator holds in order to add it.
    pub(crate) fn adding() -> Self {
        OperationState(HELD | ADDING)
    }

    /// Takes the operation over to check its condition, if it is idle; otherwise leaves that to
    /// its holder. Returns whether the caller holds it now.
    pub(crate) fn trigger(&mut self) -> bool {
        let is_idle = self.0 & (HELD | SEALED) == 0;
        self.0 |= if is_idle { HELD } else { AGAIN };
        is_idle
    }

    /// Notes that the record was flushed, and whether its time is up. Returns whether there has to
    /// be a task.
    pub(crate) fn flushed(&mut self, is_due: bool) -> bool {
        self.0 |= if is_due { DUE } else { 0 };
        self.0 & (DUE | CHECK) != 0
    }

    /// Takes note that the record's task has arrived. Returns what the caller has to do: to check
    /// the operation, which it holds then, as after a trigger; or to expire it.
    pub(crate) fn arrive(&mut self) -> Option<EndedBy> {
        let (checks, is_due) = (self.0 & CHECK != 0, self.0 & DUE != 0);
        self.0 &= !CHECK;
        if is_due && (checks || self.0 & HELD != 0) {
            self.0 |= EXPIRED;
        }
        if checks && self.trigger() {
            return Some(EndedBy::Triggered);
        }
        (is_due && self.0 & HELD == 0).then_some(EndedBy::Expired)
    }

    /// Takes the operation over to end it, if it is idle; otherwise leaves that to its holder,
    /// unless its end is decided.
    pub(crate) fn end(&mut self, wants: EndedBy) -> Cancel<()> {
        if self.is_sealed() {
            return Cancel::Finished;
        } else if self.0 & HELD == 0 {
            return Cancel::Cancelled(());
        }
        self.0 |= if wants == EndedBy::Forced { FORCED } else { CANCELLED };
        Cancel::Deferred
    }

    /// Releases the operation, whose condition its holder found false. The holder says whether it
    /// still `may_check` for the triggers that arrived since, and whether a task could.
    pub(crate) fn release(&mut self, may_check: bool, may_leave: bool) -> Next {
        let asked = self.0 & AGAIN != 0;
        self.0 &= !AGAIN;
        if self.0 & SEALED != 0 {
            return Next::End((), EndedBy::Cancelled);
        } else if asked && may_check {
            return Next::CheckAgain(());
        } else if self.0 & EXPIRED != 0 {
            return Next::End((), EndedBy::Expired);
        }
        self.0 &= !(HELD | ADDING);
        let leaves = asked && may_leave && self.0 & CHECK == 0;
        self.0 |= if leaves { CHECK } else { 0 };
        Next::LetGo(leaves && self.0 & DUE == 0)
    }

    /// Returns how the operation ends: as its holder `wants`, or as another thread has requested
    /// since. A check that returned true may have claimed an item, so a cancel is too late then. A
    /// force completes the operation as well, and only changes how it is counted. Neither has an
    /// effect on an operation whose check panicked.
    pub(crate) fn finish(&self, wants: EndedBy) -> EndedBy {
        if wants != EndedBy::Panicked && self.0 & FORCED != 0 {
            EndedBy::Forced
        } else if wants == EndedBy::Expired && self.0 & CANCELLED != 0 {
            EndedBy::Cancelled
        } else if wants == EndedBy::Cancelled && self.is_adding() {
            EndedBy::Withdrawn
        } else {
            wants
        }
    }

    /// Returns whether the operation's creator still holds it.
    pub(crate) fn is_adding(&self) -> bool {
        self.0 & ADDING != 0
    }

    /// Returns whether the record is filed: it was added, and its time is not up.
    pub(crate) fn is_filed(&self) -> bool {
        self.0 & (ADDING | DUE) == 0
    }

    /// Returns whether the end is decided; if so, its holder will carry it out.
    pub(crate) fn is_sealed(&self) -> bool {
        self.0 & SEALED != 0
    }
}
