#![doc = include_str!("states.md")]
// The functions below are the plain model of the table. The stores in memory and in a file run
// them, and tests compare PostgreSQL with them.

use crate::entry::{Cancelled, DeadTimer, Listed, Scheduled, Touched};
use crate::store::{ALONE, Bulk, Claimed, Claims, Ending, Name, NewTimer, Place};
use crate::when::{Moment, StoreTime};
use std::time::Duration;

/// The timer of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timer {
    pub(super) id: i64,
    pub(super) due: StoreTime,
    pub(super) planned: StoreTime,
    pub(super) expires_after: Option<Duration>,
    /// The end of the debounce.
    pub(super) waits_until: Option<StoreTime>,
    /// When the timer was due before a pause put it off.
    pub(super) held_from: Option<StoreTime>,
    pub(super) tag: Option<String>,
    pub(super) payload: Vec<u8>,
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// Whether the timer was cancelled while a handler had it: the timer ends with its run, or with
    /// the next run if the node died.
    pub(super) marked: bool,
}

/// What happens to a claimed row at the end of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The outcome decides, unless the timer is marked.
    Outcome,
    /// This timer takes the row.
    Next(Timer),
    /// The row is deleted: the timer that was to take the row was cancelled.
    Nothing,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The token of the claim, or of the last one.
    pub(super) token: i64,
    pub(super) timer: Timer,
    pub(super) state: State,
}

/// Who has the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Claimed {
        until: StoreTime,
        then: Then,
    },
    /// The due time is that of the death.
    Dead {
        reason: String,
        former: Name,
    },
}

/// A claim that has run out. The order is that of takeovers.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lapsed {
    pub(super) crashes: u32,
    token: i64,
    pub(super) name: Name,
}

impl Timer {
    fn new(new: &NewTimer, waits: Option<StoreTime>, now: StoreTime) -> Self {
        let mut due = new.when.due(now);
        let mut planned = new.when.planned.unwrap_or(due);
        let mut waits_until = None;
        if let Some(max_wait) = new.max_wait {
            let end = now.plus(max_wait);
            let end = waits.map_or(end, |earlier| earlier.min(end));
            waits_until = Some(end);
            // The end may have passed if no node could claim the timer. No row is written that is
            // due in the past.
            due = due.min(end.max(now));
            // Lateness counts from this moment, and not from a later one that the call has asked
            // for.
            planned = due;
        }
        Timer {
            id: new.id,
            due,
            planned,
            expires_after: new.expires_after,
            waits_until,
            held_from: None,
            tag: new.tag.clone(),
            payload: new.payload.clone(),
            attempts: 0,
            crashes: 0,
            marked: false,
        }
    }

    fn move_to(&mut self, moment: &Moment, now: StoreTime) {
        self.due = moment.due(now);
        self.planned = moment.planned.unwrap_or(self.due);
        self.held_from = None;
    }

    /// Sets the due time, which is not before now, and keeps the planned one.
    fn put_off(&mut self, to: StoreTime, now: StoreTime) {
        self.due = to.max(now);
        self.held_from = None;
    }

    pub(super) fn place(&self) -> Place {
        Place {
            due: self.due,
            id: self.id,
        }
    }

    pub(super) fn has_expired(&self, now: StoreTime) -> bool {
        self.expires_after
            .is_some_and(|after| now > self.planned.plus(after))
    }
}

impl Row {
    /// Returns the row of a timer whose name had no row. Its tokens will be greater than `last`.
    pub(super) fn new(new: &NewTimer, last: i64, now: StoreTime) -> Self {
        Row {
            token: last,
            timer: Timer::new(new, None, now),
            state: State::Free,
        }
    }

    /// Writes a timer over the row.
    pub(super) fn schedule(&mut self, new: &NewTimer, now: StoreTime) -> Scheduled {
        let timer = &mut self.timer;
        match &mut self.state {
            State::Free => {
                // A marked timer ends with its run, and an expired one ends unrun: neither is kept.
                if new.keep && !timer.marked && !timer.has_expired(now) {
                    return Scheduled::Kept;
                }
                *timer = Timer::new(new, timer.waits_until, now);
            }
            State::Claimed { then, .. } => {
                let (stays, waits) = match then {
                    Then::Outcome => (!timer.marked, None),
                    Then::Next(next) => (!next.has_expired(now), next.waits_until),
                    Then::Nothing => (false, None),
                };
                if new.keep && stays {
                    return Scheduled::Kept;
                }
                *then = Then::Next(Timer::new(new, waits, now));
            }
            State::Dead { .. } => {} // Never: a dead timer has a name of its own.
        }
        Scheduled::Replaced
    }

    /// Cancels the timer that no handler has. Returns the answer, and whether the row is deleted.
    pub(super) fn cancel(&mut self) -> (Cancelled, bool) {
        let timer = &mut self.timer;
        match &mut self.state {
            State::Free if !timer.marked => {
                let payload = std::mem::take(&mut timer.payload);
                return (Cancelled::Cancelled(payload), true);
            }
            State::Claimed { then, .. } => match then {
                Then::Outcome => timer.marked = true,
                Then::Next(next) => {
                    let payload = std::mem::take(&mut next.payload);
                    *then = Then::Nothing;
                    // Lists would show them as those of the cancelled timer.
                    timer.payload = Vec::new();
                    timer.tag = None;
                    return (Cancelled::Cancelled(payload), false);
                }
                Then::Nothing => {}
            },
            State::Free | State::Dead { .. } => {}
        }
        (Cancelled::Running, false)
    }

    /// Moves the timer that no handler has.
    pub(super) fn touch(&mut self, moment: &Moment, now: StoreTime) -> Touched {
        match &mut self.state {
            State::Free if !self.timer.marked => self.timer.move_to(moment, now),
            State::Claimed {
                then: Then::Next(next),
                ..
            } => next.move_to(moment, now),
            _ => return Touched::Running,
        }
        Touched::Moved
    }

    /// Returns the timer that can be cancelled or moved: no handler has it, or had it when its node
    /// died.
    pub(super) fn waiting(&self) -> Option<&Timer> {
        match &self.state {
            State::Free if !self.timer.marked => Some(&self.timer),
            State::Claimed {
                then: Then::Next(next),
                ..
            } => Some(next),
            _ => None,
        }
    }

    /// Returns the row's place if the row can be claimed, now or later.
    pub(super) fn place(&self) -> Option<Place> {
        matches!(self.state, State::Free).then(|| self.timer.place())
    }

    /// Puts a timer off to the end of a pause.
    pub(super) fn hold(&mut self, until: StoreTime) {
        // If an earlier pause has put the timer off, the time before that pause counts.
        self.timer.held_from.get_or_insert(self.timer.due);
        self.timer.due = until;
    }

    /// Claims a free row that is due. `None`: the row is deleted.
    pub(super) fn claim(
        mut self,
        name: &Name,
        lease: Duration,
        claims: &mut Claims,
    ) -> Option<Row> {
        self.timer.attempts += 1;
        self.begin(name, lease, claims)
    }

    /// Returns the row's claim if it has run out.
    pub(super) fn lapsed(&self, name: &Name, now: StoreTime) -> Option<Lapsed> {
        match self.state {
            State::Claimed { until, .. } if until <= now => Some(Lapsed {
                crashes: self.timer.crashes,
                token: self.token,
                name: name.clone(),
            }),
            _ => None,
        }
    }

    /// Takes over a claim that has run out. `None`: the row is deleted.
    pub(super) fn take_over(
        mut self,
        name: &Name,
        lease: Duration,
        claims: &mut Claims,
    ) -> Option<Row> {
        let State::Claimed { then, .. } = self.state else {
            return Some(self);
        };
        self.state = State::Free;
        match then {
            Then::Next(next) => return Some(self.follow(next, claims.now)),
            Then::Nothing => return None,
            Then::Outcome => {}
        }
        // Another timer may have caused the first crashes: the attempt begins again.
        if self.timer.crashes >= ALONE {
            self.timer.attempts += 1;
        }
        self.timer.crashes += 1;
        self.begin(name, lease, claims)
    }

    /// Claims the timer. The token is greater than the last one. `None`: the timer has expired, and
    /// the row is deleted.
    fn begin(mut self, name: &Name, lease: Duration, claims: &mut Claims) -> Option<Row> {
        let now = claims.now;
        let timer = &mut self.timer;
        if timer.has_expired(now) {
            claims.expired += 1;
            return None;
        }
        // By the clock alone it would not be: the clock may stand still between two claims, or go
        // back.
        self.token = now.as_micros().max(self.token + 1);
        timer.held_from = None;
        timer.waits_until = None;
        claims.rows.push(Claimed {
            name: name.clone(),
            token: self.token,
            id: timer.id,
            due: timer.due,
            planned: timer.planned,
            attempts: timer.attempts,
            crashes: timer.crashes,
            tag: timer.tag.clone(),
            payload: timer.payload.clone(),
        });
        self.state = State::Claimed {
            until: now.plus(lease),
            then: Then::Outcome,
        };
        Some(self)
    }

    /// Lets the claim of this token last until `to`. Returns whether the row has that claim.
    pub(super) fn renew(&mut self, claim: i64, to: StoreTime) -> bool {
        match &mut self.state {
            State::Claimed { until, .. } if self.token == claim => {
                *until = to;
                true
            }
            _ => false,
        }
    }

    /// Returns whether the row has the claim of this token.
    pub(super) fn is_claimed_by(&self, claim: i64) -> bool {
        self.token == claim && matches!(self.state, State::Claimed { .. })
    }

    /// Ends the claim. Returns the row that is left, if any, and its name.
    pub(super) fn end(mut self, name: Name, ending: Ending, now: StoreTime) -> Option<(Name, Row)> {
        let State::Claimed { then, .. } = self.state else {
            return Some((name, self));
        };
        self.state = State::Free;
        match then {
            Then::Next(next) => return Some((name, self.follow(next, now))),
            Then::Nothing => return None,
            Then::Outcome => {}
        }
        let timer = &mut self.timer;
        // A cancel has promised a run: a timer whose run did not come to its end, or whose outcome
        // was refused, runs once more.
        let is_back = matches!(ending, Ending::GiveBack | Ending::PutBack(_));
        if timer.marked && !is_back {
            return None;
        }
        match ending {
            Ending::Done => return None,
            Ending::Retry(moment) => {
                timer.put_off(moment.due(now), now);
                // The run did not crash: another timer caused the earlier crashes.
                timer.crashes = 0;
            }
            Ending::Again(moment, payload) => {
                timer.move_to(&moment, now);
                timer.payload = payload;
                timer.attempts = 0;
                timer.crashes = 0;
            }
            Ending::GiveBack => {
                timer.put_off(timer.due, now);
                // No run has come to its end without a crash: the crashes stay.
                timer.attempts -= 1;
            }
            Ending::PutBack(after) => {
                timer.put_off(now.plus(after), now);
                timer.crashes = 0;
            }
            Ending::Dead(reason) => {
                let dead = Name::of_dead(timer.id);
                timer.due = now;
                self.state = State::Dead {
                    reason,
                    former: name,
                };
                return Some((dead, self));
            }
        }
        Some((name, self))
    }

    /// Moves a timer that a pause has put off back to its time.
    pub(super) fn release(&mut self, now: StoreTime) {
        let due = self.timer.held_from.unwrap_or(self.timer.due);
        self.timer.put_off(due, now);
    }

    /// Makes a dead timer due. Returns the state before.
    pub(super) fn requeue(&mut self, now: StoreTime) -> State {
        self.timer.due = now;
        // By its former planned time the timer may have expired long ago.
        self.timer.planned = now;
        self.timer.attempts = 0;
        self.timer.crashes = 0;
        std::mem::replace(&mut self.state, State::Free)
    }

    /// Gives the row to a timer that has waited for the end of a run.
    fn follow(mut self, next: Timer, now: StoreTime) -> Row {
        self.timer = next;
        // The due time may have passed during the run.
        self.timer.put_off(self.timer.due, now);
        self
    }
}

impl Bulk {
    /// Returns whether the change is for this row.
    pub(super) fn is_for(&self, row: &Row) -> bool {
        let timer = match (self, &row.state) {
            (Bulk::Cancel(_) | Bulk::Touch(..), _) => row.waiting(),
            (Bulk::Release(_), State::Free) => row.timer.held_from.map(|_| &row.timer),
            (Bulk::Requeue(_) | Bulk::Delete(_), State::Dead { .. }) => Some(&row.timer),
            _ => None,
        };
        let fits = |timer: &Timer| self.tag().is_none() || timer.tag.as_deref() == self.tag();
        timer.is_some_and(fits)
    }
}

impl Row {
    /// Returns the entry of the row in lists, unless the timer is dead.
    pub(super) fn listed(&self, name: &Name) -> Option<Listed> {
        let listed = |timer: &Timer, running| Listed {
            id: timer.id,
            key: name.key().map(str::to_owned),
            tag: timer.tag.clone(),
            payload: timer.payload.clone(),
            at: timer.due,
            attempts: timer.attempts,
            running,
        };
        match &self.state {
            State::Free => Some(listed(&self.timer, false)),
            State::Claimed { then, .. } => Some(match then {
                Then::Outcome | Then::Nothing => listed(&self.timer, true),
                Then::Next(next) => listed(next, true),
            }),
            State::Dead { .. } => None,
        }
    }

    /// Returns the entry of a dead timer in lists.
    pub(super) fn dead(&self) -> Option<DeadTimer> {
        let State::Dead { reason, former } = &self.state else {
            return None;
        };
        let timer = &self.timer;
        Some(DeadTimer {
            id: timer.id,
            key: former.key().map(str::to_owned),
            payload: timer.payload.clone(),
            tag: timer.tag.clone(),
            attempts: timer.attempts,
            reason: reason.clone(),
            died: timer.due,
        })
    }
}
