//! The state word of a delayed operation: whether a thread holds it, and which requests it got
//! since.
//!
//! A thread has to hold an operation to touch it, and no thread waits for that. A thread that finds
//! the operation held leaves a request in the word and moves on; the holder serves all requests
//! before it lets go. So no trigger is lost, no thread blocks, and no two pieces of an operation's
//! code ever run at the same time.
//!
//! No thread serves others without a bound. A holder checks once for the triggers that arrived
//! during its own check. A later request becomes an errand, which the holder leaves to the
//! executor. Once the operation's time is up there is at most one more check, for the triggers that
//! arrived before: later ones are too late.
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
//! All of it happens under the lock of the shard where the operation's record is.

/// A thread holds the operation.
const HELD: u8 = 1;
/// Its holder is still adding it.
const ADDING: u8 = 2;
/// Requests to the holder: check again; expire the operation by way of the executor; complete it;
/// let it go.
const AGAIN: u8 = 4;
const EXPIRED: u8 = 8;
const FORCED: u8 = 16;
const CANCELLED: u8 = 32;
/// No other request takes effect after one of these.
const SEALED: u8 = FORCED | CANCELLED;
/// A check is on its way to the executor. There is no second one, however many threads ask.
const HANDED: u8 = 64;
/// The operation's time is up and its last check has begun: no trigger takes effect any more.
const OVERDUE: u8 = 128;

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
    End(O),
    /// The holder has let go; afterwards it has to run the errand.
    LetGo(Option<Errand>),
}

/// What the executor has to do with an operation that no thread holds any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    Check,
    Expire,
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

    /// Takes the operation over to check its condition. If its time is up and its last check has
    /// begun, that is too late; unless the timer no longer `expires` anything, so that only this
    /// call may end it.
    pub(crate) fn trigger(&mut self, expires: bool) -> Claim {
        if expires && self.0 & OVERDUE != 0 {
            return Claim::Lost;
        }
        let claim = self.claim(HELD, AGAIN);
        if claim == Claim::Won(()) && self.0 & EXPIRED != 0 {
            self.0 |= OVERDUE;
        }
        claim
    }

    /// Has the executor check the operation, unless its holder will, or a check is on its way
    /// there, or it is too late. Returns whether the caller has to hand the check on.
    pub(crate) fn hand_on(&mut self, expires: bool) -> bool {
        let is_in_time = !expires || self.0 & OVERDUE == 0;
        let is_first = self.0 & HANDED == 0;
        is_in_time && self.claim(HANDED, AGAIN) == Claim::Won(()) && is_first
    }

    /// Takes the operation over for a check that was handed to the executor and has arrived; the
    /// check may have been made before.
    pub(crate) fn arrive(&mut self, expires: bool) -> Claim {
        let was_handed = self.0 & HANDED != 0;
        self.0 &= !HANDED;
        if was_handed { self.trigger(expires) } else { Claim::Lost }
    }

    /// Ends the operation: forces, expires or cancels it.
    pub(crate) fn end(&mut self, fate: EndedBy) -> Claim {
        if fate == EndedBy::Expired && self.0 & (HANDED | OVERDUE | SEALED) == HANDED {
            // A trigger that arrived in time is on its way: the thread that makes its check handles
            // this.
            self.0 |= EXPIRED;
            return Claim::Deferred;
        }
        let request = match fate {
            EndedBy::Forced => FORCED,
            EndedBy::Expired => EXPIRED,
            _ => CANCELLED,
        };
        self.claim(0, request)
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
    /// still `may_check` for the triggers that arrived since.
    pub(crate) fn release(&mut self, may_check: bool) -> Next {
        if self.0 & SEALED != 0 {
            return Next::End(());
        }
        let asked = self.0 & AGAIN != 0;
        self.0 &= !AGAIN;
        let expired = self.0 & EXPIRED != 0;
        if expired {
            self.0 |= OVERDUE;
        }
        // This also holds when the time is up, because the condition may have become true before.
        if asked && (may_check || expired) {
            return Next::CheckAgain(());
        }
        self.0 &= !(HELD | ADDING);
        if expired {
            return Next::LetGo(Some(Errand::Expire));
        }
        let hands_on = asked && self.0 & HANDED == 0;
        if hands_on {
            self.0 |= HANDED;
        }
        Next::LetGo(hands_on.then_some(Errand::Check))
    }

    /// Returns how the operation ends: as its holder `wants`, or as another thread has requested
    /// since. A check that returned true may have claimed an item, so a cancel is too late then. A
    /// force completes the operation as well, and only changes how it is counted. Neither has an
    /// effect on an operation whose check panicked.
    pub(crate) fn finish(&self, wants: EndedBy) -> EndedBy {
        if wants != EndedBy::Panicked && self.0 & FORCED != 0 {
            EndedBy::Forced
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

    /// Returns whether the end is decided; if so, its holder will carry it out.
    pub(crate) fn is_sealed(&self) -> bool {
        self.0 & SEALED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Next = Next::LetGo(None);
    const AGAIN: Next = Next::CheckAgain(());
    const HANDS_ON: Next = Next::LetGo(Some(Errand::Check));
    const EXPIRES: Next = Next::LetGo(Some(Errand::Expire));

    fn idle() -> OperationState {
        let mut state = OperationState::adding();
        assert_eq!(state.release(true), WAITS);
        state
    }

    #[test]
    fn a_trigger_during_a_check_makes_the_holder_check_again() {
        let mut state = idle();
        assert_eq!(state.trigger(true), Claim::Won(()));
        assert_eq!((state.trigger(true), state.trigger(true)), (Claim::Deferred, Claim::Deferred));
        assert_eq!((state.release(true), state.release(false)), (AGAIN, WAITS));
        assert_eq!(state.trigger(true), Claim::Won(()));
        assert_eq!(state.finish(EndedBy::Triggered), EndedBy::Triggered);
    }

    #[test]
    fn what_was_promised_during_a_check_is_kept_but_a_cancel_comes_too_late_for_a_true_one() {
        for condition in [false, true] {
            let end = |mut state: OperationState| {
                if !condition {
                    assert_eq!(state.release(true), Next::End(()));
                }
                let wants = if condition { EndedBy::Triggered } else { EndedBy::Cancelled };
                state.finish(wants)
            };
            let mut state = idle();
            state.trigger(true);
            assert_eq!(
                (
                    state.end(EndedBy::Forced),
                    state.end(EndedBy::Cancelled),
                    state.end(EndedBy::Forced)
                ),
                (Claim::Deferred, Claim::Lost, Claim::Lost)
            );
            assert!(state.is_sealed());
            assert_eq!(end(state), EndedBy::Forced);
            let mut state = idle();
            state.trigger(true);
            assert_eq!(
                (state.end(EndedBy::Cancelled), state.end(EndedBy::Expired), state.trigger(true)),
                (Claim::Deferred, Claim::Lost, Claim::Lost)
            );
            assert!(state.is_sealed());
            let fate = if condition { EndedBy::Triggered } else { EndedBy::Cancelled };
            assert_eq!(end(state), fate);
        }
    }

    #[test]
    fn a_request_beyond_what_the_holder_may_check_is_handed_on_once() {
        let mut state = idle();
        assert_eq!((state.trigger(true), state.trigger(true)), (Claim::Won(()), Claim::Deferred));
        assert_eq!((state.release(false), state.arrive(true)), (HANDS_ON, Claim::Won(())));
        assert_eq!((state.trigger(true), state.release(false)), (Claim::Deferred, HANDS_ON));
        assert_eq!((state.trigger(true), state.trigger(true)), (Claim::Won(()), Claim::Deferred));
        assert_eq!(state.release(false), WAITS, "one is on its way");
        assert_eq!((state.trigger(true), state.arrive(true)), (Claim::Won(()), Claim::Deferred));
        assert_eq!((state.release(true), state.release(false)), (AGAIN, WAITS));
        assert_eq!(state.arrive(true), Claim::Lost, "none was on its way");
    }

    #[test]
    fn what_nobody_checks_now_is_handed_on_unless_somebody_will() {
        let mut state = idle();
        assert!(state.hand_on(true));
        assert!(!state.hand_on(true), "one is on its way");
        assert_eq!((state.arrive(true), state.hand_on(true)), (Claim::Won(()), false));
        assert_eq!((state.release(true), state.release(false)), (AGAIN, WAITS), "its holder will");
        assert!(state.hand_on(true));
        assert_eq!((state.end(EndedBy::Expired), state.hand_on(true)), (Claim::Deferred, false));
        assert_eq!((state.arrive(true), state.release(true)), (Claim::Won(()), EXPIRES));
        assert!(!state.hand_on(true), "its last check was made");
        assert!(state.hand_on(false), "but nothing else may end it");
    }

    #[test]
    fn an_expiry_during_a_check_comes_after_one_more_check() {
        for may_check in [true, false] {
            let mut state = idle();
            assert_eq!(
                (state.trigger(true), state.trigger(true)),
                (Claim::Won(()), Claim::Deferred)
            );
            assert_eq!(state.end(EndedBy::Expired), Claim::Deferred);
            assert_eq!((state.release(may_check), state.trigger(true)), (AGAIN, Claim::Lost));
            assert_eq!((state.release(may_check), state.trigger(true)), (EXPIRES, Claim::Lost));
            assert_eq!(state.end(EndedBy::Expired), Claim::Won(()));
        }
    }

    /// Returns the state of an operation whose time is up, and a check of which is on its way.
    fn expired_and_handed_on() -> OperationState {
        let mut state = idle();
        assert_eq!((state.trigger(true), state.trigger(true)), (Claim::Won(()), Claim::Deferred));
        assert_eq!(
            (state.release(false), state.end(EndedBy::Expired)),
            (HANDS_ON, Claim::Deferred)
        );
        state
    }

    #[test]
    fn an_expiry_waits_for_a_check_that_is_on_its_way_and_that_is_the_last() {
        let mut state = expired_and_handed_on();
        assert_eq!((state.arrive(true), state.trigger(true)), (Claim::Won(()), Claim::Lost));
        assert_eq!((state.release(true), state.end(EndedBy::Expired)), (EXPIRES, Claim::Won(())));
    }

    #[test]
    fn an_expiry_does_not_wait_for_a_check_on_its_way_after_another_was_the_last() {
        let mut state = expired_and_handed_on();
        assert_eq!((state.trigger(true), state.release(true)), (Claim::Won(()), EXPIRES));
        assert_eq!(state.end(EndedBy::Expired), Claim::Won(()));
        assert_eq!(state.arrive(true), Claim::Lost);
    }

    #[test]
    fn what_is_still_being_added_goes_back_after_a_shutdown_unless_it_is_complete() {
        let mut state = OperationState::adding();
        assert_eq!(state.end(EndedBy::Cancelled), Claim::Deferred);
        assert_eq!(state.release(true), Next::End(()));
        assert_eq!(state.finish(EndedBy::Cancelled), EndedBy::Withdrawn);
        let mut state = OperationState::adding();
        assert_eq!(state.end(EndedBy::Cancelled), Claim::Deferred);
        assert_eq!(state.finish(EndedBy::AtOnce), EndedBy::AtOnce);
    }
}
