//! What a timer refuses, and what an operator sees of it: its name, its figures, its slots and
//! shards.

use crate::idle::Idle;
use crate::{Fixture, HOUR, MS, closures};
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::Purgatory;
use tickwheel::{
    AddError, BuildError, ManualClock, Snapshot, Stats, Timer, TimerEntry, When, Worker,
};

#[test]
fn a_timer_is_known_by_its_name() {
    let timer = Timer::builder().name("sessions").build().unwrap();
    assert_eq!(
        (timer.name(), timer.closures().name()),
        ("sessions", "sessions")
    );
    assert_eq!(timer.stats().name, "sessions");
    assert!(timer.stats().to_string().starts_with("sessions: added 0"));
    assert_eq!(format!("{timer:?}"), r#"Timer { name: "sessions", .. }"#);
    let numbers = Timer::builder().executor(|_: u32| ()).build().unwrap();
    assert_eq!(
        (numbers.name(), numbers.closures().name()),
        ("tickwheel", "tickwheel")
    );
}

#[test]
fn stats_are_compared_and_printed() {
    let fixture = Fixture::new();
    fixture.after(MS, 1);
    let before = fixture.timer.stats();
    let again = fixture.timer.stats();
    assert_eq!(before, again);
    assert_eq!(fixture.advance(2 * MS), [1]);
    let after = fixture.timer.stats();
    assert_ne!(before, after);
    let text = format!("{after:?}");
    // A millisecond late: the one bar that is not empty, and no other.
    assert!(text.ends_with("lateness: {1.048575ms: 1} }"), "{text}");
    let empty = Stats::default();
    assert_eq!(
        (empty.added, empty.pending, empty.name.as_str()),
        (0, 0, "")
    );
    assert_eq!(empty.lateness.count(), 0);
}

#[test]
fn stats_are_a_text_with_a_bar_for_each_power_of_two() {
    let fixture = Fixture::with(|builder| builder.name("printed"));
    (1..=20).for_each(|id| _ = fixture.after(2 * MS, id));
    (0..5).for_each(|id| _ = fixture.after(MS, id));
    assert!(fixture.after(MS, 21).cancel().is_cancelled());
    assert!(fixture.after(3 * MS, 22).reschedule(4 * MS));
    assert_eq!(
        fixture.timer.stats().to_string().lines().last(),
        Some("lateness of nothing")
    );
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
        slots
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, entries)| *entries > 0)
            .collect()
    };
    snapshot
        .levels
        .iter()
        .map(|level| filled(&level.slots))
        .collect()
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
        [
            vec![(1, 2), (5, 1)],
            vec![(2, 2), (3, 1), (7, 1)],
            vec![(2, 2)]
        ]
    );
    assert!(
        snapshot
            .levels
            .iter()
            .all(|level| level.slots.len() <= level.wheel_size)
    );
    // At 5 ms the bucket of 8 to 11 ms has cascaded: it expires at 8 - (4 - 1).
    assert_eq!(fixture.advance(5 * MS), [0, 1, 2]);
    let snapshot = fixture.timer.snapshot();
    assert_eq!(
        slots(&snapshot),
        [vec![(4, 1), (6, 1)], vec![(2, 1), (6, 1)], vec![(2, 2)]]
    );
    // The present moves on, and nobody advances the timer: what is due is in the first slot.
    fixture.clock.advance(5 * MS);
    let snapshot = fixture.timer.snapshot();
    assert_eq!(
        slots(&snapshot)[..2],
        [vec![(0, 1), (1, 1)], vec![(1, 1), (5, 1)]]
    );
    assert_eq!(snapshot.levels[0].next_expiration, Some(Duration::ZERO));
    for level in &snapshot.levels {
        assert_eq!(level.slots.iter().sum::<usize>(), level.entries);
    }
}

#[test]
fn slots_of_several_shards_are_added_up_and_far_ones_are_there() {
    let fixture = Fixture::with(|builder| builder.shards(4));
    fixture.after(Duration::MAX, 0); // In no level.
    fixture.after(100 * 365 * 24 * HOUR, 4);
    fixture.after(500 * MS, 1);
    fixture.after(Duration::ZERO, 2); // Due at once, in a bucket of its own.
    // A thread of another number, which has other shards.
    let timer = fixture.timer.clone();
    let far = std::thread::spawn(move || timer.add(TimerEntry::after(500 * MS, 3)).is_ok());
    assert!(far.join().unwrap());
    let slots = slots(&fixture.timer.snapshot());
    assert_eq!(slots[0], [(0, 1), (500, 2)]);
    assert_eq!(
        slots
            .iter()
            .flatten()
            .map(|(_, entries)| entries)
            .sum::<usize>(),
        4
    );
}

#[test]
fn what_is_refused_by_each_way_to_add_comes_back() {
    let fixture = Fixture::with(|builder| builder.max_pending(0));
    let soon = fixture.clock.now() + MS;
    assert_eq!(fixture.timer.after(MS, 1_u32).unwrap_err().into_task(), 1);
    assert_eq!(fixture.timer.at(soon, 2_u32).unwrap_err().into_task(), 2);
    let fixture = Fixture::new();
    let soon = fixture.clock.now() + MS;
    assert!(fixture.timer.at(soon, 4_u32).is_ok());
    assert_eq!(fixture.timer.shutdown().len(), 1);
    let refused = fixture.timer.at(soon, 3_u32).unwrap_err();
    assert!(matches!(refused, AddError::Shutdown(_)));
    let entry = refused.into_entry();
    assert_eq!((entry.when(), entry.into_task()), (When::At(soon), 3));
}

#[test]
fn options_out_of_their_range_are_errors() {
    let tick = |tick| Timer::builder().tick(tick).build().map(drop);
    assert!(matches!(tick(Duration::ZERO), Err(BuildError::Tick)));
    assert!(matches!(tick(Duration::MAX), Err(BuildError::Tick)));
    assert!(tick(Duration::from_nanos(1)).is_ok() && tick(Duration::from_nanos(u64::MAX)).is_ok());
    let wheel_size = |size| {
        Timer::builder()
            .shards(1)
            .wheel_size(size)
            .build()
            .map(drop)
    };
    for size in [0, (1 << 20) + 1, usize::MAX] {
        assert!(
            matches!(wheel_size(size), Err(BuildError::WheelSize)),
            "{size}"
        );
    }
    assert!(wheel_size(1).is_ok() && wheel_size(1 << 20).is_ok());
    let shards = |shards| {
        Timer::builder()
            .wheel_size(4)
            .shards(shards)
            .build()
            .map(drop)
    };
    for count in [0, 4097, usize::MAX] {
        assert!(matches!(shards(count), Err(BuildError::Shards)), "{count}");
    }
    assert!(shards(1).is_ok() && shards(3).is_ok() && shards(4096).is_ok());
    let started = Timer::builder().tick(Duration::ZERO).start();
    assert!(matches!(started, Err(BuildError::Tick)));
    // It would be for another executor's tasks, and forgotten.
    let builder = Timer::builder().on_refused(drop).executor(|_: u32| ());
    assert!(matches!(builder.build(), Err(BuildError::OnRefused)));
    assert!(
        Timer::builder()
            .executor(|_: u32| ())
            .on_refused(drop)
            .build()
            .is_ok()
    );
}

#[test]
fn a_name_that_no_thread_can_have_is_an_error() {
    for name in ["\0", "a\0b", "ab\0"] {
        let builder = || Timer::builder().name(name);
        assert!(matches!(builder().start(), Err(BuildError::Name)));
        assert!(matches!(builder().build(), Err(BuildError::Name)));
        let worker = Worker::unbounded(name, |_: u32| ());
        assert!(matches!(worker, Err(BuildError::Name)));
        let error = Worker::bounded(name, 1, |_: u32| ()).expect_err("the same");
        assert!(error.to_string().contains("NUL"), "{error}");
    }
    for name in [
        "",
        "a name that is longer than what an operating system shows",
        "Übung",
    ] {
        assert!(Timer::builder().name(name).start().is_ok(), "{name}");
    }
}

#[test]
fn stats_and_snapshot_can_be_read() {
    let fixture = Fixture::with(|builder| builder.shards(2));
    for id in 0..123 {
        fixture.after(MS * id, id);
    }
    (0..45).for_each(|id| {
        fixture
            .after(1000 * HOUR, id)
            .cancel()
            .into_task()
            .map_or((), drop)
    });
    fixture.advance(61 * MS + Duration::from_micros(1));
    let stats = fixture.timer.stats();
    let snapshot = fixture.timer.snapshot();
    assert_eq!(
        (stats.expired, stats.lateness.count(), stats.pending),
        (62, 62, 61)
    );
    let bars: u64 = stats.lateness.bars().map(|(_, count)| count).sum();
    assert_eq!(bars, 62);
    assert!(
        stats
            .lateness
            .quantile(1.0)
            .is_some_and(|most| most >= 61 * MS)
    );
    // The n-th was due at n ms, and all expired at 61 ms and a microsecond.
    assert_eq!(
        stats.lateness.sum(),
        MS * (0..62).sum() + 62 * Duration::from_micros(1)
    );
    assert_eq!(snapshot.shards, 2);
    let text = snapshot.to_string();
    let level = &snapshot.levels[0];
    assert_eq!(
        (level.tick, level.wheel_size, level.armed_buckets),
        (MS, 512, 61)
    );
    for wanted in ["level", "1.0ms", "61", "in 9"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    assert!(text.lines().count() > snapshot.levels.len());
}

#[test]
fn there_are_two_shards_for_each_hardware_thread_unless_told_otherwise() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let timer = Timer::builder()
        .build()
        .expect("the defaults are in their ranges");
    assert_eq!(
        timer.snapshot().shards,
        (2 * threads).next_power_of_two().min(4096)
    );
    let timer = Timer::builder()
        .shards(8)
        .build()
        .expect("it is in its range");
    assert_eq!(timer.snapshot().shards, 8);
}

#[test]
fn keys_of_a_purgatory_are_spread_over_many_shards() {
    let builder = Timer::builder().clock(ManualClock::new());
    let timer = builder.shards(2).build().expect("it is in range");
    let purgatory = Purgatory::new(&timer);
    for key in 0..10_000 {
        assert!(
            purgatory
                .try_complete_else_watch(Idle, HOUR, &[key])
                .is_ok()
        );
    }
    let armed: usize = timer
        .snapshot()
        .levels
        .iter()
        .map(|level| level.armed_buckets)
        .sum();
    assert!(armed >= 8, "all operations are in {armed} shards");
}
