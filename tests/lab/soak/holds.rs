//! What a call returns grows under no shard's lock: another thread uses the keys meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;

const KEYS: u32 = 50_000;
/// What takes as much is the list of what is returned.
const LARGE: usize = 1 << 20;
/// Only a bug takes that long.
const HANG: Duration = Duration::from_secs(20);

/// Whether the keys are looked at, and growing is watched.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// How often the other thread has looked at keys of all shards.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static HAS_GROWN: AtomicBool = AtomicBool::new(false);
static STUCK: AtomicBool = AtomicBool::new(false);

struct Watching;

// SAFETY: everything is left to the system's allocator, whose caller only waits.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size >= LARGE && WATCHED.load(SeqCst) {
            HAS_GROWN.store(true, SeqCst);
            let begun = Instant::now();
            // A round that was under way may have passed the shard that is locked.
            let wanted = ROUNDS.load(SeqCst) + 2;
            while ROUNDS.load(SeqCst) < wanted && !STUCK.load(SeqCst) {
                STUCK.fetch_or(begun.elapsed() > HANG, SeqCst);
                thread::yield_now();
            }
        }
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Seen to fail: the list of the cancelled keys was moved, as it grew, under a shard's lock.
#[test]
fn a_list_of_cancelled_keys_grows_under_no_lock() {
    let timer = Timer::builder().build().unwrap();
    let keyed: KeyedTimer<u32, [u64; 8]> = KeyedTimer::new(&timer, |_: u32, _: [u64; 8]| ());
    (0..KEYS).for_each(|key| _ = keyed.add(key, Duration::from_secs(3600), [0; 8]).unwrap());
    WATCHED.store(true, SeqCst);
    let cancelled = thread::scope(|scope| {
        scope.spawn(|| {
            while WATCHED.load(SeqCst) {
                (0..1_000).for_each(|key| _ = keyed.contains(&key));
                ROUNDS.fetch_add(1, SeqCst);
            }
        });
        let cancelled = keyed.cancel_all();
        WATCHED.store(false, SeqCst);
        cancelled
    });
    assert_eq!(cancelled.len(), KEYS as usize);
    assert!(HAS_GROWN.load(SeqCst), "nothing large has grown");
    assert!(
        !STUCK.load(SeqCst),
        "a look-up waited until the list had moved"
    );
}
