//! When a node claims next, and where the claim begins.

use crate::store::{Claims, Place};
use crate::sync::{Mutex, lock, random};
use crate::when::StoreTime;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::sync::Notify;

/// How far before the end of the last claim the next one begins. A row whose transaction commits
/// that long after its statement has read the clock is still met by a claim. Later ones are found
/// by looks.
const SLACK: Duration = Duration::from_millis(200);

pub(crate) struct Agenda {
    timer: Timer,
    /// Locked for a look.
    plan: Mutex<Plan>,
    /// Told when the next claim may be earlier than planned.
    pub(crate) stirred: Notify,
}

struct Plan {
    /// Where claims begin. Rows before this place are claimed or locked, or the node does not know
    /// of them.
    cursor: Place,
    /// The first place that was noted since the last claim began.
    low: Option<Place>,
    /// When the first known row is due.
    at: Option<Instant>,
    /// A time of the store's clock, and a moment of this node's clock at which it had passed.
    shown: StoreTime,
    known: Instant,
    /// When a look last returned the first row.
    looked: Instant,
    /// When the last claim began.
    begun: Instant,
    /// How long claims wait for rows that other nodes know of too: see [`Plan::wait`].
    stagger: Duration,
    /// Whether this node has cancelled or moved timers since the last claim began.
    has_changed: bool,
}

impl Plan {
    /// Notes a time of the store's clock that had passed at a moment.
    fn show(&mut self, shown: StoreTime, known: Instant) {
        self.shown = shown;
        self.known = known;
    }

    /// Returns the moment at which a row is due. It is never too late: an early claim is repeated.
    fn instant_of(&self, due: StoreTime) -> Instant {
        // No overflow: a delay is at most 3,169 years, and each system's `Instant` has 64 bits for
        // its seconds.
        self.known + due.since(self.shown)
    }

    /// Returns how long a claim waits for a row that other nodes know of too. Claims that are far
    /// apart cost the store little, and do not wait.
    fn wait(&self, at: Instant) -> Duration {
        match at > self.begun + STAGGER {
            true => Duration::ZERO,
            false => self.stagger,
        }
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

/// How much later a node claims at most if its claims find nothing although rows were due: a node
/// makes at most 50 such claims a second.
const STAGGER: Duration = Duration::from_millis(20);
/// How much the stagger grows at most, at random, besides doubling.
const STEP: Duration = Duration::from_millis(2);

impl Agenda {
    /// Begins at the store's present. A look finds rows that are due before.
    pub(crate) fn new(timer: Timer, shown: StoreTime) -> Self {
        let now = timer.now();
        let plan = Plan {
            cursor: Place::before(shown.minus(SLACK)),
            low: None,
            at: None,
            shown,
            known: now,
            looked: now,
            begun: now,
            stagger: Duration::ZERO,
            has_changed: false,
        };
        Agenda {
            timer,
            plan: Mutex::new(plan),
            stirred: Notify::new(),
        }
    }

    /// Notes a row that can be claimed, and the time of the store's clock if it is known. Other
    /// nodes know of a `shared` row.
    pub(crate) fn note(&self, shown: Option<StoreTime>, place: Place, shared: bool) {
        let mut plan = lock(&self.plan);
        if let Some(shown) = shown {
            plan.show(shown, self.timer.now());
        }
        plan.low = Some(plan.low.map_or(place, |low| low.min(place)));
        let mut at = plan.instant_of(place.due);
        if shared {
            at += plan.wait(at);
        }
        if plan.bring_forward(at) {
            // The claimer locks the plan as soon as it wakes.
            drop(plan);
            self.stirred.notify_one();
        }
    }

    /// Notes that this node has cancelled or moved timers. The row that the next claim is for may
    /// be gone, though no other node has claimed it.
    pub(crate) fn note_change(&self) {
        lock(&self.plan).has_changed = true;
    }

    /// Notes a look, which has returned the first row, and the time of the store's clock.
    pub(crate) fn note_look(&self, shown: StoreTime) {
        let mut plan = lock(&self.plan);
        plan.looked = self.timer.now();
        let looked = plan.looked;
        plan.show(shown, looked);
    }

    /// Returns when the first known row is due, if there is one.
    pub(crate) fn next(&self) -> Option<Instant> {
        lock(&self.plan).at
    }

    /// Returns when the last look was noted.
    pub(crate) fn looked(&self) -> Instant {
        lock(&self.plan).looked
    }

    /// Returns where claims begin: only looks find rows before that place.
    pub(crate) fn cursor(&self) -> Place {
        lock(&self.plan).cursor
    }

    /// Begins a claim, and returns its place and whether a row must be due, unless another node has
    /// claimed or changed it.
    pub(crate) fn begin(&self) -> (Place, bool) {
        let mut plan = lock(&self.plan);
        // The claim may miss rows that are noted from now on: they count for the next one.
        if let Some(low) = plan.low.take() {
            plan.cursor = plan.cursor.min(low);
        }
        let now = self.timer.now();
        let is_due = plan.at.is_some_and(|at| at <= now) && !plan.has_changed;
        if now > plan.begun + STAGGER {
            plan.stagger = Duration::ZERO;
        }
        plan.begun = now;
        plan.has_changed = false;
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
        let found = !claims.rows.is_empty() || claims.more || claims.expired + claims.held > 0;
        if found {
            plan.stagger /= 2;
        } else if was_due && !plan.has_changed {
            // Another node has claimed the rows. Random, as nodes with the same stagger would go on
            // claiming at the same time.
            let more = STEP / 1_024 * (random() & 1_023) as u32;
            plan.stagger = (plan.stagger * 2 + more).min(STAGGER);
        }
        if let Some(next) = claims.next {
            let at = plan.instant_of(next.due);
            let wait = plan.wait(at);
            plan.bring_forward(at + wait);
        }
    }
}
