//! How many shards there are, and which of them threads add to. A bucket belongs to one shard, so
//! as many are armed for one moment as shards have a timer there.

use crate::idle::Idle;
use crate::{HOUR, MS};
use std::thread;
use tickwheel::purgatory::Purgatory;
use tickwheel::{ManualClock, Timer, TimerEntry};

#[test]
fn there_are_two_shards_for_each_hardware_thread_unless_told_otherwise() {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let timer = Timer::builder().build().expect("the defaults are in their ranges");
    assert_eq!(timer.snapshot().shards, (2 * threads).next_power_of_two().min(4096));
    let timer = Timer::builder().shards(8).build().expect("it is in its range");
    assert_eq!(timer.snapshot().shards, 8);
}

#[test]
fn a_thread_leaves_its_shard_when_others_often_cancel_there() {
    let builder = Timer::builder().clock(ManualClock::new()).shards(2);
    let timer: Timer<u32> = builder.executor(|_| ()).build().expect("the options are in range");
    let add = || timer.add(TimerEntry::after(7 * MS, 0)).expect("there is no limit");
    let used = || timer.snapshot().levels[0].armed_buckets;
    add();
    for _ in 0..1_000 {
        assert!(add().cancel().is_cancelled());
    }
    assert_eq!(used(), 1, "what it cancels itself makes no crowd");
    let timeouts: Vec<_> = (0..64).map(|_| add()).collect();
    let cancel_all = || timeouts.iter().for_each(|one| assert!(one.cancel().is_cancelled()));
    thread::scope(|scope| _ = scope.spawn(cancel_all));
    add(); // Meets the crowd.
    add(); // Goes elsewhere.
    assert_eq!(used(), 2);
    timer.assert_invariants();
}

#[test]
fn keys_of_a_purgatory_are_spread_over_many_shards() {
    let timer = Timer::builder().clock(ManualClock::new()).build().expect("it is in range");
    let purgatory = Purgatory::new(&timer);
    for key in 0..10_000 {
        assert!(purgatory.try_complete_else_watch(Idle, HOUR, &[key]).is_ok());
    }
    let armed: usize = timer.snapshot().levels.iter().map(|level| level.armed_buckets).sum();
    assert!(armed >= 8, "all operations are in {armed} shards");
}
