//! A store, its clock, and nodes that are driven by hand.

use crate::entry::{Cancelled, Due, Outcome};
use crate::node::runner::{self, Handler, Runner};
use crate::node::{Node, Options, claimer, membership};
use crate::store::memory::Memory;
use crate::store::{KeyName, NewRow, NodeId, Page, Place, Store, StoreTime};
use shuttle::future::{JoinHandle, spawn, yield_now};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};
use tokio::sync::{Semaphore, mpsc};

pub(super) const LEASE: Duration = Duration::from_secs(3);
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// What was seen, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Begun { by: i64, payload: Vec<u8> },
    Ended { by: i64 },
    Cancelled,
}

pub(super) struct World {
    pub(super) clock: ManualClock,
    pub(super) store: Memory,
    /// std's lock, because it is never held for a step of a schedule.
    log: Mutex<Vec<Event>>,
}

impl World {
    pub(super) fn new() -> Self {
        let clock = ManualClock::new();
        let store = Memory::new(1, clock.clone());
        World {
            clock,
            store,
            log: Mutex::default(),
        }
    }

    pub(super) fn name() -> KeyName {
        KeyName {
            slot: 0,
            key: "key".to_owned(),
        }
    }

    /// Schedules the timer of the one key, as somebody who is no node.
    pub(super) async fn schedule(&self, id: i64, due: StoreTime) -> Place {
        let place = Place { due, slot: 0, id };
        let payload = vec![id as u8];
        let key = Some(World::name().key);
        let row = NewRow {
            place,
            key,
            payload,
            ..NewRow::default()
        };
        self.store
            .schedule(NodeId(0), vec![row])
            .await
            .expect("no fault is injected");
        place
    }

    pub(super) async fn cancel(&self) -> Cancelled {
        let answer = self
            .store
            .cancel(vec![World::name()])
            .await
            .expect("no fault is injected");
        let answer = answer
            .into_iter()
            .next()
            .flatten()
            .expect("an answer for the key");
        if matches!(answer, Cancelled::Cancelled(_)) {
            self.log(Event::Cancelled);
        }
        answer
    }

    pub(super) fn log(&self, event: Event) {
        self.log
            .lock()
            .expect("nothing panics under it")
            .push(event);
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.log.lock().expect("nothing panics under it").clone()
    }

    /// Returns how often a handler began.
    pub(super) fn begun(&self) -> usize {
        self.events()
            .iter()
            .filter(|event| matches!(event, Event::Begun { .. }))
            .count()
    }

    /// Checks that no handler is at work when a cancel has succeeded, and that none begins after
    /// it.
    pub(super) fn check_cancel(&self) {
        let events = self.events();
        let cancelled = events.iter().position(|event| *event == Event::Cancelled);
        let Some((before, after)) = cancelled.map(|at| events.split_at(at)) else {
            return;
        };
        let begun = before
            .iter()
            .filter(|event| matches!(event, Event::Begun { .. }))
            .count();
        let ended = before
            .iter()
            .filter(|event| matches!(event, Event::Ended { .. }))
            .count();
        assert_eq!(begun, ended, "a handler was running: {events:?}");
        assert_eq!(after.len(), 1, "a handler began: {events:?}");
    }
}

/// Renews nothing: leases end with time.
struct Silent;

impl LeaseStore<NodeId> for Silent {
    fn renew(&self, _: Vec<Renewal<NodeId>>) {}
    fn lost(&self, _: NodeId) {}
}

/// A node whose parts are called one by one.
pub(super) struct Actor {
    pub(super) node: Arc<Node<Memory>>,
    pub(super) id: NodeId,
    runner: Arc<Runner<Memory>>,
    room: Arc<Semaphore>,
    acker: JoinHandle<()>,
    /// Its lease ends with these.
    leases: Leases<NodeId>,
}

impl Actor {
    /// Creates a node that has joined, and owns its share.
    pub(super) async fn join(world: &Arc<World>, id: i64, answer: fn(&Due) -> Outcome) -> Self {
        let timer = Timer::builder()
            .wheel_size(4)
            .shards(1)
            .clock(world.clock.clone());
        let timer = timer.build().expect("it can be built");
        let options = Options {
            lease: LEASE,
            window: WINDOW,
            ..Options::default()
        };
        let node = Arc::new(Node::new(world.store.clone(), timer, options));
        node.clock.observe(node.timer.now(), world.store.now());
        let (ended, queue) = mpsc::unbounded_channel();
        let again = ended.downgrade();
        let handler = handler(Arc::clone(world), id, answer);
        let owner = std::sync::Weak::<()>::new();
        let runner = Arc::new(Runner::new(Arc::clone(&node), owner, handler, ended));
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        let acker = spawn(runner::run_acker(Arc::clone(&node), queue, again));
        let room = Arc::new(Semaphore::new(10));
        let leases = Leases::new(&node.timer, LeaseTerms::new(LEASE), Silent);
        let actor = Actor {
            node,
            id: NodeId(id),
            runner,
            room,
            acker,
            leases,
        };
        let asked = actor.node.timer.now();
        actor
            .node
            .store
            .join(actor.id, LEASE)
            .await
            .expect("no fault is injected");
        let lease = actor
            .leases
            .hold_since(actor.id, asked)
            .expect("there is room");
        actor.node.slots.begin(lease, asked);
        actor.round(false).await;
        actor
    }

    pub(super) async fn round(&self, leaving: bool) -> bool {
        let round = membership::round(&self.node, self.id, leaving).await;
        round.expect("no fault is injected").is_none()
    }

    /// Claims what may lie at a place, and has its handler called.
    pub(super) async fn fire(&self, places: Vec<Place>) {
        let mut rows = claimer::claim(&self.node, places, 0).await;
        let suspects = self.node.window.ready.take_suspects(1, 10); // None of them crashes again.
        if !suspects.is_empty() {
            rows.extend(claimer::claim(&self.node, suspects, 1).await);
        }
        for row in rows {
            let permit = Arc::clone(&self.room)
                .acquire_owned()
                .await
                .expect("it stays open");
            self.runner.begin((row, (permit, None)));
        }
    }

    /// Loads what is in the store and due.
    pub(super) async fn load(&self) -> Vec<Place> {
        let (after, before) = (Place::before(StoreTime::MIN), self.node.store.now());
        let before = before.plus(Duration::from_micros(1));
        let loaded = self
            .node
            .store
            .load(Page {
                slots: vec![0],
                after,
                before,
                limit: 10,
            })
            .await;
        loaded.expect("no fault is injected")
    }

    /// Waits until what was claimed is acknowledged.
    pub(super) async fn rest(&self) {
        while self.node.slots.in_flight() > 0 {
            yield_now().await;
        }
    }

    /// Fires what is left, until nothing is; then ends.
    pub(super) async fn settle(self, world: &World) {
        self.rest().await;
        for _ in 0..4 {
            world.clock.advance(Duration::from_millis(100)); // What is tried again later.
            self.fire(self.load().await).await;
            self.rest().await;
        }
        assert!(world.store.is_empty(), "left: {:?}", world.events());
        self.end().await;
    }

    pub(super) async fn end(self) {
        let Actor { runner, acker, .. } = self;
        drop(runner);
        acker.await.expect("it is not aborted");
    }
}

/// Writes down when it begins and ends; between, others have their turn.
fn handler(world: Arc<World>, by: i64, answer: fn(&Due) -> Outcome) -> Handler {
    Box::new(move |due: Due| {
        let world = Arc::clone(&world);
        Box::pin(async move {
            world.log(Event::Begun {
                by,
                payload: due.payload.clone(),
            });
            yield_now().await;
            world.log(Event::Ended { by });
            answer(&due)
        })
    })
}
