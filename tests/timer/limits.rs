//! What a timer refuses, and what it tells about itself.

use crate::{Fixture, HOUR, MS};
use std::sync::mpsc::channel;
use std::time::Duration;
use tickwheel::{AddError, BuildError, ManualClock, Timer, TimerEntry, When, Worker};

#[test]
fn a_full_timer_hands_the_entry_back_until_one_is_cancelled_or_expires() {
    let fixture = Fixture::with(|builder| builder.max_pending(2));
    let first = fixture.after(MS, 1);
    fixture.after(MS, 2);
    let refused = |id| match fixture.timer.add(TimerEntry::after(HOUR, id)) {
        Err(AddError::Full(entry)) => entry.into_task() == id,
        _ => false,
    };
    assert!(refused(3) && refused(4));
    assert!(first.cancel().is_cancelled());
    fixture.after(MS, 5);
    assert!(refused(6));
    assert_eq!(fixture.advance(MS), [2, 5]);
    fixture.after(HOUR, 7);
    fixture.after(HOUR, 8);
    assert!(refused(9));
    assert_eq!((fixture.timer.len(), fixture.timer.stats().added), (2, 5));
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
fn a_permit_is_free_before_the_task_runs() {
    let (sender, results) = channel();
    let clock = ManualClock::new();
    let builder = Timer::builder().max_pending(1).clock(clock.clone());
    let timer = builder.build().expect("the options are in their ranges");
    let inner = timer.clone();
    let task = move || sender.send(inner.add(TimerEntry::after(HOUR, || ())).is_ok()).unwrap();
    timer.add(TimerEntry::after(MS, task)).unwrap();
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(results.try_recv(), Ok(true));
    timer.shutdown();
}

#[test]
fn a_moved_timer_keeps_its_permit() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    let timeout = fixture.after(5 * MS, 1);
    assert!(timeout.touch(HOUR) && timeout.reschedule(2 * MS) && timeout.touch(7 * MS));
    assert_eq!(fixture.advance(6 * MS), []);
    assert!(fixture.timer.add(TimerEntry::after(MS, 2)).is_err());
    assert_eq!(fixture.advance(MS), [1]);
    assert!(fixture.timer.add(TimerEntry::after(MS, 2)).is_ok());
}

#[test]
fn options_out_of_their_range_are_errors() {
    let tick = |tick| Timer::builder().tick(tick).build().map(drop);
    assert!(matches!(tick(Duration::ZERO), Err(BuildError::Tick)));
    assert!(matches!(tick(Duration::MAX), Err(BuildError::Tick)));
    assert!(tick(Duration::from_nanos(1)).is_ok() && tick(Duration::from_nanos(u64::MAX)).is_ok());
    let wheel_size = |size| Timer::builder().shards(1).wheel_size(size).build().map(drop);
    for size in [0, (1 << 20) + 1, usize::MAX] {
        assert!(matches!(wheel_size(size), Err(BuildError::WheelSize)), "{size}");
    }
    assert!(wheel_size(1).is_ok() && wheel_size(1 << 20).is_ok());
    let shards = |shards| Timer::builder().wheel_size(4).shards(shards).build().map(drop);
    for count in [0, 4097, usize::MAX] {
        assert!(matches!(shards(count), Err(BuildError::Shards)), "{count}");
    }
    assert!(shards(1).is_ok() && shards(3).is_ok() && shards(4096).is_ok());
    let started = Timer::builder().tick(Duration::ZERO).start();
    assert!(matches!(started, Err(BuildError::Tick)));
    // It would be for another executor's tasks, and forgotten.
    let builder = Timer::builder().on_refused(drop).executor(|_: u32| ());
    assert!(matches!(builder.build(), Err(BuildError::OnRefused)));
    assert!(Timer::builder().executor(|_: u32| ()).on_refused(drop).build().is_ok());
}

#[test]
fn errors_say_what_is_wrong() {
    let errors =
        [BuildError::Tick, BuildError::WheelSize, BuildError::Shards, BuildError::OnRefused];
    let texts = errors.map(|error| error.to_string());
    assert!(texts[3].contains("on_refused"));
    assert!(texts[0].contains("tick") && texts[1].contains("wheel") && texts[2].contains("shards"));
    let (full, closed) = (TimerEntry::<u32>::after(MS, 1), TimerEntry::<u32>::after(MS, 2));
    let (full, closed) = (AddError::Full(full), AddError::Shutdown(closed));
    assert_eq!(format!("{full:?}"), "AddError(the timer is full)");
    assert!(full.to_string().contains("full") && closed.to_string().contains("shut down"));
    assert_eq!((full.into_entry().into_task(), closed.into_entry().into_task()), (1, 2));
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
    for name in ["", "a name that is longer than what an operating system shows", "Übung"] {
        assert!(Timer::builder().name(name).start().is_ok(), "{name}");
    }
}

#[test]
fn stats_and_snapshot_can_be_read() {
    let fixture = Fixture::with(|builder| builder.shards(2));
    let empty = fixture.timer.stats();
    assert!(empty.to_string().contains("of nothing"), "{empty}");
    for id in 0..123 {
        fixture.after(MS * id, id);
    }
    (0..45).for_each(|id| fixture.after(1000 * HOUR, id).cancel().into_task().map_or((), drop));
    fixture.advance(61 * MS + Duration::from_micros(1));
    let (stats, snapshot) = (fixture.timer.stats(), fixture.timer.snapshot());
    assert_eq!((stats.expired, stats.lateness.count(), stats.pending), (62, 62, 61));
    let text = stats.to_string();
    for number in ["added 168", "pending 61", "cancelled 45", "expired 62", "p50 <="] {
        assert!(text.contains(number), "{number} is not in:\n{text}");
    }
    let bars: u64 = stats.lateness.bars().map(|(_, count)| count).sum();
    assert_eq!(bars, 62);
    assert!(stats.lateness.quantile(1.0).is_some_and(|most| most >= 61 * MS));
    // The n-th was due at n ms, and all expired at 61 ms and a microsecond.
    assert_eq!(stats.lateness.sum(), MS * (0..62).sum() + 62 * Duration::from_micros(1));
    assert_eq!(snapshot.shards, 2);
    let text = snapshot.to_string();
    let level = &snapshot.levels[0];
    assert_eq!((level.tick, level.wheel_size, level.armed_buckets), (MS, 512, 61));
    for wanted in ["level", "1.0ms", "61", "in 9"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    assert!(text.lines().count() > snapshot.levels.len());
}

#[test]
fn everything_can_be_printed_for_debugging() {
    let fixture = Fixture::new();
    let timeout = fixture.after(MS, 1);
    let builder = Timer::builder().name("sessions");
    let worker = Worker::unbounded("worker", |_: u32| ()).unwrap();
    let text = format!("{:?}\n{timeout:?}\n{builder:?}\n{worker:?}", fixture.timer);
    for wanted in ["pending: 1", "cancelled: false", "sessions", "queued: 0"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
}
