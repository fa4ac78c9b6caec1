//! Loads near timers into the wheel: the window, hints, and sweeps for what both have missed.

use crate::entry::Error;
use crate::node::Node;
use crate::store::{NodeId, Page, Place, Store, StoreTime};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often hints are taken: what another node schedules for now is late by as much.
const HINTS: Duration = Duration::from_millis(20);
/// How often what was due lately is looked through, and how lately that is: everything, as on a
/// takeover; what a transaction of some minutes committed late; and each second ten seconds. What
/// lies further back than those is mostly rows that are dead and, under somebody's long
/// transaction, not yet removed. One sweep is planned at a time, so the widest comes first.
const SWEEPS: [(Duration, Duration); 3] = [
    (Duration::from_secs(600), Duration::MAX),
    (Duration::from_secs(30), Duration::from_secs(600)),
    (Duration::from_secs(1), Duration::from_secs(10)),
];
/// What is later than this should have been taken by now.
const OVERDUE: Duration = Duration::from_millis(500);
/// How many places are loaded in one call.
const PAGE: u32 = 10_000;

/// A range of places that is being loaded, a page at a time.
struct Scan {
    slots: Vec<u32>,
    after: Place,
    before: StoreTime,
    sweep: bool,
}

pub(crate) struct Loader<S> {
    node: Arc<Node<S>>,
    scans: VecDeque<Scan>,
    /// The next part of the window, and when it is loaded.
    part: Option<(Instant, Scan)>,
    /// When the window is moved next, and when each of the sweeps is due.
    window: Instant,
    sweeps: [Instant; SWEEPS.len()],
}

pub(crate) async fn run<S: Store>(node: Arc<Node<S>>) {
    let mut loader = Loader::new(Arc::clone(&node));
    let mut member = None;
    loop {
        let current = node.slots.node();
        if current != member {
            // What another lease had loaded is forgotten.
            node.window.clear();
            loader = Loader::new(Arc::clone(&node));
            member = current;
        }
        let Some(id) = member else {
            node.slots.begun().await;
            continue;
        };
        if let Err(error) = loader.round(id).await {
            node.failed(&error, "timers were not loaded");
            node.sleep(HINTS * 5).await;
        }
        if node.timer.sleep(HINTS).await.is_err() {
            return;
        }
    }
}

impl<S: Store> Loader<S> {
    pub(crate) fn new(node: Arc<Node<S>>) -> Self {
        let window = node.timer.now();
        let sweeps = SWEEPS.map(|(every, _)| window + every);
        Loader { node, scans: VecDeque::new(), part: None, window, sweeps }
    }

    /// Takes hints, moves the window and loads a page.
    pub(crate) async fn round(&mut self, id: NodeId) -> Result<(), Error> {
        let node = Arc::clone(&self.node);
        let asked = node.timer.now();
        let hints = node.store.hints(id).await?;
        node.clock.observe(asked, hints.now);
        for place in hints.places {
            if !node.slots.owns(place.slot) {
                node.freed.notify_one(); // It was owned, and may be free by now.
            }
            node.note(place);
        }
        self.move_window(id).await?;
        if let Some((_, part)) = self.part.take_if(|(at, _)| *at <= node.timer.now()) {
            self.scans.push_back(part);
        }
        let news = node.slots.take_news();
        if !news.is_empty() {
            let before = node.window.horizon();
            let after = Place::before(StoreTime::MIN);
            self.scans.push_front(Scan { slots: news, after, before, sweep: false });
        }
        self.plan_sweeps();
        self.step().await
    }

    /// Publishes the next horizon before what lies this side of it is loaded: who writes an earlier
    /// timer after that hints at it, and what was written before is loaded. Who began before and
    /// does not hint may commit later: so it is loaded a while after that, but soon enough.
    async fn move_window(&mut self, id: NodeId) -> Result<(), Error> {
        let node = &self.node;
        if node.timer.now() < self.window {
            return Ok(());
        }
        let (from, before) = (node.window.horizon(), node.clock.latest().plus(node.options.window));
        node.store.publish(id, before).await?;
        node.window.set_horizon(before);
        self.window = node.timer.now() + node.options.window / 2;
        let slots = node.slots.all();
        let scan = Scan { slots, after: Place::before(from), before, sweep: false };
        let wait = from.since(node.clock.latest()) / 4; // None at first, when all of it is near.
        self.part = Some((node.timer.now() + wait, scan));
        Ok(())
    }

    fn plan_sweeps(&mut self) {
        let now = self.node.timer.now();
        for (next, (every, back)) in self.sweeps.iter_mut().zip(SWEEPS) {
            if now < *next || self.scans.iter().any(|scan| scan.sweep) {
                continue;
            }
            *next = now + every;
            let clock = self.node.clock.earliest();
            let (after, before) = (Place::before(clock.minus(back)), clock.minus(OVERDUE));
            let slots = self.node.slots.all();
            // Before the window: what it finds is late already.
            self.scans.push_front(Scan { slots, after, before, sweep: true });
        }
    }

    /// Loads a page of the first scan; as much of it as there is room for.
    #[tracing::instrument(level = "debug", skip_all)]
    async fn step(&mut self) -> Result<(), Error> {
        let node = &self.node;
        let room = node.options.max_near.saturating_sub(node.window.near());
        let Some(scan) = self.scans.front_mut() else { return Ok(()) };
        // A sweep goes on without room: it finds what is late, and there is no end of it otherwise.
        let limit = if scan.sweep { PAGE } else { PAGE.min(u32::try_from(room).unwrap_or(PAGE)) };
        if limit == 0 {
            self.scans.rotate_left(1);
            return Ok(());
        }
        let Scan { after, before, .. } = *scan;
        let page = Page { slots: scan.slots.clone(), after, before, limit };
        let places = node.store.load(page).await?;
        tracing::trace!(places = places.len(), sweep = scan.sweep, "loaded");
        let full = places.len() >= limit as usize;
        if let Some(last) = places.last() {
            scan.after = *last;
        }
        let sweep = scan.sweep;
        // One page of a sweep is enough: the next one finds the rest, when these are done.
        if !full || sweep {
            self.scans.pop_front();
        }
        for place in places {
            let known = !sweep || node.window.is_known(&place);
            node.counters.lock().swept += u64::from(!known);
            if node.slots.owns(place.slot) {
                node.window.file(place, node.clock.instant_of(place.due));
            }
        }
        Ok(())
    }
}
