//! A waiting operation and its state, under the lock of its record's shard.
//!
//! A thread never waits for an operation that another thread holds. It leaves a request, which the
//! holder serves before it lets go of the operation. No trigger is lost, and no two pieces of an
//! operation's code run at the same time.
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
//! # What the holder owes
//! T1 holds the operation: it has taken the operation out of its record, and checks it with no lock
//! held. T2 comes meanwhile, takes the lock, and finds no operation. Each of these cases breaks
//! simpler code, and the numbers stand at the lines that deal with them.
//!
//! 1. *T2 triggers.* T1's check has read the end of a log, 90. T2 appends up to 120, and triggers
//!    the key. If T2 went on, T1 would find the condition false, put the operation back, and nobody
//!    would see the 120. So T2 leaves `AGAIN`, and T1 checks once more before it lets go. `AGAIN`
//!    is cleared as T1 looks: a trigger during the next check leaves it anew. If it stayed, each
//!    look would find a request that nobody made.
//! 2. *Triggers do not stop.* T1 would check the same operation for ever. So after eight checks T1
//!    lets go with `CHECK`: the record is filed as due at once, and its task makes the ninth check,
//!    on a thread of the executor. If `CHECK` stands there already, that task is on its way. It
//!    clears `CHECK` before it checks, so its check serves this request too. If `DUE` stands there,
//!    the record is filed no longer, but the task that expires it has not run yet: it looks at
//!    `CHECK` first.
//! 3. *The time is up.* The record's task runs on T2, and leaves `EXPIRED`. No other task comes for
//!    this record: without a look at `EXPIRED`, T1 would put the operation back for ever. T1 ends
//!    it after a check that was false. The task of (2) does the same if the time is up when it
//!    runs: the ninth check comes first, so what holds by then completes.
//! 4. *T2 cancels or forces.* It leaves `CANCELLED` or `FORCED`, and answers `Deferred`. A check of
//!    T1's that returns true all the same may have taken an item out of a queue: a cancel would
//!    lose the item, so the operation completes. A force changes nothing then but the counter. The
//!    first of the two requests counts: T2 has told its caller what becomes of the operation.
//! 5. *T1 is still adding, and T2 cancels all of a key.* T1 would end the operation as cancelled,
//!    and tell its own caller that it is completed. So T2 passes over it, as if it were added after
//!    the cancel. A shutdown closes the shard before: T1 finds that when it lets go, and takes the
//!    operation back.
//! 6. *T2 cancels between two locks.* T1 lets go, and learns that the operation has to expire. The
//!    lock is released. T2 cancels, finds no operation, and answers `Deferred`. T1 takes the lock
//!    again to finish. The condition was false, so T1 keeps what T2 has told its caller.

use crate::purgatory::operation::Cancel;

/// The holder is still adding the operation.
const ADDING: u8 = 1;
/// Requests to the holder: check again; expire; complete; cancel.
const AGAIN: u8 = 2;
const EXPIRED: u8 = 4;
const FORCED: u8 = 8;
const CANCELLED: u8 = 16;
/// No other request takes effect after one of these.
const SEALED: u8 = FORCED | CANCELLED;
/// A check is left to a task: the record is filed as due at once, or the task is on its way.
const CHECK: u8 = 32;
/// The time is up: the record is no longer filed, and the task that expires it is on its way.
const DUE: u8 = 64;

pub(crate) struct OperationState<O> {
    /// `None` while a thread holds it.
    operation: Option<O>,
    word: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// By a check of the thread that adds it.
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
    /// The holder has let go of the operation. If that leaves a check, file the record as due at
    /// once.
    LetGo { leaves_check: bool },
}

impl<O> OperationState<O> {
    /// Creates the state of an operation that is held by the adding thread.
    pub(crate) fn adding() -> Self {
        OperationState {
            operation: None,
            word: ADDING,
        }
    }

    /// Returns the operation for a check; if another thread holds it, leaves the check to that
    /// thread.
    pub(crate) fn trigger(&mut self) -> Option<O> {
        if self.operation.is_none() {
            self.word |= AGAIN; // (1)
        }
        self.operation.take()
    }

    /// Notes that the record was flushed. Returns whether there has to be a task.
    pub(crate) fn flushed(&mut self, is_due: bool) -> bool {
        self.word |= if is_due { DUE } else { 0 };
        self.word & (DUE | CHECK) != 0
    }

    /// Notes that the record's task runs. Returns the operation if the caller has to check or
    /// expire it.
    pub(crate) fn task_runs(&mut self) -> Option<(O, EndedBy)> {
        let checks = self.word & CHECK != 0;
        let is_due = self.word & DUE != 0;
        self.word &= !CHECK;
        if is_due && (checks || self.operation.is_none()) {
            // Whoever holds it ends it: this thread after the ninth check, or another one (3).
            self.word |= EXPIRED;
        }
        if checks {
            return Some((self.trigger()?, EndedBy::Triggered));
        }
        if !is_due {
            // The check was left to this task, and another task has made it.
            return None;
        }
        Some((self.operation.take()?, EndedBy::Expired))
    }

    /// Returns the operation for its end; if another thread holds it, leaves the end to that
    /// thread. Has no effect if the end is decided, or while the operation is added: the adding
    /// thread looks for a closed shard itself.
    pub(crate) fn end(&mut self, wants: EndedBy) -> Cancel<O> {
        if self.word & (SEALED | ADDING) != 0 {
            return Cancel::Finished; // (4), (5)
        }
        if let Some(operation) = self.operation.take() {
            return Cancel::Cancelled(operation);
        }
        self.word |= if wants == EndedBy::Forced {
            FORCED
        } else {
            CANCELLED
        };
        Cancel::Deferred
    }

    /// Lets go of an operation whose condition is false. `may_check`: the holder may check for
    /// later triggers. `may_leave`: a task may.
    pub(crate) fn let_go(&mut self, operation: O, may_check: bool, may_leave: bool) -> Next<O> {
        let asked = self.word & AGAIN != 0;
        self.word &= !AGAIN; // (1)
        if self.word & SEALED != 0 {
            // `finish` tells a force from a cancel (4).
            return Next::End(operation, EndedBy::Cancelled);
        }
        if asked && may_check {
            // Before the look at the time: what holds by now completes.
            return Next::CheckAgain(operation);
        }
        if self.word & EXPIRED != 0 {
            return Next::End(operation, EndedBy::Expired); // (3)
        }
        self.operation = Some(operation);
        self.word &= !ADDING;
        let leaves = asked && may_leave && self.word & CHECK == 0;
        if leaves {
            self.word |= CHECK;
        }
        Next::LetGo {
            leaves_check: leaves && self.word & DUE == 0, // (2)
        }
    }

    /// Returns how the operation ends: as its holder `wants`, or as was requested since. A cancel
    /// is too late after a check that returned true, which may have claimed an item; a force then
    /// only changes the counter. Neither affects an operation whose check panicked.
    pub(crate) fn finish(&self, wants: EndedBy) -> EndedBy {
        if wants != EndedBy::Panicked && self.word & FORCED != 0 {
            return EndedBy::Forced; // (4)
        }
        if wants == EndedBy::Expired && self.word & CANCELLED != 0 {
            return EndedBy::Cancelled; // (6)
        }
        wants
    }

    pub(crate) fn is_filed(&self) -> bool {
        self.word & (ADDING | DUE) == 0
    }

    /// Returns whether a check is left to a task.
    pub(crate) fn awaits_check(&self) -> bool {
        self.word & CHECK != 0
    }

    /// Returns whether the end is decided.
    pub(crate) fn is_sealed(&self) -> bool {
        self.word & SEALED != 0
    }
}
