//! The world of a round: a timer, everything that is built on it, and what its threads share. At
//! the end all is quiet, and has to add up.

use crate::config::{Config, Ending, Mix, Random, build};
use crate::hand::{Hand, cancel};
use crate::ledger::{End, Kind, Ledger, Ticket, drop_as};
use crate::operations::{Operation, Sleeping};
use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{FutureOperation, Pending, Purgatory};
use tickwheel::{
    AddError, Clock, ManualClock, SystemClock, Task, Timeout, Timer, TimerEntry, When,
};

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
    /// Handles that several threads use at once.
    pub(crate) pile: Mutex<Vec<Arc<Handle>>>,
    pub(crate) pendings: Mutex<Vec<Pending<u32, Operation>>>,
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
}

impl World {
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let manual = config.manual.then(ManualClock::new);
        let clock = manual.clone().map_or(Clock::from(SystemClock), Clock::from);
        let ledger = Arc::new(Ledger::new(clock.clone()));
        let timer = build(config, clock);
        Arc::new_cyclic(|weak: &Weak<World>| {
            let expired = Weak::clone(weak);
            World {
                config: config.clone(),
                ledger,
                clock: manual,
                weak: Weak::clone(weak),
                keyed: KeyedTimer::new(&timer, move |_, ticket| run(ticket, &expired)),
                purgatory: Purgatory::new(&timer),
                waits: Purgatory::new(&timer),
                timer,
                pile: Mutex::default(),
                pendings: Mutex::default(),
                kept: Mutex::default(),
                asleep: Mutex::default(),
                calm: AtomicBool::new(false),
                calls: AtomicUsize::new(0),
                shut: AtomicBool::new(false),
                purgatory_shut: AtomicBool::new(false),
            }
        })
    }

    /// Shuts the timer down; what comes back has to be in order.
    pub(crate) fn shut_down(&self) {
        self.shut.store(true, SeqCst);
        let entries = self.timer.shutdown();
        // Those that never expire come last.
        let whens = entries.iter().map(|entry| match entry.when() {
            When::At(instant) => (false, Some(instant)),
            When::Never => (true, None),
            When::After(delay) => panic!("returned with a delay of {delay:?}"),
        });
        assert!(
            whens.is_sorted(),
            "what shutdown returns is ordered by deadline"
        );
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
    let mut random = Random::new(id);
    if !random.is_rare(4) || depth() >= 3 {
        return;
    }
    let Some(world) = Ref::upgrade(weak) else {
        return;
    };
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

/// Waits for what has to come. That the watchdog does not bite is the proof that it comes.
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Settles the round: the threads have left; a reaper, or a worker, is still there.
pub(crate) fn settle(world: &World) {
    world.calm.store(true, SeqCst);
    wait_until(|| world.calls.load(SeqCst) == 0);
    world
        .kept
        .lock()
        .unwrap()
        .append(&mut world.pile.lock().unwrap());
    if world.config.ending == Ending::Settle {
        everything_due_expires(world);
        if let Some(clock) = &world.clock {
            // Over all levels at once, and on to where only what is never due is left.
            clock.advance(Duration::from_secs(3600));
            everything_due_expires(world);
            clock.advance(Duration::from_secs(400 * 365 * 24 * 3600));
            everything_due_expires(world);
        }
        everybody_is_woken(world);
    }
    check_invariants(world);
    if world.config.ending == Ending::Settle {
        limit_is_whole(world);
    }
    world.shut_down();
    check_invariants(world);
    check_stats(world);
}

fn handles(world: &World) -> Vec<Arc<Handle>> {
    world.kept.lock().unwrap().clone()
}

/// Checks that one call expires everything that is due, whatever other threads do; with a reaper no
/// call is needed.
fn everything_due_expires(world: &World) {
    // The last two nanoseconds of time never come: the deadline of what is never due is there.
    let now = world.ledger.now().min(u64::MAX - 2);
    let tick = world.config.tick.as_nanos() as u64;
    // What falls due within a tick expires at its end.
    let is_due = |deadline: Option<Instant>| {
        deadline.is_some_and(|deadline| world.ledger.nanos(deadline).saturating_add(tick) <= now)
    };
    if world.config.seed % 2 == 0 || !world.config.reaper {
        world.timer.advance_clock(Duration::ZERO);
        for handle in handles(world) {
            let deadline = handle.timeout.deadline();
            assert!(
                !is_due(deadline),
                "it is {now:?}, {deadline:?} has passed, and it is pending"
            );
        }
    }
    let handles = handles(world);
    wait_until(|| {
        !handles
            .iter()
            .any(|handle| is_due(handle.timeout.deadline()))
    });
    // A key that was extended is filed anew when its former deadline comes. One is not enough.
    wait_until(|| {
        world.timer.advance_clock(Duration::ZERO);
        let due = |key| is_due(world.keyed.deadline(&key));
        world.config.loses() || !(0..KEYS as u32).any(due)
    });
    assert!(
        world
            .timer
            .next_expiration()
            .is_none_or(|next| world.ledger.nanos(next) >= now)
    );
}

/// Checks that no wake-up is lost.
fn everybody_is_woken(world: &World) {
    if world.config.loses() {
        return;
    }
    let tick = world.config.tick.as_nanos() as u64;
    let now = world.ledger.now().min(u64::MAX - 2).saturating_sub(tick);
    // There may be no reaper, and the real clock has moved on.
    world.timer.advance_clock(Duration::ZERO);
    let mut asleep = world.asleep.lock().unwrap();
    wait_until(|| !asleep.iter().any(|sleeping| sleeping.is_forgotten(now)));
    asleep.retain_mut(|sleeping| !sleeping.poll(world));
}

/// Checks that all permits come back: as many as the limit allows can be added again, and no more.
fn limit_is_whole(world: &World) {
    let Some(max_pending) = world.config.max_pending else {
        return;
    };
    handles(world)
        .iter()
        .for_each(|handle| cancel(world, handle));
    drop_as(
        End::Guarded,
        std::mem::take(&mut *world.asleep.lock().unwrap()),
    );
    drop_as(End::Cancelled, world.keyed.cancel_all());
    drop_as(End::Returned, world.purgatory.shutdown());
    drop(world.waits.shutdown());
    let mut added = Vec::new();
    // Again, because those whose handles nobody has may expire meanwhile.
    wait_until(|| {
        loop {
            match world
                .timer
                .add(TimerEntry::after(Duration::MAX, Task::new(|| ())))
            {
                Ok(timeout) => added.push(timeout.cancel_on_drop()),
                Err(AddError::Full(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        world.timer.len() == max_pending
    });
}

fn check_invariants(world: &World) {
    world.timer.assert_invariants();
    world.keyed.assert_invariants();
    world.purgatory.assert_invariants();
    world.waits.assert_invariants();
}

/// Checks the statistics after the timer's shutdown, when no count can change any more.
fn check_stats(world: &World) {
    // Keys and operations are not the timer's to return.
    drop_as(End::Cancelled, world.keyed.cancel_all());
    drop_as(End::Returned, world.purgatory.shutdown());
    drop(world.waits.shutdown());
    let stats = world.timer.stats();
    assert_eq!(stats.pending, 0, "after a shutdown");
    assert_eq!(
        stats.added,
        stats.expired + stats.cancelled + stats.returned,
        "{stats}"
    );
    assert_eq!(stats.lateness.count(), stats.expired);
    assert!(
        handles(world)
            .iter()
            .all(|handle| !handle.timeout.is_pending())
    );
    // A worker may still be at it.
    wait_until(|| world.ledger.open(Kind::Timer) == 0);
    let ledger = &world.ledger;
    let lost = stats.refused + stats.panicked;
    let unexplained = ledger.unexplained();
    assert!(
        unexplained == 0 || world.config.loses() && unexplained <= lost,
        "{}",
        ledger.text()
    );
    // Otherwise others add timers as well; and a task that shares its closure has no ticket.
    if world.config.mix == Mix::Timers && world.config.max_pending.is_none() {
        let ended = |end| ledger.ended(Kind::Timer, end);
        let gone = ended(End::Fired) + ended(End::Rejected) + unexplained;
        assert!(
            gone <= stats.expired,
            "{gone} ran, {} expired",
            stats.expired
        );
        assert!(ended(End::Cancelled) + ended(End::Guarded) <= stats.cancelled);
        let added = ledger.made(Kind::Timer) - ended(End::Refused) - ended(End::Replaced);
        assert!(
            added <= stats.added && stats.added - added <= ledger.shared(),
            "{stats}"
        );
    }
}
