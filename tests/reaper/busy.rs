//! Locks that others hold: for long, or again and again.

use crate::{HOUR, MS, get, until};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;
use tickwheel::Timer;
use tickwheel::keyed::{Entry, KeyedTimer};

/// A moved entry that is held wakes the reaper at once: it sleeps for other timers, too.
#[test]
fn an_entry_that_is_held_keeps_no_other_timer_waiting() {
    for moves in [false, true] {
        let timer = Timer::builder().start().expect("in range");
        let keyed = KeyedTimer::new(&timer, |_: u8, ()| ());
        keyed.add(1, HOUR, ()).expect("there is room");
        crate::sleeping(&timer);
        let (ran, runs) = channel();
        match keyed.entry(1) {
            Entry::Occupied(mut entry) => {
                if moves {
                    entry.reschedule(MS);
                }
                let run = move || ran.send(()).expect("the test waits");
                assert!(timer.after(5 * MS, run).is_ok());
                get(&runs);
            }
            Entry::Vacant(_) => panic!("it was scheduled"),
        }
    }
}

/// A key that waits for a message as it is dropped. Keys of one number are equal.
struct SlowToDrop(u8, Option<Receiver<()>>);

impl PartialEq for SlowToDrop {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for SlowToDrop {}

impl Hash for SlowToDrop {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        self.1.iter().for_each(get);
    }
}

/// Who moves a deadline up has woken the reaper before a key of the user's is dropped.
#[test]
fn a_key_that_is_slow_to_drop_keeps_no_other_timer_waiting() {
    let timer = Timer::builder().start().expect("in range");
    let keyed = KeyedTimer::new(&timer, |_: SlowToDrop, ()| ());
    let add = |key, delay| _ = keyed.add(key, delay, ()).expect("a place");
    add(SlowToDrop(1, None), HOUR);
    crate::sleeping(&timer);
    let (release, released) = channel();
    let (ran, runs) = channel();
    thread::scope(|scope| {
        // It moves the task of the key that is there, and drops its own.
        scope.spawn(|| add(SlowToDrop(1, Some(released)), MS));
        let moved = timer.now() + HOUR / 2;
        while keyed
            .deadline(&SlowToDrop(1, None))
            .is_some_and(|deadline| deadline > moved)
        {
            thread::yield_now();
        }
        assert!(
            timer
                .after(5 * MS, move || ran.send(()).expect("the test waits"))
                .is_ok()
        );
        get(&runs);
        release.send(()).expect("the key waits");
    });
}

/// However many of its buckets are due, and come before those of others.
#[test]
fn a_shard_that_is_held_hides_no_other_one() {
    let timer = Timer::builder().start().expect("in range");
    let hasher = BuildHasherDefault::<OneShard>::default();
    let keyed = KeyedTimer::with_hasher(&timer, hasher, |_: u32, ()| ());
    let add = |key, delay| keyed.add(key, delay, ()).expect("there is room");
    (0..100).for_each(|key| _ = add(key, 20 * MS + key * 32 * MS));
    (100..160).for_each(|key| _ = add(key, (key - 80) * MS));
    let held = keyed.find(&99);
    let (ran, runs) = channel();
    // When most of the keys are due.
    assert!(
        timer
            .after(1_500 * MS, move || ran.send(()).expect("the test waits"))
            .is_ok()
    );
    get(&runs);
    drop(held);
}

/// All keys have the same hash, so they lie in one shard.
#[derive(Default)]
struct OneShard;

impl Hasher for OneShard {
    fn write(&mut self, _: &[u8]) {}

    fn finish(&self) -> u64 {
        0
    }
}

/// A thread that uses one key without a pause delays the keys of that shard until it pauses, and
/// nothing else.
#[test]
fn a_key_that_is_used_without_a_pause_delays_only_its_shard_and_only_until_it_pauses() {
    let timer = Timer::builder().start().expect("in range");
    let [expired, others] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&expired);
    let hasher = BuildHasherDefault::<OneShard>::default();
    let keyed = KeyedTimer::with_hasher(&timer, hasher, move |_: u32, ()| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let add = |key, delay| keyed.add(key, delay, ()).expect("there is room");
    add(0, HOUR);
    // Each in a bucket of its own.
    for key in 1..=500 {
        add(key, key * MS);
        let counted = Arc::clone(&others);
        let count = move || _ = counted.fetch_add(1, Ordering::Relaxed);
        timer.after(key * MS, count).expect("there is room");
    }
    let mut late = 0;
    let due = Instant::now() + 500 * MS;
    // For two seconds, if the reaper does not come.
    while late < 1_000 && others.load(Ordering::Relaxed) < 500 {
        keyed.with(&0, |(), _| {
            let begun = Instant::now();
            while begun.elapsed() < 2 * MS {
                std::hint::spin_loop();
            }
        });
        late += usize::from(Instant::now() > due);
    }
    assert!(
        late < 1_000,
        "{} of 500 others expired",
        others.load(Ordering::Relaxed)
    );
    until("its own keys expire", || {
        expired.load(Ordering::Relaxed) == 500
    });
}
