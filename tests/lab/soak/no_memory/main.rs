//! No memory: the allocation with each number fails, each in a process of its own.
//!
//! The process may end then, as Rust's do; but in an orderly way, and what it did before has to be
//! right: a journal says what was added, taken and expired, and nothing in it may be early, end
//! twice, or be missing after a turn. A child is this test again, with variables set.

mod journal;

use fastrand::Rng;
use journal::{Event, Journal, judge};
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Timeout, Timer, TimerEntry};

const MS: Duration = Duration::from_millis(1);
const SIGABRT: i32 = 6;
/// How a child ends that has not met the allocation which was to fail.
const NOT_MET: i32 = 3;
const NUMBER: &str = "TICKWHEEL_NO_MEMORY_AT";
const FILE: &str = "TICKWHEEL_NO_MEMORY_FILE";
const REAPER: &str = "TICKWHEEL_NO_MEMORY_REAPER";

type Expires = Arc<dyn Fn(u32) + Send + Sync>;

struct Operation {
    id: u32,
    expires: Expires,
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {}

    fn on_expiration(&mut self) {
        (self.expires)(self.id);
    }
}

enum Handle {
    Timer(Timeout),
    Key,
    Operation(Pending<u32, Operation>),
}

/// What a child does: a bit of everything, in virtual time.
struct Scene {
    journal: Arc<Journal>,
    clock: ManualClock,
    start: Instant,
    timer: Timer,
    keyed: KeyedTimer<u32, u32>,
    purgatory: Purgatory<u32, Operation>,
    expires: Expires,
    handles: Vec<(u32, Handle)>,
}

impl Scene {
    fn new(journal: Journal, reaper: bool) -> Self {
        let (clock, journal) = (ManualClock::new(), Arc::new(journal));
        let start = clock.now();
        let (noted, shown) = (Arc::clone(&journal), clock.clone());
        let expires: Expires = Arc::new(move |id| {
            let now = shown.now() - start;
            noted.write(Event::Expired, id, now.as_nanos() as u64);
        });
        let of_key = Arc::clone(&expires);
        let builder = Timer::builder().wheel_size(8).shards(2).clock(clock.clone());
        let timer = if reaper { builder.start() } else { builder.build() };
        let timer = timer.expect("a thread can be started");
        Scene {
            journal,
            clock,
            start,
            keyed: KeyedTimer::new(&timer, move |_, id| of_key(id)),
            purgatory: Purgatory::new(&timer),
            timer,
            expires,
            handles: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        (self.clock.now() - self.start).as_nanos() as u64
    }

    fn add(&mut self, random: &mut Rng, id: u32) {
        let bits = random.u64(..12);
        let delay = MS * random.u64(..1 << bits) as u32;
        self.journal.write(Event::Adds, id, self.now() + delay.as_nanos() as u64);
        let expires = Arc::clone(&self.expires);
        let handle = match random.u64(..3) {
            0 => {
                let task = move || expires(id);
                Handle::Timer(self.timer.add(TimerEntry::after(delay, task)).expect("no limit"))
            }
            1 => {
                let replaced = self.keyed.add(id, delay, id);
                assert!(replaced.expect("no limit").is_none());
                Handle::Key
            }
            _ => {
                let (operation, keys) = (Operation { id, expires }, [id, 1 << 30, 1 << 31]);
                let watch = self.purgatory.try_complete_else_watch(operation, delay, &keys);
                // A reaper may have been quicker.
                let pending = watch.expect("no limit").pending();
                pending.map_or(Handle::Key, Handle::Operation)
            }
        };
        self.journal.write(Event::Added, id, 0);
        self.handles.push((id, handle));
    }

    fn take(&mut self, random: &mut Rng) {
        let nth = random.u64(..self.handles.len().max(1) as u64) as usize;
        if nth >= self.handles.len() {
            return;
        }
        let (id, handle) = self.handles.swap_remove(nth);
        let taken = match handle {
            Handle::Timer(timeout) => timeout.cancel().is_cancelled(),
            Handle::Key => self.keyed.cancel(&id).is_some(),
            Handle::Operation(pending) => pending.force_complete(),
        };
        if taken {
            self.journal.write(Event::Taken, id, 0);
        }
    }

    fn move_one(&mut self, random: &mut Rng) {
        let nth = random.u64(..self.handles.len().max(1) as u64) as usize;
        let delay = MS * random.u64(..3_000) as u32;
        let Some((id, handle)) = self.handles.get(nth) else { return };
        self.journal.write(Event::Moves, *id, self.now() + delay.as_nanos() as u64);
        match handle {
            Handle::Timer(timeout) => timeout.reschedule(delay),
            Handle::Key => self.keyed.reschedule(id, delay),
            Handle::Operation(_) => self.purgatory.check_and_complete(&(1 << 30)) > 0,
        };
    }

    fn run(mut self, reaper: bool) {
        let mut random = Rng::with_seed(7);
        for id in 0..300 {
            self.add(&mut random, id);
            match random.u64(..6) {
                0 | 1 => self.take(&mut random),
                2 => self.move_one(&mut random),
                3 => {
                    self.clock.advance(MS * random.u64(..200) as u32);
                    self.timer.advance_clock(Duration::ZERO);
                    if !reaper {
                        self.journal.write(Event::Turned, id, self.now());
                    }
                }
                _ => {}
            }
        }
        // All that is left falls due, so it is noticed if something was forgotten.
        self.clock.advance(MS * 10_000);
        self.timer.advance_clock(Duration::ZERO);
        if !reaper {
            self.journal.write(Event::Turned, 0, self.now());
        }
        drop(self.purgatory.shutdown());
        drop(self.keyed.cancel_all());
        drop(self.timer.shutdown());
    }
}

/// Runs the scene in this process, in which the allocation with that number fails.
fn inside(number: u64) {
    let path = PathBuf::from(std::env::var_os(FILE).expect("a file"));
    let reaper = std::env::var_os(REAPER).is_some();
    let journal = Journal::open(&path);
    fail_at(number);
    Scene::new(journal, reaper).run(reaper);
    if !has_failed() {
        std::process::exit(NOT_MET);
    }
}

/// Runs the scene in a process of its own. Returns whether it had fewer allocations, and how many
/// entries had expired. A process that goes on after the failure is judged like any other.
fn child(test: &str, file: &Path, number: u64, reaper: bool) -> (bool, usize) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--test-threads=1"]).env(NUMBER, number.to_string());
    command.env(FILE, file).env_remove("RUST_BACKTRACE");
    if reaper {
        command.env(REAPER, "1");
    }
    let output = command.output().expect("it can be run");
    let text = String::from_utf8_lossy(&output.stderr);
    let not_met = output.status.code() == Some(NOT_MET);
    let aborted = output.status.signal() == Some(SIGABRT) && text.contains("memory allocation");
    let ended = not_met || aborted || output.status.success();
    assert!(ended, "allocation {number}: {}: {text}", output.status);
    let journal = std::fs::read_to_string(file).unwrap_or_default();
    let _ = std::fs::remove_file(file);
    let (complaint, expired) = judge(&journal, MS.as_nanos() as u64);
    assert!(complaint.is_none(), "allocation {number}: {complaint:?}\n{journal}");
    (not_met, expired)
}

/// Lets one allocation after the other fail, until there are not so many.
fn each_allocation(test: &str, reaper: bool, step: usize) {
    if let Some(number) = std::env::var_os(NUMBER) {
        return inside(number.to_str().and_then(|text| text.parse().ok()).expect("a number"));
    }
    let file = std::env::temp_dir().join(format!("tickwheel-{}-{test}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let mut most = 0;
    for number in (1..).step_by(step) {
        let (not_met, expired) = child(test, &file, number, reaper);
        most = expired.max(most);
        if not_met {
            println!("{number} allocations, {most} entries had expired");
            assert!(number > 100 && most > 50, "hardly anything happened");
            return;
        }
    }
}

#[test]
fn whichever_allocation_fails_nothing_was_wrong_before() {
    each_allocation("whichever_allocation_fails_nothing_was_wrong_before", false, 1);
}

#[test]
fn whichever_allocation_fails_beside_a_reaper_nothing_was_wrong_before() {
    let test = "whichever_allocation_fails_beside_a_reaper_nothing_was_wrong_before";
    each_allocation(test, true, 5);
}

struct Failing;

/// Allocations until one fails. Zero: none does.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Lets the allocation with this number fail, counted from now on; none if it is zero.
pub(crate) fn fail_at(number: u64) {
    LEFT.store(number, SeqCst);
}

/// Returns whether the one that was to fail has failed.
pub(crate) fn has_failed() -> bool {
    LEFT.load(SeqCst) == 0
}

/// Returns whether the present allocation fails.
fn fails() -> bool {
    LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1)
}

// SAFETY: everything is left to the system's allocator, or fails, which every allocation may.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        if fails() { null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        if fails() { null_mut() } else { unsafe { System.realloc(pointer, layout, size) } }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;
