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
#[derive(Debug)]
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

/// The result of a call that wants an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim<T = ()> {
    /// The caller holds it now.
    Won(T),
    /// Another thread holds it, and will do what the caller wants.
    Deferred,
    /// Its end is decided already.
    Lost,
}

/// What follows after a holder has found the condition false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next<O = ()> {
    /// The holder keeps the operation, to check it again.
    CheckAgain(O),
    /// The holder keeps the operation, to end it as was requested.
    End(O, EndedBy),
    /// The holder has let go; if so, the record has to be filed as due at once, for a check.
    LetGo(bool),
}

impl<T> Claim<T> {
    /// Returns the value that the caller has won.
    pub(crate) fn won(self) -> Option<T> {
        match self {
            Claim::Won(value) => Some(value),
            Claim::Deferred | Claim::Lost => None,
        }
    }

    pub(crate) fn map<U>(self, won: impl FnOnce(T) -> U) -> Claim<U> {
        match self {
            Claim::Won(value) => Claim::Won(won(value)),
            Claim::Deferred => Claim::Deferred,
            Claim::Lost => Claim::Lost,
        }
    }
}

impl OperationState {
    /// Creates the state of an operation that its creator holds in order to add it.
    pub(crate) fn adding() -> Self {
        OperationState(HELD | ADDING)
    }

    /// Takes the operation over to check its condition.
    pub(crate) fn trigger(&mut self) -> Claim {
        self.claim(HELD, AGAIN)
    }

    /// Notes that the record was flushed, and whether its time is up. Returns whether there has to
    /// be a task.
    pub(crate) fn flushed(&mut self, is_due: bool) -> bool {
        self.0 |= if is_due { DUE } else { 0 };
        self.0 & (DUE | CHECK) != 0
    }

    /// Does what a task was made for that has arrived. Returns whether the caller has to check the
    /// operation, which it holds then; or whether it has to expire it.
    pub(crate) fn arrive(&mut self) -> (bool, bool) {
        let (checks, is_due) = (self.0 & CHECK != 0, self.0 & DUE != 0);
        self.0 &= !CHECK;
        if checks || self.0 & HELD != 0 {
            self.0 |= if is_due { EXPIRED } else { 0 };
        }
        (checks && self.trigger() == Claim::Won(()), is_due && self.0 & HELD == 0)
    }

    /// Ends the operation: forces, expires or cancels it.
    pub(crate) fn end(&mut self, fate: EndedBy) -> Claim {
        self.claim(0, if fate == EndedBy::Forced { FORCED } else { CANCELLED })
    }

    /// Takes over an idle operation by setting `own`, or leaves `request` to its holder.
    fn claim(&mut self, own: u8, request: u8) -> Claim {
        if self.is_sealed() {
            Claim::Lost
        } else if self.0 & HELD != 0 {
            self.0 |= request;
            Claim::Deferred
        } else {
            self.0 |= own;
            Claim::Won(())
        }
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
