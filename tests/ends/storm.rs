//! The storm: in each round some timers, everything on them, and threads that end all of it in any
//! order. Its watchdog ends the process when nothing moves, and says what each thread was doing.

use crate::HANG;
use crate::site::{Handle, Piece, Site, Token};
use crate::steps::step;
use fastrand::Rng;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Waker;
use std::thread;
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};
use tickwheel::Timer;

const THREADS: u64 = 3;
const STEPS: u64 = 150;
const ROUNDS: u64 = 150;
/// Timers that are used at a time, and that a round has in all.
const SITES: usize = 3;
const MOST_SITES: usize = 9;

thread_local! {
    /// Whether this is a thread of the storm's own.
    pub(crate) static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// What was found in a round.
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Checks a promise, where a panic might be contained.
pub(crate) fn check(holds: bool, promise: &str) {
    if !holds {
        FOUND.lock().unwrap().push(promise.to_owned());
    }
}

pub(crate) struct World {
    sites: Mutex<Vec<Arc<Site>>>,
    /// The threads that drive timers.
    threads: Mutex<Vec<JoinHandle<()>>>,
    seed: AtomicU64,
    /// Tasks make no steps from now on; how many are in one.
    calm: AtomicBool,
    acting: AtomicUsize,
}

impl World {
    /// Returns other numbers in each call.
    pub(crate) fn random(&self) -> Rng {
        Rng::with_seed(self.seed.fetch_add(1, SeqCst))
    }

    pub(crate) fn drives(&self, thread: JoinHandle<()>) {
        self.threads.lock().unwrap().push(thread);
    }

    /// Makes some steps, until all is calm.
    fn act(self: &Arc<Self>, steps: u64, random: &mut Rng) {
        self.acting.fetch_add(1, SeqCst);
        for _ in (0..steps).take_while(|_| !self.calm.load(SeqCst)) {
            self.step(random);
            thread::sleep(Duration::from_micros(random.u64(..100)));
        }
        self.acting.fetch_sub(1, SeqCst);
    }

    /// Makes steps from inside a task, now and then.
    pub(crate) fn act_in_task(self: &Arc<Self>) {
        let mut random = self.random();
        self.act(random.u64(..8).saturating_sub(4), &mut random);
    }

    fn step(self: &Arc<Self>, random: &mut Rng) {
        let mut sites = self.sites.lock().unwrap();
        let number = sites.len();
        if number == 0 || number < MOST_SITES && random.u64(..50) == 0 {
            drop(sites);
            let site = doing("builds".to_owned(), || Site::build(self, random));
            sites = self.sites.lock().unwrap();
            sites.push(site);
        }
        let from = sites.len().saturating_sub(SITES);
        let nth = from + random.u64(..(sites.len() - from) as u64) as usize;
        let site = Arc::clone(&sites[nth]);
        drop(sites);
        doing(format!("timer {nth}"), || step(&site, random));
    }
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        progress();
        // Once something was found, the rest need not hang as well.
        if start.elapsed() > HANG || !FOUND.lock().unwrap().is_empty() {
            return check(false, what);
        }
        thread::sleep(Duration::from_micros(200));
    }
}

fn adds_up<T: Send + 'static>(timer: &Timer<T>) {
    until("counts add up", || {
        let stats = timer.stats();
        stats.added == stats.pending as u64 + stats.expired + stats.cancelled + stats.returned
    });
    check(timer.stats().panicked == 0, "nothing panics");
}

/// Checks that a part of a timer that nobody has ended works, and that one of an ended timer does
/// not, now that all is quiet.
fn settle(site: &Arc<Site>, piece: Piece) {
    let works = !site.begun.load(SeqCst);
    let quiet = || Token {
        site: Arc::clone(site),
        quiet: true,
    };
    let accepts = |accepts: bool, what| check(accepts == works, what);
    match piece {
        Piece::Timer(timer) => {
            let timeout = timer.after(Duration::ZERO, || ());
            accepts(timeout.is_ok(), "a timer accepts until it is shut down");
            timeout.iter().for_each(|timeout| {
                until("a task expires", || {
                    timer.advance_clock(Duration::ZERO);
                    timeout.is_expired()
                });
            });
            check(
                works || timer.advance_clock(Duration::ZERO) == 0,
                "nothing expires",
            );
            adds_up(&timer);
        }
        Piece::Own(timer) => {
            let timeout = timer.after(Duration::ZERO, 1_u64);
            accepts(timeout.is_ok(), "a timer accepts until it is shut down");
            adds_up(&timer);
        }
        Piece::Keyed(keyed) => {
            accepts(
                keyed.add(99, Duration::ZERO, quiet()).is_ok(),
                "a keyed timer accepts until its timer is shut down",
            );
            let is_there = || {
                let mut is_there = false; // Although its time is up.
                keyed.cancel_if(&99, |_, _| std::mem::replace(&mut is_there, true));
                is_there
            };
            until("a key expires", || !works || !is_there());
        }
        Piece::Purgatory(purgatory) => {
            let before = purgatory.stats().expired;
            let watch = purgatory.try_complete_else_watch(quiet(), Duration::ZERO, &[99]);
            accepts(
                watch.is_ok(),
                "a purgatory accepts until its timer is shut down",
            );
            until("an operation expires", || {
                !works || purgatory.stats().expired > before
            });
        }
        Piece::Sleep(sleep) => {
            let has_ended = site.poll(&sleep);
            check(works || has_ended, "with the timer every sleep ends");
        }
    }
}

/// Checks and drops a handle that has outlived its timer.
fn bury(handle: Handle) {
    match &handle {
        Handle::Timeout(timeout) => check(!timeout.is_pending(), "a task ends with its timer"),
        Handle::Series(series, _) => check(!series.cancel(), "a series ends with its timer"),
        Handle::Pending(pending) => check(!pending.is_pending(), "so does an operation"),
        Handle::Listener(listener) => {
            let next = listener.next_expiration(Waker::noop());
            check(next.is_none(), "a listener has nothing to wait for");
        }
        Handle::Drive(_) => {}
    }
}

fn round(seed: u64) {
    let world = Arc::new(World {
        sites: Mutex::default(),
        threads: Mutex::default(),
        seed: AtomicU64::new(seed << 32),
        calm: AtomicBool::new(false),
        acting: AtomicUsize::new(0),
    });
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let mut random = world.random();
            let world = &world;
            scope.spawn(move || {
                PLAIN.set(true);
                world.act(STEPS, &mut random);
            });
        }
    });
    world.calm.store(true, SeqCst);
    until("tasks end", || world.acting.load(SeqCst) == 0);
    let sites = std::mem::take(&mut *world.sites.lock().unwrap());
    for site in &sites {
        let pieces = site.pieces.lock().unwrap().clone();
        pieces
            .into_iter()
            .for_each(|piece| doing(piece.name().to_owned(), || settle(site, piece)));
    }
    for site in &sites {
        let pieces = std::mem::take(&mut *site.pieces.lock().unwrap());
        drop(pieces);
    }
    let threads = std::mem::take(&mut *world.threads.lock().unwrap());
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("it drives without a panic"));
    for site in sites {
        let handles = std::mem::take(&mut *site.handles.lock().unwrap());
        // First: a thread inside of an executor may end a last run after the drop of the timer.
        until("all is dropped with its timer", || {
            Arc::strong_count(&site) == 1
        });
        handles.into_iter().for_each(bury);
    }
    let found = std::mem::take(&mut *FOUND.lock().unwrap());
    assert!(
        found.is_empty(),
        "TICKWHEEL_ENDS_SEED={seed}: not kept was {found:#?}"
    );
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is a number")),
    )
}

#[test]
fn what_ends_takes_all_that_is_its_own_and_nothing_else() {
    let seconds = number("TICKWHEEL_ENDS_SECONDS");
    let seed = number("TICKWHEEL_ENDS_SEED");
    let epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    let start = Instant::now();
    let first = seconds.map_or(0, |_| epoch.as_secs());
    let goes_on = |number| match seconds {
        Some(seconds) => start.elapsed() < Duration::from_secs(seconds),
        None => number < ROUNDS,
    };
    for number in (0..).take_while(|number| goes_on(*number)) {
        let seed = seed.unwrap_or((first + number) & 0xffff_ffff);
        doing(format!("round {seed}"), || round(seed));
    }
}

/// Only a hang takes that long between two steps.
const STILL: Duration = Duration::from_secs(60);

static PROGRESS: AtomicU64 = AtomicU64::new(0);

/// What each thread does, the outermost first.
static DOING: LazyLock<Mutex<HashMap<ThreadId, Vec<String>>>> = LazyLock::new(|| {
    thread::spawn(look_on);
    Mutex::default()
});

pub(crate) fn progress() {
    PROGRESS.fetch_add(1, SeqCst);
}

/// Does it, and tells the watchdog what that is.
pub(crate) fn doing<R>(what: String, code: impl FnOnce() -> R) -> R {
    progress();
    let id = thread::current().id();
    DOING.lock().unwrap().entry(id).or_default().push(what);
    let result = code();
    DOING.lock().unwrap().entry(id).or_default().pop();
    result
}

fn look_on() {
    let mut seen = 0;
    let mut since = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = PROGRESS.load(SeqCst);
        DOING.lock().unwrap().retain(|_, doing| !doing.is_empty());
        if now != seen || DOING.lock().unwrap().is_empty() {
            seen = now;
            since = Instant::now();
        }
        if since.elapsed() > STILL {
            // Not `eprintln!`, whose text the test's runner loses when it is aborted.
            let doing = DOING.lock().unwrap();
            let _ = writeln!(std::io::stderr(), "nothing moves any more: {doing:#?}");
            std::process::abort();
        }
    }
}
