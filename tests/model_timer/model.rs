//! The model: what the documentation promises, as a list of timers.
//!
//! A timer expires in the first `advance_clock` whose present, rounded down to a tick, is at or
//! after its deadline, rounded up to one. One whose deadline had passed when it was added, or
//! moved, expires in the next `advance_clock`. One that was extended may expire as soon as its
//! deadline has passed.
//!
//! Timers leave in the order of the ticks of their deadlines. One whose deadline had passed leaves
//! between the tick of its deadline and that in which it was added or moved.

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
    /// It has expired after the turn of this tick.
    by: u64,
    /// It does not expire with earlier ticks in a turn.
    from: u64,
    state: State,
}

impl Timer {
    pub(crate) fn new(deadline: u64, now: &Moment) -> Self {
        let deadline = deadline.min(NEVER);
        let mut timer = Timer {
            deadline,
            by: 0,
            from: 0,
            state: State::Pending,
        };
        timer.file(now);
        timer
    }

    fn file(&mut self, now: &Moment) {
        let tick = now.tick_of(self.deadline);
        let present = now.rounded_down();
        let is_due = self.deadline <= now.nanos;
        (self.by, self.from) = if is_due { (present, 0) } else { (tick, tick) };
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
        if !self.is_pending() || (extend && deadline <= self.deadline) {
            return false;
        }
        let is_other = deadline != self.deadline;
        self.deadline = deadline;
        if extend {
            // It stays where it is until that is looked at.
            let tick = now.tick_of(deadline);
            self.by = self.by.max(tick);
            self.from = self.from.min(tick);
        } else {
            self.file(now);
        }
        is_other
    }

    pub(crate) fn give_back(&mut self) {
        assert_eq!(
            self.state,
            State::Pending,
            "returned, and it was not pending"
        );
        self.state = State::Returned;
    }
}

/// Marks those that have expired, which must be those that had to.
pub(crate) fn expire(timers: &mut [Timer], fired: &[u32], now: &Moment) {
    let mut has_fired = vec![false; timers.len()];
    for &id in fired {
        assert!(
            !std::mem::replace(&mut has_fired[id as usize], true),
            "{id} has expired twice"
        );
    }
    for (id, timer) in timers
        .iter_mut()
        .enumerate()
        .filter(|(_, timer)| timer.is_pending())
    {
        let is_due = has_fired[id];
        assert!(
            !is_due || timer.deadline <= now.nanos,
            "{id} is early: {timer:?}"
        );
        assert!(
            is_due || timer.by > now.rounded_down(),
            "{id} is late: {timer:?}"
        );
        if is_due {
            has_fired[id] = false;
            timer.state = State::Expired;
        }
    }
    assert!(
        !has_fired.contains(&true),
        "one has expired that was not pending: {fired:?}"
    );
}

/// Checks that timers come in the order of their ticks.
pub(crate) fn check_order(timers: &[Timer], fired: &[u32], now: &Moment) {
    let mut latest = 0;
    for timer in fired.iter().map(|id| &timers[*id as usize]) {
        let until = timer.by.max(now.tick_of(timer.deadline));
        assert!(latest <= until, "out of order: {timer:?} in {fired:?}");
        latest = latest.max(timer.from.min(now.rounded_down()));
    }
}

/// Returns how many were cancelled, have expired, and were returned.
pub(crate) fn count(timers: &[Timer]) -> [u64; 3] {
    [State::Cancelled, State::Expired, State::Returned]
        .map(|state| timers.iter().filter(|timer| timer.state == state).count() as u64)
}
