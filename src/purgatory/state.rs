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

/// What is left to do with an operation that its holder has let go: a check goes to the executor;
/// an expiry has the record filed again, already due, unless the shard is closed.
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

    /// Returns whether the operation's time is not up, and its end is undecided.
    pub(crate) fn is_in_time(&self) -> bool {
        self.0 & (SEALED | EXPIRED | OVERDUE) == 0
    }

    /// Returns whether the end is decided; if so, its holder will carry it out.
    pub(crate) fn is_sealed(&self) -> bool {
        self.0 & SEALED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the calls of a script to an operation that is being added, and compares the answers.
    fn play(script: &str) {
        let mut state = OperationState::adding();
        for line in script.split(';') {
            let (call, wanted) = line.split_once(" -> ").expect("a call and its answer");
            let answer = match call.trim() {
                "trigger" => format!("{:?}", state.trigger(true)),
                "hand on" => format!("{:?}", state.hand_on(true)),
                "hand on, timer shut down" => format!("{:?}", state.hand_on(false)),
                "arrive" => format!("{:?}", state.arrive(true)),
                "expire" => format!("{:?}", state.end(EndedBy::Expired)),
                "release" => format!("{:?}", state.release(true)),
                "release, no more checks" => format!("{:?}", state.release(false)),
                other => panic!("{other} is no call"),
            };
            assert_eq!(answer, wanted, "{call} in {script}");
        }
    }

    #[test]
    fn a_request_beyond_what_the_holder_may_check_is_handed_on_once() {
        play(
            "release -> LetGo(None); trigger -> Won(()); trigger -> Deferred;
             release, no more checks -> LetGo(Some(Check)); arrive -> Won(()); trigger -> Deferred;
             release, no more checks -> LetGo(Some(Check)); trigger -> Won(()); trigger -> Deferred;
             release, no more checks -> LetGo(None); trigger -> Won(()); arrive -> Deferred;
             release -> CheckAgain(()); release, no more checks -> LetGo(None);
             arrive -> Lost",
        );
    }

    #[test]
    fn what_nobody_checks_now_is_handed_on_unless_somebody_will() {
        play(
            "release -> LetGo(None); hand on -> true; hand on -> false; arrive -> Won(());
             hand on -> false; release -> CheckAgain(());
             release, no more checks -> LetGo(None); hand on -> true; expire -> Deferred;
             hand on -> false; arrive -> Won(()); release -> LetGo(Some(Expire));
             hand on -> false; hand on, timer shut down -> true",
        );
    }

    #[test]
    fn an_expiry_comes_after_one_more_check_for_what_was_triggered_before() {
        for release in ["release", "release, no more checks"] {
            play(&format!(
                "release -> LetGo(None); trigger -> Won(()); trigger -> Deferred;
                 expire -> Deferred; {release} -> CheckAgain(()); trigger -> Lost;
                 {release} -> LetGo(Some(Expire)); trigger -> Lost; expire -> Won(())"
            ));
        }
        let handed_on = "release -> LetGo(None); trigger -> Won(()); trigger -> Deferred;
            release, no more checks -> LetGo(Some(Check)); expire -> Deferred";
        for next in ["arrive -> Won(()); trigger -> Lost", "trigger -> Won(())"] {
            play(&format!(
                "{handed_on}; {next}; release -> LetGo(Some(Expire)); expire -> Won(());
                 arrive -> Lost"
            ));
        }
    }
}
