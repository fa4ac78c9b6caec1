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
//! All of it happens under the lock of the shard where the operation's record is.

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
/// No other request comes into effect after one of these.
const SEALED: u8 = FORCED | CANCELLED;

#[derive(Debug)]
pub(crate) struct State {
    bits: u8,
    fate: Option<Fate>,
}

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// By the check after it was watched.
    AtOnce,
    Triggered,
    Forced,
    Expired,
    Cancelled,
    /// Its check panicked.
    Panicked,
    /// It goes back to whoever adds it.
    Withdrawn,
}

/// What became of a call that wants an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The caller has it now.
    Won,
    /// Another one holds it, and will do what the caller wants.
    Left,
    /// Its fate is sealed already.
    Lost,
}

/// What a holder has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    CheckAgain,
    /// Have the executor expire it.
    Expire,
    /// End it, as was asked for.
    End,
}

impl Fate {
    pub(crate) const COUNT: usize = 7;

    fn is_completion(self) -> bool {
        matches!(self, Fate::AtOnce | Fate::Triggered | Fate::Forced | Fate::Expired)
    }
}

impl State {
    /// Of an operation that its creator holds, to add it.
    pub(crate) fn adding() -> Self {
        State { bits: HELD | ADDING, fate: None }
    }

    /// Takes the operation over to check its condition.
    pub(crate) fn trigger(&mut self) -> Claim {
        self.claim(HELD, AGAIN)
    }

    /// Ends it: forces, expires or cancels it.
    pub(crate) fn end(&mut self, fate: Fate) -> Claim {
        let claim = self.claim(
            0,
            match fate {
                Fate::Forced => FORCED,
                Fate::Expired => EXPIRED,
                _ => CANCELLED,
            },
        );
        if claim == Claim::Won {
            self.fate = Some(fate);
        }
        claim
    }

    /// Takes over an idle operation by setting `own`, or leaves `request` to its holder.
    fn claim(&mut self, own: u8, request: u8) -> Claim {
        if self.is_sealed() {
            Claim::Lost
        } else if self.bits & HELD != 0 {
            self.bits |= request;
            Claim::Left
        } else {
            self.bits |= own;
            Claim::Won
        }
    }

    /// The holder found the condition false: it lets go, unless somebody left it a request.
    pub(crate) fn release(&mut self) -> Option<Duty> {
        if self.bits & SEALED != 0 {
            Some(Duty::End)
        } else if self.bits & AGAIN != 0 {
            // Before the expiry: the condition may have come true in time.
            self.bits &= !AGAIN;
            Some(Duty::CheckAgain)
        } else if self.bits & EXPIRED != 0 {
            self.bits &= !EXPIRED;
            Some(Duty::Expire)
        } else {
            self.bits &= !(HELD | ADDING);
            None
        }
    }

    /// The holder ends it, as it `wants`; but what somebody has been promised comes first. An
    /// operation whose check panicked is beyond promises.
    pub(crate) fn finish(&mut self, wants: Fate) -> Fate {
        let fate = if wants == Fate::Panicked {
            wants
        } else if self.bits & CANCELLED != 0 {
            if self.is_adding() { Fate::Withdrawn } else { Fate::Cancelled }
        } else if self.bits & FORCED != 0 {
            Fate::Forced
        } else {
            wants
        };
        self.fate = Some(fate);
        fate
    }

    /// Whether its creator still holds it.
    pub(crate) fn is_adding(&self) -> bool {
        self.bits & ADDING != 0
    }

    /// Whether it was completed, or will be by its holder.
    pub(crate) fn is_completed(&self) -> bool {
        self.fate.map_or(self.bits & FORCED != 0, Fate::is_completion)
    }

    /// Whether it has ended, or will be by its holder.
    pub(crate) fn is_sealed(&self) -> bool {
        self.bits & SEALED != 0 || self.has_ended()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.fate.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> State {
        let mut state = State::adding();
        assert_eq!(state.release(), None);
        state
    }

    #[test]
    fn a_trigger_during_a_check_makes_the_holder_check_again() {
        let mut state = idle();
        assert_eq!(state.trigger(), Claim::Won);
        assert_eq!((state.trigger(), state.trigger()), (Claim::Left, Claim::Left));
        assert_eq!(state.release(), Some(Duty::CheckAgain));
        assert_eq!(state.release(), None);
        assert_eq!(state.trigger(), Claim::Won);
        assert_eq!(state.finish(Fate::Triggered), Fate::Triggered);
        assert_eq!(
            (state.trigger(), state.end(Fate::Forced), state.end(Fate::Expired)),
            (Claim::Lost, Claim::Lost, Claim::Lost)
        );
    }

    #[test]
    fn what_was_promised_during_a_check_is_kept() {
        for condition in [false, true] {
            let end = |mut state: State| {
                if !condition {
                    assert_eq!(state.release(), Some(Duty::End));
                }
                let fate = state.finish(Fate::Triggered);
                (fate, state.is_completed())
            };
            let mut state = idle();
            state.trigger();
            assert_eq!(
                (state.end(Fate::Forced), state.end(Fate::Cancelled), state.end(Fate::Forced)),
                (Claim::Left, Claim::Lost, Claim::Lost)
            );
            assert!(state.is_sealed() && state.is_completed());
            assert_eq!(end(state), (Fate::Forced, true));
            let mut state = idle();
            state.trigger();
            assert_eq!(
                (state.end(Fate::Cancelled), state.end(Fate::Expired), state.trigger()),
                (Claim::Left, Claim::Lost, Claim::Lost)
            );
            assert!(state.is_sealed() && !state.is_completed());
            assert_eq!(end(state), (Fate::Cancelled, false));
        }
    }

    #[test]
    fn an_expiry_during_a_check_comes_after_the_check() {
        let mut state = idle();
        state.trigger();
        assert_eq!((state.end(Fate::Expired), state.trigger()), (Claim::Left, Claim::Left));
        assert_eq!(
            (state.release(), state.release(), state.release()),
            (Some(Duty::CheckAgain), Some(Duty::Expire), None)
        );
        assert_eq!(state.end(Fate::Expired), Claim::Won);
        assert!(state.is_sealed());
    }

    #[test]
    fn what_is_still_being_added_goes_back_after_a_shutdown() {
        let mut state = State::adding();
        assert_eq!(state.end(Fate::Cancelled), Claim::Left);
        assert_eq!(state.release(), Some(Duty::End));
        assert_eq!(state.finish(Fate::Triggered), Fate::Withdrawn);
    }
}
