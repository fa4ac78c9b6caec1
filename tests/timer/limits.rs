//! What a timer refuses, and what it tells about itself.

use crate::{Fixture, HOUR, MS};
use std::time::Duration;
use tickwheel::{AddError, BuildError, Timer, When, Worker};

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
    for id in 0..123 {
        fixture.after(MS * id, id);
    }
    (0..45).for_each(|id| fixture.after(1000 * HOUR, id).cancel().into_task().map_or((), drop));
    fixture.advance(61 * MS + Duration::from_micros(1));
    let (stats, snapshot) = (fixture.timer.stats(), fixture.timer.snapshot());
    assert_eq!((stats.expired, stats.lateness.count(), stats.pending), (62, 62, 61));
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
