//! When a node claims next, and where the claim begins.

use crate::store::{Claims, Place};
use crate::sync::{Mutex, lock};
use crate::when::{StoreTime, draw};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::sync::Notify;

/// How far before the last claim the next one begins: a row may be committed so long after its
/// statement has read the clock. What takes longer, a look finds.
const SLACK: Duration = Duration::from_millis(200);

pub(crate) struct Agenda {
    timer: Timer,
    /// Locked for a look.
    plan: Mutex<Plan>,
    /// Told when the next claim may be an earlier one.
    pub(crate) stirred: Notify,
}

struct Plan {
    /// Rows before this place are claimed, locked, or unknown here.
    cursor: Place,
    /// The first row that was noted since the last claim began.
    low: Option<Place>,
    /// When a row is due that is known of.
    at: Option<Instant>,
    /// What the store's clock showed, and a moment of this node's clock no earlier.
    shown: StoreTime,
    known: Instant,
    /// When a look last told of the first row.
    looked: Instant,
    /// How long the claims wait for rows of which other nodes know too.
    stagger: Duration,
}

impl Plan {
    /// Learns what the store's clock showed no later than at a moment.
    fn show(&mut self, shown: StoreTime, known: Instant) {
        self.shown = shown;
        self.known = known;
    }

    /// Returns a moment at which a row is due, as early as it is known.
    fn instant_of(&self, due: StoreTime) -> Instant {
        let delay = due.since(self.shown);
        // Rows beyond what an instant can hold are found long before by the claims of each second.
        self.known
            .checked_add(delay)
            .unwrap_or(self.known + DISTANT)
    }

    /// Brings the next claim forward to a moment; returns whether it was to be later.
    fn bring_forward(&mut self, at: Instant) -> bool {
        let is_earlier = self.at.is_none_or(|known| at < known);
        if is_earlier {
            self.at = Some(at);
        }
        is_earlier
    }
}

/// How much later a node claims, at most, whose claims find nothing where rows were due.
const STAGGER: Duration = Duration::from_millis(100);
/// How much that wait grows besides doubling: at random, up to this.
const STEP: Duration = Duration::from_millis(2);
const DISTANT: Duration = Duration::from_secs(3_600);

impl Agenda {
    /// Begins at the store's present. What is due before, a look finds.
    pub(crate) fn new(timer: Timer, shown: StoreTime) -> Self {
        let now = timer.now();
        let plan = Plan {
            cursor: Place::before(shown.minus(SLACK)),
            low: None,
            at: None,
            shown,
            known: now,
            looked: now,
            stagger: Duration::ZERO,
        };
        Agenda {
            timer,
            plan: Mutex::new(plan),
            stirred: Notify::new(),
        }
    }

    /// Notes a row that can be claimed, and what the store's clock shows, if there is news of it.
    /// Other nodes know of a row that is `shared`.
    pub(crate) fn note(&self, shown: Option<StoreTime>, place: Place, shared: bool) {
        let mut plan = lock(&self.plan);
        if let Some(shown) = shown {
            plan.show(shown, self.timer.now());
        }
        plan.low = Some(plan.low.map_or(place, |low| low.min(place)));
        let wait = match shared {
            true => plan.stagger,
            false => Duration::ZERO,
        };
        let at = plan.instant_of(place.due) + wait;
        if plan.bring_forward(at) {
            // The claimer, once woken, asks the plan at once.
            drop(plan);
            self.stirred.notify_one();
        }
    }

    /// Notes that a look has told of the first row, if there is one, and what the store's clock
    /// shows.
    pub(crate) fn note_look(&self, shown: StoreTime) {
        let mut plan = lock(&self.plan);
        plan.looked = self.timer.now();
        let looked = plan.looked;
        plan.show(shown, looked);
    }

    /// Returns when a row is due, if it is known.
    pub(crate) fn next(&self) -> Option<Instant> {
        lock(&self.plan).at
    }

    /// Returns when a look last told of the first row.
    pub(crate) fn looked(&self) -> Instant {
        lock(&self.plan).looked
    }

    /// Returns the place before which claims find nothing: rows there are left to looks.
    pub(crate) fn cursor(&self) -> Place {
        lock(&self.plan).cursor
    }

    /// Begins a claim; returns where, and whether a row is known to be due.
    pub(crate) fn begin(&self) -> (Place, bool) {
        let mut plan = lock(&self.plan);
        // Rows that are noted from now on, the claim may miss.
        if let Some(low) = plan.low.take() {
            plan.cursor = plan.cursor.min(low);
        }
        let is_due = plan.at.is_some_and(|at| at <= self.timer.now());
        plan.at = None;
        (plan.cursor, is_due)
    }

    /// Ends a claim; `was_due` is what its beginning has returned.
    pub(crate) fn end(&self, claims: &Claims, was_due: bool) {
        let mut plan = lock(&self.plan);
        plan.show(claims.now, self.timer.now());
        plan.cursor = match claims.more {
            true => claims.from,
            false => claims.from.min(Place::before(claims.now.minus(SLACK))),
        };
        let found = !claims.rows.is_empty() || claims.more || claims.expired > 0;
        if found {
            plan.stagger /= 2;
        } else if was_due {
            // Another node has the rows. At random: nodes that are late together stay so otherwise.
            let more = STEP / 1_024 * (draw() & 1_023) as u32;
            plan.stagger = (plan.stagger * 2 + more).min(STAGGER);
        }
        if let Some(next) = claims.next {
            let at = plan.instant_of(next.due) + plan.stagger;
            plan.bring_forward(at);
        }
    }
}
