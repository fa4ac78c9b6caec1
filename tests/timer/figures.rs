//! What an operator sees of a timer: its name, its figures, its slots.

use crate::{Fixture, MS, closures};
use std::time::Duration;
use tickwheel::{Snapshot, Stats, Timer, TimerEntry};

#[test]
fn a_timer_is_known_by_its_name() {
    let timer = Timer::builder().name("sessions").build().unwrap();
    assert_eq!((timer.name(), timer.closures().name()), ("sessions", "sessions"));
    assert_eq!(timer.stats().name, "sessions");
    assert!(timer.stats().to_string().starts_with("sessions: added 0"));
    assert_eq!(format!("{timer:?}"), r#"Timer { name: "sessions", pending: 0, .. }"#);
    let numbers = Timer::builder().executor(|_: u32| ()).build().unwrap();
    assert_eq!((numbers.name(), numbers.closures().name()), ("tickwheel", "tickwheel"));
}

#[test]
fn stats_are_compared_and_printed() {
    let fixture = Fixture::new();
    fixture.after(MS, 1);
    let (before, again) = (fixture.timer.stats(), fixture.timer.stats());
    assert_eq!(before, again);
    assert_eq!(fixture.advance(2 * MS), [1]);
    let after = fixture.timer.stats();
    assert_ne!(before, after);
    let text = format!("{after:?}");
    // A millisecond late: the one bar that is not empty, and no other.
    assert!(text.ends_with("lateness: {1.048575ms: 1} }"), "{text}");
    let empty = Stats::default();
    assert_eq!((empty.added, empty.pending, empty.name.as_str()), (0, 0, ""));
    assert_eq!(empty.lateness.count(), 0);
}

#[test]
fn stats_are_a_text_with_a_bar_for_each_power_of_two() {
    let fixture = Fixture::with(|builder| builder.name("printed"));
    (1..=20).for_each(|id| _ = fixture.after(2 * MS, id));
    (0..5).for_each(|id| _ = fixture.after(MS, id));
    assert!(fixture.after(MS, 21).cancel().is_cancelled());
    assert!(fixture.after(3 * MS, 22).reschedule(4 * MS));
    assert_eq!(fixture.timer.stats().to_string().lines().last(), Some("lateness of nothing"));
    assert_eq!(fixture.advance(MS).len(), 5);
    assert_eq!(fixture.advance(2 * MS).len(), 20);
    let lines = [
        "printed: added 27, pending 1",
        "cancelled 1, rescheduled 1",
        "expired 25, cascaded 0",
        "refused 0, of these dropped 0, panicked 0",
        "returned 0, wakeups 0",
        "lateness p50 <= 1.0ms, p99 <= 1.0ms, max <= 1.0ms",
        "  <=     1.0ns            5 ##########",
        "  <=     1.0ms           20 ########################################",
    ];
    assert_eq!(fixture.timer.stats().to_string(), lines.join("\n"));
}

#[test]
fn each_move_to_a_finer_level_is_counted() {
    // Level 0 reaches less than 8 ms ahead, level 1 less than 32, level 2 less than 128.
    let fixture = Fixture::with(|builder| builder.wheel_size(8).shards(2));
    (0..3).for_each(|id| _ = fixture.after(7 * MS, id));
    (3..6).for_each(|id| _ = fixture.after(31 * MS, id));
    assert_eq!(fixture.timer.stats().cascaded, 0);
    assert_eq!((0..31).map(|_| fixture.advance(MS).len()).sum::<usize>(), 6);
    assert_eq!(fixture.timer.stats().cascaded, 3, "those of level 1, once");
}

#[test]
fn a_timer_tells_whether_it_was_shut_down() {
    let (timer, _) = closures();
    assert!(!timer.is_shutdown());
    let clone = timer.clone();
    timer.shutdown();
    assert!(timer.is_shutdown() && clone.is_shutdown() && clone.closures().is_shutdown());
}

/// Returns the slots of each level: how many slots ahead, and how many entries.
fn slots(snapshot: &Snapshot) -> Vec<Vec<(usize, usize)>> {
    let filled = |slots: &[usize]| {
        slots.iter().copied().enumerate().filter(|(_, entries)| *entries > 0).collect()
    };
    snapshot.levels.iter().map(|level| filled(&level.slots)).collect()
}

#[test]
fn a_snapshot_tells_the_entries_of_each_slot_from_the_present_on() {
    // Level 0: 8 slots of 1 ms; level 1: of 4 ms; level 2: of 16 ms.
    let fixture = Fixture::with(|builder| builder.wheel_size(8));
    for (id, due) in [1, 1, 5, 9, 11, 12, 29, 40, 47].into_iter().enumerate() {
        fixture.after(MS * due, id as u32);
    }
    let snapshot = fixture.timer.snapshot();
    assert_eq!(
        slots(&snapshot),
        [vec![(1, 2), (5, 1)], vec![(2, 2), (3, 1), (7, 1)], vec![(2, 2)]]
    );
    assert!(snapshot.levels.iter().all(|level| level.slots.len() <= level.wheel_size));
    // At 5 ms the bucket of 8 to 11 ms has cascaded: it expires at 8 - (4 - 1).
    assert_eq!(fixture.advance(5 * MS), [0, 1, 2]);
    let snapshot = fixture.timer.snapshot();
    assert_eq!(slots(&snapshot), [vec![(4, 1), (6, 1)], vec![(2, 1), (6, 1)], vec![(2, 2)]]);
    // The present moves on, and nobody advances the timer: what is due is in the first slot.
    fixture.clock.advance(5 * MS);
    let snapshot = fixture.timer.snapshot();
    assert_eq!(slots(&snapshot)[..2], [vec![(0, 1), (1, 1)], vec![(1, 1), (5, 1)]]);
    assert_eq!(snapshot.levels[0].next_expiration, Some(Duration::ZERO));
    for level in &snapshot.levels {
        assert_eq!(level.slots.iter().sum::<usize>(), level.entries);
    }
}

#[test]
fn slots_of_several_shards_are_added_up_and_far_ones_are_there() {
    let fixture = Fixture::with(|builder| builder.shards(4));
    fixture.after(Duration::MAX, 0);
    fixture.after(500 * MS, 1);
    fixture.after(Duration::ZERO, 2); // Due at once, in a bucket of its own.
    // A thread of another number, which has other shards.
    let timer = fixture.timer.clone();
    let far = std::thread::spawn(move || timer.add(TimerEntry::after(500 * MS, 3)).is_ok());
    assert!(far.join().unwrap());
    let slots = slots(&fixture.timer.snapshot());
    assert_eq!(slots[0], [(0, 1), (500, 2)]);
    assert_eq!(slots.iter().flatten().map(|(_, entries)| entries).sum::<usize>(), 4);
}
