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
/// takeover; what a transaction of some minutes committed late; and each second ten seconds.
const SWEEPS: [(Duration, Duration); 3] = [
    (Duration::from_secs(600), Duration::MAX),
    (Duration::from_secs(30), Duration::from_secs(600)),
    (Duration::from_secs(1), Duration::from_secs(10)),
];
/// What was due before this is mostly rows that are dead and, under somebody's long transaction,
/// not yet removed, by the million: it is loaded last, and in pieces.
const LATELY: Duration = Duration::from_secs(660);
/// How many slots such a piece has.
const PIECE: usize = 32;
/// What is later than this should have been taken by now.
const OVERDUE: Duration = Duration::from_millis(500);
/// How many places are loaded in one call.
const PAGE: u32 = 10_000;

/// A range of places that is being loaded, a page at a time.
#[derive(Clone)]
struct Scan {
    slots: Vec<u32>,
    after: Place,
    before: StoreTime,
    /// Which of the sweeps it belongs to.
    sweep: Option<usize>,
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
        Loader {
            node,
            scans: VecDeque::new(),
            part: None,
            window,
            sweeps,
        }
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
            self.plan(part);
        }
        let slots = node.slots.take_news();
        if !slots.is_empty() {
            let (after, before) = (Place::before(StoreTime::MIN), node.window.horizon());
            self.plan(Scan {
                slots,
                after,
                before,
                sweep: None,
            });
        }
        self.plan_sweeps();
        let done = self.step().await;
        if done.is_err() {
            self.halve();
        }
        done
    }

    /// Puts a scan before the others, but behind them what of it is long past.
    fn plan(&mut self, mut scan: Scan) {
        let lately = self.node.clock.earliest().minus(LATELY);
        if scan.after.due < lately {
            for slots in scan.slots.chunks(PIECE) {
                let slots = slots.to_vec();
                self.scans.push_back(Scan {
                    slots,
                    before: lately,
                    ..scan.clone()
                });
            }
            scan.after = Place::before(lately);
        }
        self.scans.push_front(scan);
    }

    /// Has what failed go on where it was, and read half as much at a time: there may have been too
    /// much to read while one waits for an answer.
    fn halve(&mut self) {
        if let Some(scan) = self.scans.front_mut().filter(|scan| scan.slots.len() > 1) {
            let slots = scan.slots.split_off(scan.slots.len() / 2);
            let half = Scan {
                slots,
                ..scan.clone()
            };
            self.scans.insert(1, half);
        }
    }

    /// Publishes the next horizon before what lies this side of it is loaded: who writes an earlier
    /// timer after that hints at it, and what was written before is loaded. Who began before and
    /// does not hint may commit later: so it is loaded a while after that, but soon enough.
    async fn move_window(&mut self, id: NodeId) -> Result<(), Error> {
        let node = &self.node;
        if node.timer.now() < self.window {
            return Ok(());
        }
        let (from, before) = (
            node.window.horizon(),
            node.clock.latest().plus(node.options.window),
        );
        node.store.publish(id, before).await?;
        node.window.set_horizon(before);
        self.window = node.timer.now() + node.options.window / 2;
        // At first all slots are new, and loaded as such.
        if from > StoreTime::MIN {
            let slots = node.slots.all();
            let scan = Scan {
                slots,
                after: Place::before(from),
                before,
                sweep: None,
            };
            let wait = from.since(node.clock.latest()) / 4;
            self.part = Some((node.timer.now() + wait, scan));
        }
        Ok(())
    }

    fn plan_sweeps(&mut self) {
        let now = self.node.timer.now();
        for (kind, (every, back)) in SWEEPS.into_iter().enumerate() {
            let sweep = Some(kind);
            if now < self.sweeps[kind] || self.scans.iter().any(|scan| scan.sweep == sweep) {
                continue;
            }
            self.sweeps[kind] = now + every;
            let clock = self.node.clock.earliest();
            let (after, before) = (Place::before(clock.minus(back)), clock.minus(OVERDUE));
            // Before the window: what it finds is late already.
            self.plan(Scan {
                slots: self.node.slots.all(),
                after,
                before,
                sweep,
            });
        }
    }

    /// Loads a page of the first scan; as much of it as there is room for.
    #[tracing::instrument(level = "debug", skip_all)]
    async fn step(&mut self) -> Result<(), Error> {
        let node = &self.node;
        let room = node.options.max_near.saturating_sub(node.window.near());
        let Some(scan) = self.scans.front_mut() else {
            return Ok(());
        };
        // A sweep goes on without room: it finds what is late, and there is no end of it otherwise.
        let sweep = scan.sweep.is_some();
        let limit = if sweep {
            PAGE
        } else {
            PAGE.min(u32::try_from(room).unwrap_or(PAGE))
        };
        if limit == 0 {
            self.scans.rotate_left(1);
            return Ok(());
        }
        let Scan { after, before, .. } = *scan;
        let page = Page {
            slots: scan.slots.clone(),
            after,
            before,
            limit,
        };
        let places = node.store.load(page).await?;
        tracing::trace!(places = places.len(), sweep, "loaded");
        let full = places.len() >= limit as usize;
        if let Some(last) = places.last() {
            scan.after = *last;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Options;
    use crate::store::memory::{Fault, Memory};
    use crate::store::{NewRow, Owned};
    use tickwheel::{ManualClock, Timer};

    /// Returns a loader to which so many slots are new, with a timer in each that is so late.
    async fn loader(slots: u32, late: Duration) -> Loader<Memory> {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .clock(clock.clone())
            .build()
            .expect("it is right");
        let node = Arc::new(Node::new(
            Memory::new(slots, clock),
            timer,
            Options::default(),
        ));
        let now = node.store.now();
        node.clock.observe(node.timer.now(), now);
        let row = |slot| {
            let place = Place {
                due: now.minus(late),
                slot,
                id: i64::from(slot),
            };
            NewRow {
                place,
                ..NewRow::default()
            }
        };
        node.store
            .schedule(NodeId(0), (0..slots).map(row).collect())
            .await
            .expect("no fault");
        let owned: Vec<Owned> = (0..slots).map(|slot| Owned { slot, epoch: 1 }).collect();
        node.slots.reconcile(&owned);
        Loader::new(node)
    }

    /// Seen to fail: all of it was read at once, and begun again after each failure.
    #[tokio::test]
    async fn what_is_long_past_goes_on_in_pieces_where_it_failed() {
        let mut loader = loader(128, LATELY * 10).await;
        let node = Arc::clone(&loader.node);
        let mut near = Vec::new();
        for fails in [
            false, false, true, false, false, true, false, false, false, false,
        ] {
            if fails {
                node.store.inject("load", Fault::Refuse);
            }
            assert_eq!(loader.round(NodeId(1)).await.is_err(), fails);
            near.push(node.window.near());
        }
        assert_eq!(near, [0, 32, 32, 48, 64, 64, 80, 96, 128, 128]);
        assert!(loader.scans.is_empty());
    }

    #[tokio::test]
    async fn what_was_due_lately_is_loaded_first_and_at_once() {
        let mut loader = loader(128, LATELY / 2).await;
        loader.round(NodeId(1)).await.expect("no fault");
        assert_eq!((loader.node.window.near(), loader.scans.len()), (128, 4));
    }
}
