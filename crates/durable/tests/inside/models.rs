//! Schedule-exploring models of two nodes on one store: `.ci/models` runs them.
//!
//! ```text
//! RUSTFLAGS="--cfg tickwheel_model" CARGO_TARGET_DIR=target/model \
//!     cargo test --release -p tickwheel-durable --features __model --lib models -- --nocapture
//! ```
//!
//! The nodes are those that are shipped, with all of their tasks; the store is the one in memory.
//! Shuttle chooses what happens before a call arrives at the store, and before its answer arrives.
//! Time is virtual, and passes while nodes are at work too: a node that has no turn meanwhile is
//! one that stalls. Each model says what bug it was seen to catch ("Fails when ...").

#[path = "../../../../tests/models/harness.rs"]
#[allow(dead_code, reason = "none of these models is a pair of calls")]
mod harness;

use crate::durable::{Durable, DurableBuilder};
use crate::entry::{Cancelled, Due, Entry, Outcome};
use crate::models::harness::explore;
use crate::node::tests::faulty::{Fault, Faulty};
use crate::store::memory::Memory;
use crate::store::{Name, Operations};
use crate::sync::{Mutex, MutexGuard, lock, random};
use crate::when::When;
use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Timer};

const LEASE: Duration = Duration::from_secs(2);
/// When the timers are due: both nodes claim then.
const DUE: Duration = Duration::from_secs(1);
/// How often all have their turn before time passes, unless a node stalls.
const TURNS: u32 = 30;
/// After so many moments without a stall no timer is left: a claim that ran out waits for a lease,
/// for looks, and for a taker that has been answered for a lease.
const MOMENTS: u32 = 300;

const CANCELLED: &str = "cancelled";
const REPLACED: &str = "replaced";

/// What happens beside claims, cancels and a schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    /// Each handler fails the first time.
    Failures,
    /// A lease passes while nodes are at work.
    Leap,
    /// A node cannot reach the store for a while once its handler runs.
    Cut,
    /// A node is dropped.
    Drop,
}

/// What was seen.
#[derive(Debug, Default)]
struct Log {
    /// The nodes whose handlers run, and what they have.
    running: Vec<(u8, Due)>,
    /// The key and the payload of each handler that has begun.
    begun: Vec<(String, u8)>,
    /// Those that have ended, and were not dropped.
    ended: BTreeSet<(String, u8)>,
    answer: Option<Cancelled>,
    /// How many handlers have the timer that was cancelled, at most, if no claim runs out.
    most: Option<usize>,
    faults: BTreeSet<String>,
}

impl Log {
    fn begin(&mut self, node: u8, due: &Due) {
        let key = due.key.clone().expect("all have keys");
        let rivals = self.running.iter().filter(|it| it.1.key == due.key);
        for (rival, theirs) in rivals {
            if *rival == node || !(due.is_lost() || theirs.is_lost()) {
                self.faults.insert(format!("two handlers of {key} at once"));
            }
        }
        if !due.is_lost() {
            let later = self
                .begun
                .iter()
                .any(|it| it.0 == key && it.1 > due.payload[0]);
            if later || (self.is_cancelled() && key == CANCELLED) {
                self.faults.insert(format!("{key} begins after its end"));
            }
        }
        self.running.push((node, due.clone()));
        self.begun.push((key, due.payload[0]));
    }

    fn begun(&self, key: &str, payload: u8) -> usize {
        let begun = self.begun.iter();
        begun.filter(|it| it.0 == key && it.1 == payload).count()
    }

    fn cancel(&mut self, answer: Cancelled) {
        let mut running = self.running.iter();
        let runs = running.any(|(_, due)| due.key.as_deref() == Some(CANCELLED) && !due.is_lost());
        match &answer {
            Cancelled::Cancelled(_) if runs => {
                self.faults.insert("cancelled under a handler".to_owned());
            }
            // The run that was promised is the last one.
            Cancelled::Running => self.most = Some(self.begun(CANCELLED, 1) + usize::from(!runs)),
            _ => {}
        }
        self.answer = Some(answer);
    }

    fn is_cancelled(&self) -> bool {
        matches!(self.answer, Some(Cancelled::Cancelled(_)))
    }

    /// Checks what has come of all timers; returns it.
    fn end(&mut self, event: Event, taken_over: u64) -> String {
        let cancelled = self.begun(CANCELLED, 1);
        let replaced = [1, 2].map(|payload| self.begun(REPLACED, payload));
        let ended = |key: &str, payload| self.ended.contains(&(key.to_owned(), payload));
        assert!(self.is_cancelled() || ended(CANCELLED, 1), "{self:?}");
        assert!(ended(REPLACED, 2), "{self:?}");
        // If no claim has run out, each timer is run once, and a cancelled one not at all.
        if taken_over == 0 && event != Event::Drop {
            assert!(self.most.is_none_or(|most| cancelled <= most), "{self:?}");
            let expected = usize::from(!self.is_cancelled());
            let once = (cancelled, replaced[1]) == (expected, 1) && replaced[0] <= 1;
            assert!(once || event == Event::Failures, "{self:?}");
        }
        assert!(self.faults.is_empty(), "{self:?}");
        format!("{:?} {cancelled} {replaced:?} {taken_over}", self.answer)
    }
}

/// The end of a handler, dropped ones included.
struct Run {
    world: Arc<World>,
    node: u8,
    token: i64,
}

impl Drop for Run {
    fn drop(&mut self) {
        let ended = |it: &(u8, Due)| (it.0, it.1.token) == (self.node, self.token);
        self.world.log().running.retain(|it| !ended(it));
    }
}

struct World {
    clock: ManualClock,
    timer: Timer,
    store: Memory,
    /// When the first node reaches the store again, since its handler has run.
    reached: Mutex<Option<Instant>>,
    event: Event,
    log: Mutex<Log>,
}

impl World {
    fn new(event: Event) -> Arc<Self> {
        let clock = ManualClock::new();
        let timer = Timer::builder().wheel_size(4).shards(1);
        Arc::new(World {
            timer: timer.clock(clock.clone()).build().expect("it is right"),
            store: Memory::new(clock.clone()),
            clock,
            reached: Mutex::default(),
            event,
            log: Mutex::default(),
        })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    async fn node(self: &Arc<Self>, node: u8) -> Durable<Faulty> {
        let store = Faulty::new(&self.store, &self.timer);
        let draw = Arc::clone(&store.draw);
        let world = Arc::clone(self);
        let handler = move |due| handle(Arc::clone(&world), node, due);
        let builder = DurableBuilder::new(store).lease(LEASE);
        let started = builder.start(&self.timer, handler).await;
        let world = Arc::clone(self);
        *lock(&draw) = Some(Box::new(move |_| world.fault(node)));
        started.expect("no fault is injected")
    }

    /// Draws what becomes of a call.
    fn fault(&self, node: u8) -> Option<Fault> {
        if self.event != Event::Cut || node != 1 {
            return None;
        }
        let mut reached = lock(&self.reached);
        let runs = self.log().running.iter().any(|it| it.0 == 1);
        if reached.is_none() && runs {
            *reached = Some(self.clock.now() + LEASE + LEASE / 8 * (random() % 16) as u32);
        }
        let is_cut = reached.is_some_and(|reached| self.clock.now() < reached);
        match (is_cut, random() % 8) {
            (true, 0) => Some(Fault::LostAnswer),
            (true, _) => Some(Fault::Unreachable),
            (false, 0) => Some(Fault::Late(LEASE / 4)),
            (false, _) => None,
        }
    }

    /// Lets time pass from moment to moment until the callers have ended, and no timer is left.
    async fn pass(&self, callers: &[JoinHandle<()>]) {
        let mut leaps = self.event == Event::Leap;
        for _ in 0..MOMENTS {
            let stalls = leaps && random() % 2 == 0;
            for _ in 0..if stalls {
                random() % 8
            } else {
                u64::from(TURNS)
            } {
                yield_now().await;
            }
            if callers.iter().all(JoinHandle::is_finished) && self.store.is_empty() {
                return;
            }
            if stalls && !self.log().running.is_empty() {
                leaps = false;
                self.clock.advance(LEASE);
            }
            self.clock.step();
        }
        let log = self.log();
        panic!("left after all time: {:?}, {:?}", log.begun, log.running);
    }
}

async fn handle(world: Arc<World>, node: u8, due: Due) -> Outcome {
    world.log().begin(node, &due);
    let world = &world;
    let token = due.token;
    let _run = Run {
        world: Arc::clone(world),
        node,
        token,
    };
    if !matches!(world.event, Event::Nothing | Event::Failures) {
        let long = LEASE / 2 * (1 + random() % 4) as u32;
        let _ = world.timer.sleep(long).await;
    }
    let key = due.key.as_deref().expect("all have keys");
    let row = world.store.get(Name::of_key(key)).await;
    let row = row.expect("no fault is injected");
    // A claim that has not run out is its handler's, whatever others have acknowledged.
    if !row.is_some_and(|row| row.running) && !due.is_lost() {
        world
            .log()
            .faults
            .insert(format!("the row of {key} is not claimed"));
    }
    world.log().ended.insert((key.to_owned(), due.payload[0]));
    if world.event == Event::Failures && due.attempt == 1 {
        let again = When::After(Duration::from_millis(50));
        return Outcome::RetryAt(again, String::new());
    }
    Outcome::Done
}

/// Cancels a timer at about the time at which both nodes claim it.
async fn cancel(world: Arc<World>, node: Durable<Faulty>) {
    let _ = world.timer.sleep(DUE).await;
    let answer = node.cancel(CANCELLED).await.expect("no fault is injected");
    world.log().cancel(answer);
}

async fn replace(world: Arc<World>, node: Durable<Faulty>) {
    let _ = world.timer.sleep(DUE).await;
    let entry = Entry::keyed(REPLACED, Duration::ZERO, [2]);
    node.schedule(entry).await.expect("no fault is injected");
}

/// Drops a node once a handler runs, its own or another's.
async fn end(world: Arc<World>, node: Durable<Faulty>) {
    while world.log().begun.is_empty() && !world.store.is_empty() {
        yield_now().await;
    }
    drop(node);
}

/// Has two nodes claim two timers at once, while one timer is cancelled and the other replaced.
fn two_nodes(event: Event) -> String {
    block_on(async move {
        let world = World::new(event);
        let one = world.node(1).await;
        let other = world.node(2).await;
        for key in [CANCELLED, REPLACED] {
            let entry = Entry::keyed(key, DUE, [1]);
            other.schedule(entry).await.expect("no fault is injected");
        }
        let mut callers = vec![
            spawn(cancel(Arc::clone(&world), other.clone())),
            spawn(replace(Arc::clone(&world), other.clone())),
        ];
        let mut nodes = vec![other];
        match event {
            Event::Drop => callers.push(spawn(end(Arc::clone(&world), one))),
            _ => nodes.push(one),
        }
        world.pass(&callers).await;
        let taken_over = nodes.iter().map(|node| node.stats().taken_over).sum();
        drop(nodes);
        // Each task has the world, itself or by its store. A schedule that ends before a task does
        // would find locks that are held.
        while Arc::strong_count(&world) > 1 {
            yield_now().await;
        }
        world.log().end(event, taken_over)
    })
}

/// Fails when a cancel takes a claimed row.
#[test]
fn claims_against_cancels() {
    explore("durable_claims_against_cancels", 3, || {
        two_nodes(Event::Nothing)
    });
}

/// Fails when a timer is retried that was cancelled under its handler.
#[test]
fn retries_against_cancels() {
    explore("durable_retries_against_cancels", 3, || {
        two_nodes(Event::Failures)
    });
}

/// Fails when an acknowledgement or a renewal is not fenced by its token; when a takeover takes
/// what has not run out; when a node runs two handlers for a name at once.
#[test]
fn claims_that_run_out() {
    explore("durable_claims_that_run_out", 4, || two_nodes(Event::Leap));
}

/// Fails when an acknowledgement is not fenced; when a takeover takes what has not run out; when a
/// lease is counted from the answer of its claim.
#[test]
fn a_node_is_cut_off() {
    explore("durable_a_node_is_cut_off", 4, || two_nodes(Event::Cut));
}

/// Fails when a takeover runs a timer that was replaced; when it drops one that was cancelled under
/// a handler.
#[test]
fn a_node_is_dropped() {
    explore("durable_a_node_is_dropped", 4, || two_nodes(Event::Drop));
}
