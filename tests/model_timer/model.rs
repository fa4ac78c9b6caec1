//! The model: what the documentation promises, as a list of timers.
//!
//! A timer whose deadline had passed when it was added, or moved to an earlier deadline, *has
//! elapsed*: it expires in the next `advance_clock`, before all others. Any other expires in the
//! first `advance_clock` whose present, rounded down to a tick, is at or after its deadline,
//! rounded up to one; they leave in the order of those ticks. One that had elapsed and was
//! extended to another tick before that `advance_clock` is like any other; but if the new deadline
//! had passed as well, it may still leave among the elapsed ones.

use super::times::{Moment, NEVER};
use tickwheel::Cancel;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Pending,
    Expired,
    Cancelled,
    Returned,
}

#[derive(Debug)]
pub(crate) struct Timer {
    pub(crate) deadline: u64,
    has_elapsed: bool,
    /// It had elapsed, and was extended to a deadline that had passed as well.
    may_come_first: bool,
    state: State,
}

impl Timer {
    pub(crate) fn new(deadline: u64, now: &Moment) -> Self {
        let deadline = deadline.min(NEVER);
        let (has_elapsed, state) = (deadline <= now.nanos, State::Pending);
        Timer { deadline, has_elapsed, may_come_first: false, state }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.state == State::Pending
    }

    /// Returns the state as the handle tells it: pending, expired, cancelled.
    pub(crate) fn state(&self) -> (bool, bool, bool) {
        let expired = matches!(self.state, State::Expired | State::Returned);
        (self.is_pending(), expired, self.state == State::Cancelled)
    }

    pub(crate) fn cancel(&mut self, task: u32) -> Cancel<u32> {
        match self.state {
            State::Pending => {
                self.state = State::Cancelled;
                Cancel::Cancelled(task)
            }
            State::Expired | State::Returned => Cancel::Expired,
            State::Cancelled => Cancel::AlreadyCancelled,
        }
    }

    /// Returns whether the deadline has changed.
    pub(crate) fn move_to(&mut self, deadline: u64, extend: bool, now: &Moment) -> bool {
        let deadline = deadline.min(NEVER);
        if !self.is_pending() || deadline == self.deadline || (extend && deadline < self.deadline) {
            return false;
        }
        if deadline < self.deadline {
            (self.has_elapsed, self.may_come_first) = (deadline <= now.nanos, false);
        } else {
            let had_elapsed = self.has_elapsed || self.may_come_first;
            self.has_elapsed &= now.tick_of(deadline) == now.tick_of(self.deadline);
            self.may_come_first = had_elapsed && !self.has_elapsed && deadline <= now.nanos;
        }
        self.deadline = deadline;
        true
    }

    pub(crate) fn give_back(&mut self) {
        assert_eq!(self.state, State::Pending, "returned, and it was not pending");
        self.state = State::Returned;
    }
}

/// Marks those that have expired, which must be those that had to.
pub(crate) fn expire(timers: &mut [Timer], fired: &[u32], now: &Moment) {
    let mut has_fired = vec![false; timers.len()];
    for &id in fired {
        assert!(!std::mem::replace(&mut has_fired[id as usize], true), "{id} has expired twice");
    }
    for (id, timer) in timers.iter_mut().enumerate().filter(|(_, timer)| timer.is_pending()) {
        let is_due = if timer.has_elapsed {
            timer.deadline <= now.nanos
        } else {
            now.tick_of(timer.deadline) <= now.rounded_down()
        };
        assert_eq!(has_fired[id], is_due, "whether {id} has expired: {timer:?}");
        (timer.has_elapsed, timer.may_come_first) = (false, false);
        if is_due {
            has_fired[id] = false;
            timer.state = State::Expired;
        }
    }
    assert!(!has_fired.contains(&true), "one has expired that was not pending: {fired:?}");
}

/// Checks that elapsed timers come first, and the others by their ticks.
pub(crate) fn check_order(timers: &[Timer], fired: &[u32], now: &Moment) {
    let turn = |id: &u32| {
        let timer = &timers[*id as usize];
        if timer.has_elapsed { 0 } else { now.tick_of(timer.deadline) }
    };
    let fired = fired.iter().filter(|id| !timers[**id as usize].may_come_first);
    let turns: Vec<_> = fired.map(|id| (turn(id), id)).collect();
    assert!(turns.is_sorted_by_key(|(turn, _)| turn), "ticks and timers: {turns:?}");
}

/// Returns how many were cancelled, have expired, and were returned.
pub(crate) fn count(timers: &[Timer]) -> [u64; 3] {
    [State::Cancelled, State::Expired, State::Returned]
        .map(|state| timers.iter().filter(|timer| timer.state == state).count() as u64)
}
