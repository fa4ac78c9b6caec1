//! The world of a round: a timer, everything that is built on it, and what its threads share.

use crate::config::{Config, scatter};
use crate::executors::build;
use crate::futures::Sleeping;
use crate::hand::Hand;
use crate::keys::Store;
use crate::ledger::{End, Ledger, Ticket, drop_as};
use crate::operations::Operation;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::lease::{LeaseTerms, Leases, Renewal};
use tickwheel::purgatory::{FutureOperation, Pending, Purgatory};
use tickwheel::{Clock, ManualClock, SystemClock, Timeout, Timer};

/// Keys, of whatever has any.
pub(crate) const KEYS: u64 = 12;

pub(crate) struct Handle {
    /// The ticket of its task; with [`Handle::SHARED`], the number of one that has no ticket.
    pub(crate) id: u64,
    pub(crate) timeout: Timeout,
    /// Its task must not run before, in nanoseconds of the ledger.
    pub(crate) bound: Arc<AtomicU64>,
}

impl Handle {
    pub(crate) const SHARED: u64 = 1 << 63;
}

pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) clock: Option<ManualClock>,
    pub(crate) weak: Weak<World>,
    pub(crate) timer: Timer,
    pub(crate) keyed: KeyedTimer<u32, Ticket>,
    pub(crate) purgatory: Purgatory<u32, Operation>,
    pub(crate) waits: Purgatory<u32, FutureOperation>,
    pub(crate) leases: Leases<u32>,
    /// Handles that several threads use at once.
    pub(crate) pile: Mutex<Vec<Arc<Handle>>>,
    pub(crate) pendings: Mutex<Vec<Pending<u32, Operation>>>,
    pub(crate) renewals: Mutex<Vec<Renewal<u32>>>,
    /// What the threads had at their end.
    pub(crate) kept: Mutex<Vec<Arc<Handle>>>,
    pub(crate) asleep: Mutex<Vec<Sleeping>>,
    /// Tasks only end from now on, and do nothing else.
    pub(crate) calm: AtomicBool,
    /// Tasks that do something.
    pub(crate) calls: AtomicUsize,
    /// The timer's, or the purgatory's, shutdown has begun.
    pub(crate) shut: AtomicBool,
    pub(crate) purgatory_shut: AtomicBool,
    pub(crate) held: AtomicU64,
    pub(crate) unheld: AtomicU64,
}

impl World {
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let manual = config.manual.then(ManualClock::new);
        let clock = manual.clone().map_or(Clock::from(SystemClock), Clock::from);
        let ledger = Arc::new(Ledger::new(clock.clone()));
        let timer = build(config, clock);
        // Short ones run out and are renewed at once; but on the real clock not all the time.
        let least = if config.manual { Duration::ZERO } else { Duration::from_micros(500) };
        let lease = (config.tick * config.wheel_size as u32).max(least);
        let terms = LeaseTerms::new(lease).batch_size(3);
        Arc::new_cyclic(|weak: &Weak<World>| {
            let expired = Weak::clone(weak);
            let store = Store::new(Weak::clone(weak), config.seed);
            World {
                config: config.clone(),
                ledger,
                clock: manual,
                weak: Weak::clone(weak),
                keyed: KeyedTimer::new(&timer, move |_, ticket| run(ticket, &expired)),
                purgatory: Purgatory::new(&timer),
                waits: Purgatory::new(&timer),
                leases: Leases::new(&timer, terms, store),
                timer,
                pile: Mutex::default(),
                pendings: Mutex::default(),
                renewals: Mutex::default(),
                kept: Mutex::default(),
                asleep: Mutex::default(),
                calm: AtomicBool::new(false),
                calls: AtomicUsize::new(0),
                shut: AtomicBool::new(false),
                purgatory_shut: AtomicBool::new(false),
                held: AtomicU64::new(0),
                unheld: AtomicU64::new(0),
            }
        })
    }

    /// Shuts the timer down; what comes back has to be in order.
    pub(crate) fn shut_down(&self) {
        self.shut.store(true, SeqCst);
        let entries = self.timer.shutdown();
        let whens = entries.iter().map(|entry| match entry.when() {
            tickwheel::When::At(instant) => instant,
            tickwheel::When::After(delay) => panic!("returned with a delay of {delay:?}"),
        });
        assert!(whens.is_sorted(), "what shutdown returns is ordered by deadline");
        drop_as(End::Returned, entries);
    }
}

/// A reference to the world. Dropping the last one drops the timer.
pub(crate) struct Ref(Option<Arc<World>>);

impl Ref {
    pub(crate) fn new(world: Arc<World>) -> Self {
        Ref(Some(world))
    }

    pub(crate) fn upgrade(weak: &Weak<World>) -> Option<Self> {
        weak.upgrade().map(Ref::new)
    }
}

impl Clone for Ref {
    fn clone(&self) -> Self {
        Ref(self.0.clone())
    }
}

impl Deref for Ref {
    type Target = World;

    fn deref(&self) -> &World {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Ref {
    fn drop(&mut self) {
        drop_as(End::WithTimer, self.0.take());
    }
}

/// Runs a ticket's task.
pub(crate) fn run(ticket: Ticket, weak: &Weak<World>) {
    let id = ticket.id;
    ticket.fire();
    act(weak, id);
}

thread_local! {
    /// Tasks that do something, one inside the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn depth() -> usize {
    DEPTH.get()
}

/// Counts a task that does something for as long as it does.
struct Acting<'a>(&'a World);

impl<'a> Acting<'a> {
    fn new(world: &'a World) -> Self {
        world.calls.fetch_add(1, SeqCst);
        DEPTH.set(DEPTH.get() + 1);
        Acting(world)
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        self.0.calls.fetch_sub(1, SeqCst);
    }
}

/// Calls back into everything, from inside a task: in few cases, so that it does not go on for
/// ever.
pub(crate) fn act(weak: &Weak<World>, id: u64) {
    let mut random = scatter(id);
    if !random.is_rare(4) || depth() >= 3 {
        return;
    }
    let Some(world) = Ref::upgrade(weak) else { return };
    if world.config.mix == crate::config::Mix::Timers {
        return;
    }
    let _acting = Acting::new(&world);
    // Looked at after it was counted: who waits until nobody acts misses none.
    if world.calm.load(SeqCst) {
        return;
    }
    let panics = random.is_rare(16);
    let mut hand = Hand::new(random);
    hand.step(&world);
    hand.finish(&world);
    assert!(!panics, "planted");
}
