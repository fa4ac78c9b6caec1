//! The ledger: every task is a ticket, which ends exactly once, and says how.
//!
//! A ticket is consumed when it is fired, or dropped by somebody who says why ([`drop_as`]). So
//! none can end twice; the ledger counts that all end, that none is early, and that none vanishes
//! without a reason. The watchdog ends the process when nothing moves, or when anything fails, and
//! says where.

use crate::config::Config;
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};
use std::{panic, thread};
use tickwheel::{Clock, WeakTimer};

/// Steps of all threads, and tasks that ran: while it moves, nothing hangs.
pub(crate) static PROGRESS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn progress() {
    PROGRESS.fetch_add(1, SeqCst);
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Timer,
    Keyed,
    Operation,
    Series,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fired,
    Cancelled,
    /// Cancelled by a guard, or by dropping a structure that is built on the timer.
    Guarded,
    /// Another one took its place, or it did not get one.
    Replaced,
    /// By `add`.
    Refused,
    /// By the executor.
    Rejected,
    Returned,
    /// Its own code panicked.
    Panicked,
    WithTimer,
    Unexplained,
}

const KINDS: usize = 4;
pub(crate) const ENDS: usize = 10;
const SHARED: usize = 2048;

thread_local! {
    static REASON: Cell<End> = const { Cell::new(End::Unexplained) };
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// Drops a value; what is dropped with it ends in this way.
pub(crate) fn drop_as<T>(end: End, value: T) {
    let before = REASON.replace(end);
    drop(value);
    REASON.set(before);
}

/// Returns the ticket that this thread dropped last.
pub(crate) fn last_dropped() -> u64 {
    LAST.get()
}

pub(crate) struct Ledger {
    clock: Clock,
    start: Instant,
    made: [AtomicU64; KINDS],
    ends: [[AtomicU64; ENDS]; KINDS],
    next_id: AtomicU64,
    /// From now on what vanishes did so with the timer.
    pub(crate) ending: AtomicBool,
    /// Tasks that share a closure: how often each ran or was cancelled.
    shared: Box<[AtomicU8]>,
    next_shared: AtomicUsize,
}

pub(crate) struct Ticket {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) id: u64,
    kind: Kind,
    /// In nanoseconds of the ledger.
    bound: Arc<AtomicU64>,
    done: bool,
}

impl Ledger {
    pub(crate) fn new(clock: Clock) -> Self {
        Ledger {
            start: clock.now(),
            clock,
            made: Default::default(),
            ends: Default::default(),
            next_id: AtomicU64::new(1),
            ending: AtomicBool::new(false),
            shared: (0..SHARED).map(|_| AtomicU8::new(0)).collect(),
            next_shared: AtomicUsize::new(0),
        }
    }

    /// Returns the nanoseconds since the round began, by the timer's clock.
    pub(crate) fn now(&self) -> u64 {
        self.nanos(self.clock.now())
    }

    pub(crate) fn nanos(&self, instant: Instant) -> u64 {
        instant
            .saturating_duration_since(self.start)
            .as_nanos()
            .min(u128::from(u64::MAX)) as u64
    }

    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        self.start + Duration::from_nanos(nanos)
    }

    /// Creates a ticket that must not be fired before `bound`.
    pub(crate) fn ticket(self: &Arc<Self>, kind: Kind, bound: Arc<AtomicU64>) -> Ticket {
        self.made[kind as usize].fetch_add(1, SeqCst);
        let id = self.next_id.fetch_add(1, SeqCst);
        Ticket {
            ledger: Arc::clone(self),
            id,
            kind,
            bound,
            done: false,
        }
    }

    /// Returns a key that no other thread has.
    pub(crate) fn next_key(&self) -> u32 {
        (1 << 31) + self.next_id.fetch_add(1, SeqCst) as u32
    }

    pub(crate) fn made(&self, kind: Kind) -> u64 {
        self.made[kind as usize].load(SeqCst)
    }

    pub(crate) fn ended(&self, kind: Kind, end: End) -> u64 {
        self.ends[kind as usize][end as usize].load(SeqCst)
    }

    /// Returns the number of tickets that have not ended.
    pub(crate) fn open(&self, kind: Kind) -> u64 {
        // The ends first: a ticket is made before it ends.
        let ended: u64 = self.ends[kind as usize]
            .iter()
            .map(|count| count.load(SeqCst))
            .sum();
        self.made(kind) - ended
    }

    pub(crate) fn all_ended(&self) -> bool {
        let kinds = [Kind::Timer, Kind::Keyed, Kind::Operation, Kind::Series];
        kinds.iter().all(|kind| self.open(*kind) == 0)
    }

    /// Returns the number of tickets that vanished. A series drops its task however it ends.
    pub(crate) fn unexplained(&self) -> u64 {
        let kinds = [Kind::Timer, Kind::Keyed, Kind::Operation];
        kinds
            .iter()
            .map(|kind| self.ended(*kind, End::Unexplained))
            .sum()
    }

    /// Returns how many tickets of whatever kind met each end.
    pub(crate) fn ends(&self) -> [u64; ENDS] {
        std::array::from_fn(|end| self.ends.iter().map(|ends| ends[end].load(SeqCst)).sum())
    }

    /// Returns the number of tasks that share their closure.
    pub(crate) fn shared(&self) -> u64 {
        self.next_shared.load(SeqCst).min(SHARED) as u64
    }

    pub(crate) fn text(&self) -> String {
        let load = |counts: &[AtomicU64]| -> Vec<u64> {
            counts.iter().map(|count| count.load(SeqCst)).collect()
        };
        let ends: Vec<_> = self.ends.iter().map(|ends| load(ends)).collect();
        format!("made {:?}, ended {ends:?}", load(&self.made))
    }

    /// Returns the number of a task that shares its closure.
    pub(crate) fn next_shared(&self) -> Option<u64> {
        let number = self.next_shared.fetch_add(1, SeqCst);
        (number < SHARED).then_some(number as u64)
    }

    /// Notes that a task that shares its closure ran or was cancelled.
    pub(crate) fn end_shared(&self, number: u64) {
        let before = self.shared[number as usize].fetch_add(1, SeqCst);
        assert_eq!(before, 0, "shared task {number} ended twice");
        progress();
    }
}

impl Ticket {
    pub(crate) fn check_not_early(&self) {
        let now = self.ledger.now();
        let bound = self.bound.load(SeqCst);
        assert!(
            now >= bound,
            "{:?} {} is early: {now} is before {bound}",
            self.kind,
            self.id
        );
    }

    pub(crate) fn fire(self) {
        self.check_not_early();
        self.end(End::Fired);
    }

    pub(crate) fn end(mut self, end: End) {
        self.note(end);
    }

    fn note(&mut self, end: End) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let vanished = end == End::Unexplained && self.ledger.ending.load(SeqCst);
        let end = if vanished { End::WithTimer } else { end };
        self.ledger.ends[self.kind as usize][end as usize].fetch_add(1, SeqCst);
        progress();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        LAST.set(self.id);
        self.note(REASON.get());
    }
}

/// Only a hang takes that long between two steps.
const STILL: Duration = Duration::from_secs(20);
/// And a round that does not end, although something moves, that long.
const ENDLESS: Duration = Duration::from_secs(200);

struct Round {
    config: Config,
    ledger: Arc<Ledger>,
    timer: WeakTimer,
    began: Instant,
}

static ROUND: Mutex<Option<Round>> = Mutex::new(None);

/// Watches over a round from now on.
pub(crate) fn watch(config: &Config, ledger: &Arc<Ledger>, timer: WeakTimer) {
    static START: Once = Once::new();
    START.call_once(|| {
        panic::set_hook(Box::new(report_panic));
        thread::spawn(look_on);
    });
    let config = config.clone();
    let ledger = Arc::clone(ledger);
    *ROUND.lock().unwrap() = Some(Round {
        config,
        ledger,
        timer,
        began: Instant::now(),
    });
}

/// Notes that the round is over.
pub(crate) fn rest() {
    *ROUND.lock().unwrap() = None;
}

/// Reports a panic. Every panic that is not planted is a failure, even where the library contains
/// it.
fn report_panic(info: &panic::PanicHookInfo<'_>) {
    if info.payload().downcast_ref() != Some(&"planted") {
        fail(&format!("a panic: {info}"));
    }
}

fn look_on() {
    let mut seen = 0;
    let mut since = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(200));
        let now = PROGRESS.load(SeqCst);
        let began = ROUND.lock().unwrap().as_ref().map(|round| round.began);
        if now != seen || began.is_none() {
            seen = now;
            since = Instant::now();
        }
        if since.elapsed() > STILL {
            fail("a hang: nothing moves any more");
        }
        if began.is_some_and(|began| began.elapsed() > ENDLESS) {
            fail("a round that does not end, although something moves");
        }
    }
}

/// Prints without `eprintln!`, whose text the test's runner keeps to itself, and loses when it is
/// aborted.
fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn fail(what: &str) -> ! {
    print(&format!("\ntorture: {what}"));
    // Tried only: the thread that fails may hold it.
    if let Ok(Some(round)) = ROUND.try_lock().as_deref() {
        print(&format!(
            "repeat it with TICKWHEEL_TORTURE_SEED={}",
            round.config.seed
        ));
        print(&format!("{:#?}\n{}", round.config, round.ledger.text()));
        // The timer may hang: then so does who asks it, and no one waits for that.
        let timer = round.timer.clone();
        thread::spawn(move || {
            if let Some(timer) = timer.upgrade() {
                print(&format!("{}\n{}", timer.stats(), timer.snapshot()));
                print(&format!("next expiration {:?}", timer.next_expiration()));
                std::mem::forget(timer);
            }
        });
        thread::sleep(Duration::from_secs(2));
    }
    std::process::abort();
}
