//! What is done while a lock is held, counted: the promise of the crate's page that no call takes
//! time proportional to the number of timers while it holds a lock.
//!
//! Run with `RUSTFLAGS="--cfg tickwheel_count"`; without it there is nothing here. A *unit* is one
//! turn of a loop under a lock: a reference, an entry, a place of a chunk, a chunk of a directory,
//! a bucket, a watcher, that is looked at, moved or copied (`src/work.rs`). So it is the same on
//! every machine, and the bounds can be as tight as what is right. Each shape is tried with few and
//! with very many timers, whose bound is the same.
//!
//! These were seen to fail on a flush, a drain or a sweep that takes a whole bucket, on a `trim` or
//! a `trim` without a bound, on a visit that takes all watchers along, a round that looks at
//! all leases, and a `cancel_all` or a `for_each` of keys that takes a whole shard.
#![cfg(tickwheel_count)]

mod keys;
mod purgatory;
mod tasks;
mod timers;

use std::time::Duration;
use tickwheel::work::{self, Work};
use tickwheel::{ManualClock, Timer};

/// The sizes that each shape is tried with.
const SIZES: [u64; 2] = [2_000, 256_000];

/// The most places that a chunk of a slab has. When it has become nearly empty, or is filled again,
/// its values are moved; when it is empty, all its places are looked at.
const CHUNK: u64 = 1024;
/// References that are moved at once.
const BATCH: u64 = 128;
/// The exception: the directory of a slab's chunks. It is copied when it has doubled, and cut when
/// its last chunks have gone, a unit for each chunk. A chunk has so many values at least, so this
/// is much less than a call for each of them takes; but it is in proportion to them.
const DIRECTORY: u64 = 32;

/// The most units under one hold of each lock, by a part of the name of what it guards. Under the
/// turn's lock a shard's is taken, and under both of them the delay queue's: so these count what is
/// done under the others as well.
const BOUNDS: [(&str, u64); 11] = [
    // A batch is taken out of its bucket, looked at and filed anew, or 32 references, and what is
    // left of a block then, are swept in 32 buckets. Or 1,024 buckets are looked at, and a batch is
    // taken out of one of them. By that some chunks, of entries and of references, become sparse,
    // one for 32 entries, or empty.
    ("tickwheel::timer::tasks::Tasks", 2 * BATCH + 8 * CHUNK),
    // Besides, 64 buckets may be put aside, each compared with those that were before.
    ("tickwheel::engine::driver::Turn", 2 * BATCH + 8 * CHUNK + 64 * 64),
    // A batch arms as many buckets at most; of each level of each shard a bucket expires early.
    ("tickwheel::engine::delay_queue::State", 2 * BATCH),
    // The same; keys are taken out 64 at a time.
    ("tickwheel::keyed::keys::Keys", 2 * BATCH + 8 * CHUNK),
    ("tickwheel::lease::watchdog::Schedule", 2 * BATCH + 6 * CHUNK),
    // Operations are visited by blocks of 17, until 32 were found or the blocks end; a shutdown
    // takes them by chunks of records.
    ("tickwheel::purgatory::operations::Operations", 64 * 17 + CHUNK),
    // Each of them guards one thing.
    ("tickwheel::periodic::Progress", 2 * BATCH + 6 * CHUNK),
    ("tickwheel::purgatory::future::Outcome", 0),
    ("core::option::Option", 0),
    // Late keys.
    ("alloc::collections::btree::map::BTreeMap", 0),
    // The timers that were built on a manual clock: see `clocks`.
    ("dyn tickwheel::engine::manual_clock::OnClock", 16),
];

/// Calls something, and checks what was done under each lock since the last check.
#[track_caller]
fn check<R>(what: &str, call: impl FnOnce() -> R) -> R {
    check_with(what, 0, call)
}

/// Checks the same, where it is known why there may be so much more.
#[track_caller]
fn check_with<R>(what: &str, more: u64, call: impl FnOnce() -> R) -> R {
    work::reset();
    let result = call();
    assert_bounded(what, more, &work::longest());
    result
}

#[track_caller]
fn assert_bounded(what: &str, more: u64, work: &Work) {
    for (lock, units) in work {
        let bound = BOUNDS.iter().find(|(part, _)| lock.contains(part));
        let (_, bound) = bound.unwrap_or_else(|| panic!("{lock} has no bound"));
        if std::env::var_os("TICKWHEEL_WORK").is_some() {
            println!("{units:>8} of {bound:>6}  {lock}  {what}");
        }
        assert!(*units <= bound + more, "{what}: {units} of {bound} + {more} under {lock}");
    }
}

/// Returns a timer in virtual time, with wheels of so many slots.
fn timer(wheel_size: usize) -> (Timer<u64>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).wheel_size(wheel_size).shards(4);
    (builder.executor(|_: u64| ()).build().expect("it has no thread"), clock)
}

/// Returns a timer of closures in virtual time, for the modules that are built on it.
fn timer_of_tasks() -> (Timer, ManualClock) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).shards(4).build();
    (timer.expect("it has no thread"), clock)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn what_a_lock_guards_is_counted_at_all() {
    let (timer, clock) = timer(512);
    work::reset();
    for id in 0..1_000 {
        timer.add(tickwheel::TimerEntry::after(millis(10), id)).expect("there is no limit");
    }
    clock.advance(millis(10));
    assert_eq!(timer.advance_clock(Duration::ZERO), 1_000);
    let longest = work::longest();
    let units = |part: &str| longest.iter().find(|(lock, _)| lock.contains(part)).map(|it| *it.1);
    assert!(units("timer::tasks::Tasks").is_some_and(|units| units >= 2 * BATCH), "{longest:?}");
    assert!(units("driver::Turn").is_some_and(|units| units >= 2 * BATCH), "{longest:?}");
    assert!(units("delay_queue::State").is_some_and(|units| units > 0), "{longest:?}");
}
