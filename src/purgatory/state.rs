//! The state word of a delayed operation: who holds it, and what came meanwhile.
//!
//! To touch an operation one has to hold it. Nobody waits for that: whoever comes while another one
//! holds it leaves a request in the word and goes, and the holder sees to all requests before it
//! lets go. So no trigger is lost, none blocks, and no two pieces of an operation's code ever run
//! at the same time.
//!
//! ```text
//!             trigger, and the holder found the condition false
//!             +--------------------------------------+
//!             v                                      |
//! (added) -> idle ---- trigger ----> held -----------+
//!             |                       |  condition true, force, cancel
//!             | force, cancel, expiry v
//!             +------------------> finished
//! ```
//!
//! Every change that takes an operation over, or gives it back, is a read-modify-write with acquire
//! and release: what one holder did to the operation is visible to the next.

use crate::sync::atomic::{AtomicU8, Ordering};

/// Somebody holds the operation.
const HELD: u8 = 1;
/// Its holder is still adding it.
const ADDING: u8 = 2;
/// Requests to the holder: check again; hand it to the executor, its time is up; complete it; let
/// it go.
const AGAIN: u8 = 4;
const EXPIRED: u8 = 8;
const FORCED: u8 = 16;
const CANCELLED: u8 = 32;
/// Its fate is sealed; it has no holder but the one who finished it.
const FINISHED: u8 = 64;
/// No other request comes into effect after one of these.
const SEALED: u8 = FORCED | CANCELLED | FINISHED;

#[derive(Debug)]
pub(crate) struct State(AtomicU8);

/// What became of a call that wants an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The caller holds it now; if it wanted to finish it, it has.
    Won,
    /// Another one holds it, and will do what the caller wants.
    Left,
    /// Its fate is sealed already.
    Lost,
}

/// What a holder has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Nothing: it does not hold the operation any more.
    None,
    CheckAgain,
    /// Have the executor expire it.
    Expire,
    /// To end it: it is finished.
    Complete(Cause),
    Cancel,
}

/// Why an operation is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Triggered,
    Forced,
}

impl State {
    /// Of an operation that its creator holds, to add it.
    pub(crate) fn adding() -> Self {
        State(AtomicU8::new(HELD | ADDING))
    }

    /// To check the condition.
    pub(crate) fn trigger(&self) -> Claim {
        self.claim(0, HELD, AGAIN)
    }

    pub(crate) fn force(&self) -> Claim {
        self.claim(0, FINISHED, FORCED)
    }

    pub(crate) fn expire(&self) -> Claim {
        self.claim(0, FINISHED, EXPIRED)
    }

    pub(crate) fn cancel(&self) -> Claim {
        self.claim(0, FINISHED | CANCELLED, CANCELLED)
    }

    /// As `cancel`, but leaves an operation alone that is still being added: it counts as added
    /// after this.
    pub(crate) fn cancel_unless_adding(&self) -> Claim {
        self.claim(ADDING, FINISHED | CANCELLED, CANCELLED)
    }

    /// Takes over an idle operation by setting `own`, or leaves `request` to its holder.
    fn claim(&self, excluded: u8, own: u8, request: u8) -> Claim {
        let mut claim = Claim::Lost;
        let changed = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            if state & (SEALED | excluded) != 0 {
                return None;
            }
            let held = state & HELD != 0;
            claim = if held { Claim::Left } else { Claim::Won };
            Some(state | if held { request } else { own })
        });
        if changed.is_ok() { claim } else { Claim::Lost }
    }

    /// The holder found the condition false: it lets go, unless somebody left it a request.
    pub(crate) fn release(&self) -> Duty {
        let mut duty = Duty::None;
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            let (next, wanted) = if state & FORCED != 0 {
                (state | FINISHED, Duty::Complete(Cause::Forced))
            } else if state & CANCELLED != 0 {
                (state | FINISHED, Duty::Cancel)
            } else if state & AGAIN != 0 {
                // Before the expiry: the condition may have come true in time.
                (state & !AGAIN, Duty::CheckAgain)
            } else if state & EXPIRED != 0 {
                (state & !EXPIRED, Duty::Expire)
            } else {
                (state & !(HELD | ADDING), Duty::None)
            };
            duty = wanted;
            Some(next)
        });
        duty
    }

    /// The holder found the condition true. What it does now: somebody who has been promised
    /// something else meanwhile comes first.
    pub(crate) fn finish(&self) -> Duty {
        let state = self.0.fetch_or(FINISHED, Ordering::AcqRel);
        if state & CANCELLED != 0 {
            Duty::Cancel
        } else if state & FORCED != 0 {
            Duty::Complete(Cause::Forced)
        } else {
            Duty::Complete(Cause::Triggered)
        }
    }

    /// The holder's check panicked: nobody completes it.
    pub(crate) fn abandon(&self) -> Duty {
        self.0.fetch_or(FINISHED | CANCELLED, Ordering::AcqRel);
        Duty::Cancel
    }

    /// Whether it was completed, or will be by its holder.
    pub(crate) fn is_completed(&self) -> bool {
        let state = self.0.load(Ordering::Acquire);
        state & SEALED != 0 && state & CANCELLED == 0
    }

    /// Whether its fate is sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.0.load(Ordering::Acquire) & SEALED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> State {
        let state = State::adding();
        assert_eq!(state.release(), Duty::None);
        state
    }

    #[test]
    fn a_trigger_during_a_check_makes_the_holder_check_again() {
        let state = idle();
        assert_eq!(state.trigger(), Claim::Won);
        assert_eq!((state.trigger(), state.trigger()), (Claim::Left, Claim::Left));
        assert_eq!(state.release(), Duty::CheckAgain);
        assert_eq!(state.release(), Duty::None);
        assert_eq!(state.trigger(), Claim::Won);
        assert_eq!(state.finish(), Duty::Complete(Cause::Triggered));
        assert_eq!(
            (state.trigger(), state.force(), state.expire()),
            (Claim::Lost, Claim::Lost, Claim::Lost)
        );
    }

    #[test]
    fn what_was_promised_during_a_check_is_kept() {
        for condition in [false, true] {
            let end = |state: &State| if condition { state.finish() } else { state.release() };
            let state = idle();
            state.trigger();
            assert_eq!(
                (state.force(), state.cancel(), state.force()),
                (Claim::Left, Claim::Lost, Claim::Lost)
            );
            assert!(state.is_sealed());
            assert_eq!(end(&state), Duty::Complete(Cause::Forced));
            let state = idle();
            state.trigger();
            assert_eq!(
                (state.cancel(), state.expire(), state.trigger()),
                (Claim::Left, Claim::Lost, Claim::Lost)
            );
            assert_eq!(end(&state), Duty::Cancel);
        }
    }

    #[test]
    fn an_expiry_during_a_check_comes_after_the_check() {
        let state = idle();
        state.trigger();
        assert_eq!((state.expire(), state.trigger()), (Claim::Left, Claim::Left));
        assert_eq!(
            (state.release(), state.release(), state.release()),
            (Duty::CheckAgain, Duty::Expire, Duty::None)
        );
        assert_eq!(state.expire(), Claim::Won);
        assert!(state.is_sealed());
    }

    #[test]
    fn what_is_still_being_added_is_not_cancelled_by_key() {
        let state = State::adding();
        assert_eq!(state.cancel_unless_adding(), Claim::Lost);
        assert_eq!(state.release(), Duty::None);
        assert_eq!(state.cancel_unless_adding(), Claim::Won);
    }
}
