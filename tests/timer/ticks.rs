//! The current tick stays open: what has passed comes with the next turn, and ticks are handed over
//! in their order.

use crate::MS;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Clock, ManualClock, Timeout, Timer, When};

const S: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns a timer of numbers, its clock, and what has expired.
fn numbers(clock: ManualClock, tick: Duration) -> (Timer<u32>, ManualClock, Arc<Mutex<Vec<u32>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let builder = Timer::builder().clock(clock.clone()).tick(tick);
    let timer = builder
        .executor(move |number: u32| sink.lock().unwrap().push(number))
        .build();
    (timer.unwrap(), clock, seen)
}

/// Seen to fail on c465f0f: the third tick came first.
#[test]
fn an_overdue_entry_that_is_extended_comes_in_the_order_of_its_tick() {
    let (timer, clock, seen) = numbers(ManualClock::new(), S);
    timer.after(S, 1).unwrap();
    timer.after(2 * S, 2).unwrap();
    let start = clock.now();
    clock.advance(2_200 * MS);
    let moved = timer.at(start + 2_100 * MS, 3).unwrap();
    assert!(moved.reschedule(start + 2_900 * MS));
    clock.advance(1_800 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 3);
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
    // One that waits for its third tick is looked at in the first.
    let extended = timer.after(S, 3).unwrap();
    timer.after(2 * S, 2).unwrap();
    assert!(extended.touch(3 * S));
    clock.advance(4 * S);
    assert_eq!(timer.advance_clock(Duration::ZERO), 2);
    assert_eq!(seen.lock().unwrap()[3..], [2, 3]);
}

/// Seen to fail: the third came with the first call, and before the second.
#[test]
fn what_becomes_due_during_a_turn_comes_with_the_next_and_after_what_was_due() {
    let clock = ManualClock::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hand = clock.clone();
    let tasks = Arc::clone(&seen);
    let keys = Arc::clone(&seen);
    let builder = Timer::builder()
        .clock(clock.clone())
        .executor(move |number: u32| {
            tasks.lock().unwrap().push(number);
            hand.advance(100 * MS);
        });
    let timer = builder.build().unwrap();
    let keyed = KeyedTimer::new(&timer, move |number: u32, ()| {
        keys.lock().unwrap().push(number)
    });
    timer.after(10 * MS, 1).unwrap();
    timer.after(20 * MS, 2).unwrap();
    // Looked at in the turn's own tick, after the first task.
    keyed.add(3, 10 * MS, ()).unwrap();
    assert!(keyed.touch(&3, 60 * MS));
    clock.advance(10 * MS);
    assert_eq!(
        [(); 2].map(|()| timer.advance_clock(Duration::ZERO)),
        [1, 2]
    );
    assert_eq!(*seen.lock().unwrap(), [1, 2, 3]);
}

/// What a turn has not handed over yet is still there for a task that looks.
#[test]
fn a_task_may_ask_what_is_next_while_its_tick_is_flushed() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .shards(1)
        .build()
        .unwrap();
    let asks = timer.downgrade();
    for _ in 0..300 {
        let asks = asks.clone();
        let ask = move || assert!(asks.upgrade().is_some_and(|timer| next_is_sound(&timer)));
        timer.after(MS, ask).unwrap();
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 300);
    assert_eq!((timer.len(), timer.stats().panicked), (0, 0));
}

/// Returns whether there is a next expiration exactly if something is pending.
fn next_is_sound(timer: &Timer) -> bool {
    timer.next_expiration().is_some() != timer.is_empty()
}

/// Seen to fail on c465f0f: called before each turn, it kept the timer for ever.
#[test]
fn a_reschedule_to_now_postpones_nothing() {
    for tick in [MS, S, 60 * S] {
        let (timer, clock, seen) = numbers(ManualClock::new(), tick);
        let timeout = timer.after(tick / 2, 1).unwrap();
        clock.advance(tick / 2);
        assert!(timeout.reschedule(Duration::ZERO));
        assert_eq!(
            timer.advance_clock(Duration::ZERO),
            1,
            "as what is added for now"
        );
        let far = timer.after(DAY, 2).unwrap();
        timer.after(Duration::ZERO, 3).unwrap();
        assert!(far.reschedule(Duration::ZERO));
        assert_eq!(timer.advance_clock(Duration::ZERO), 2, "{tick:?}");
        // Due, and not flushed: moved to now, and to a time before that.
        for past in [Duration::ZERO, tick / 8] {
            let due = timer.after(tick, 4).unwrap();
            clock.advance(tick + tick / 4);
            assert!(due.reschedule(clock.now() - past));
            assert_eq!(timer.advance_clock(Duration::ZERO), 1, "{tick:?} {past:?}");
        }
        seen.lock().unwrap().sort_unstable();
        assert_eq!(*seen.lock().unwrap(), [1, 2, 3, 4, 4]);
    }
}

/// Seen to fail on c465f0f with the seeds 1 and 7: all was taken out before the first ran.
#[test]
fn a_task_can_stop_one_of_a_later_tick_whatever_the_seed() {
    for seed in 0..20 {
        let clock = ManualClock::seeded(seed);
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let handles = Arc::new(OnceLock::<[Timeout; 3]>::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let first = Arc::clone(&handles);
        timer
            .after(MS, move || {
                let [next, hour, moved] = first.get().unwrap();
                assert!(next.cancel().is_cancelled() && hour.cancel().is_cancelled());
                assert!(moved.touch(DAY));
            })
            .unwrap();
        let late = |name: u32, delay| {
            let seen = Arc::clone(&seen);
            timer
                .after(delay, move || seen.lock().unwrap().push(name))
                .unwrap()
        };
        let all = [late(1, 2 * MS), late(2, 3_600 * S), late(3, 2 * MS)];
        assert!(handles.set(all).is_ok());
        clock.advance(2 * 3_600 * S);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1, "seed {seed}");
        assert_eq!((seen.lock().unwrap().len(), timer.stats().panicked), (0, 0));
    }
}

/// Seen to fail on c465f0f: the clock went to where the deadline had been, and a day was lost. And
/// again, where the deadline was moved beyond the clock's end, but not to never.
#[test]
fn what_was_moved_to_never_moves_no_clock() {
    type Disarm = fn(&Timeout<u32>) -> bool;
    let ways: [Disarm; 5] = [
        |it| it.reschedule(When::Never),
        |it| it.touch(When::Never),
        |it| it.touch(Duration::MAX),
        |it| it.touch(Duration::from_nanos(u64::MAX - 1_000)),
        |it| it.reschedule(Duration::from_nanos(u64::MAX - 1_000)),
    ];
    for disarm in ways {
        for delay in [MS, 5 * S, DAY] {
            let (timer, clock, _) = numbers(ManualClock::new(), MS);
            let start = clock.now();
            assert!(disarm(&timer.after(delay, 1).unwrap()));
            timer.assert_invariants();
            assert_eq!(timer.next_expiration(), None);
            while clock.step().is_some() {}
            assert_eq!(clock.block_on(std::future::pending::<()>()), None);
            assert_eq!((clock.now(), timer.len()), (start, 1));
        }
    }
}

/// A clock of ticks of a second, which goes on to the next tick after so many readings.
#[derive(Default)]
struct Leaping {
    ms: AtomicU64,
    readings_left: AtomicU64,
}

impl Leaping {
    fn read(&self, start: Instant) -> Instant {
        if self.readings_left.fetch_sub(1, SeqCst) == 0 {
            self.ms.fetch_add(1_000, SeqCst);
        }
        start + Duration::from_millis(self.ms.load(SeqCst))
    }
}

/// Returns a timer of numbers with wheels of so many slots, its clock, and what has expired.
fn leaping(wheel_size: usize) -> (Timer<u32>, Arc<Leaping>, Arc<Mutex<Vec<u32>>>) {
    let clock = Arc::new(Leaping::default());
    let start = Instant::now();
    clock.readings_left.store(u64::MAX, SeqCst);
    let read = Arc::clone(&clock);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let timer = Timer::builder()
        .clock(Clock::reading(move || read.read(start)))
        .tick(S)
        .wheel_size(wheel_size)
        .shards(1)
        .executor(move |number: u32| log.lock().unwrap().push(number))
        .build();
    (timer.unwrap(), clock, seen)
}

/// What is done with the timer while the clock shows 5.2 s, and comes with the next turn.
type Pass = fn(&Timer<u32>, &Timeout<u32>);

/// Seen to fail: what joined a bucket of an overflow wheel, or was filed before, was filed again
/// under the tick into which the clock had gone on since the turn began.
#[test]
fn what_has_passed_comes_with_the_next_turn_though_the_clock_goes_on() {
    let passes: [Pass; 2] = [
        |timer, _| _ = timer.after(Duration::ZERO, 3).unwrap(),
        |_, moved| assert!(moved.reschedule(Duration::ZERO)),
    ];
    for (nth, pass) in passes.into_iter().enumerate() {
        for readings in 0..12 {
            let (timer, clock, seen) = leaping(4);
            // In an overflow wheel: the bucket of the ticks 6 and 7.
            timer.after(7 * S, 1).unwrap();
            let moved = timer.after(3 * S, 2).unwrap();
            assert!(moved.touch(DAY));
            clock.ms.store(5_200, SeqCst);
            clock.readings_left.store(readings, SeqCst);
            pass(&timer, &moved);
            timer.advance_clock(Duration::ZERO);
            let expected = [3, 2][nth];
            assert_eq!(*seen.lock().unwrap(), [expected], "{nth} {readings}");
        }
    }
}

/// The page of `advance_clock` lists it: until the next tick begins, it is due in its old bucket.
#[test]
fn a_timer_that_is_moved_to_the_next_tick_comes_with_its_former_one_only_while_that_lasts() {
    for (call_ms, at_once, later) in [
        (8_899, vec![8], vec![9, 10]),
        (8_950, vec![8, 9], vec![10]),
        (9_000, vec![8, 9, 10], vec![]),
    ] {
        let (timer, clock, seen) = numbers(ManualClock::new(), S);
        let start = clock.now();
        let add = |ms, number| timer.at(start + ms * MS, number).unwrap();
        let moved = add(8_000, 9);
        add(7_100, 8);
        add(8_900, 10);
        assert!(moved.touch(start + 8_900 * MS));
        let expired_at = |ms| {
            clock.advance_to(start + ms * MS);
            timer.advance_clock(Duration::ZERO);
            std::mem::take(&mut *seen.lock().unwrap())
        };
        let mut first = expired_at(call_ms);
        assert!(call_ms < 9_000 || first[0] == 8, "{first:?}");
        first.sort_unstable();
        let mut second = expired_at(9_500);
        second.sort_unstable();
        assert_eq!((first, second), (at_once, later), "{call_ms}");
    }
}

/// A cascade that began early goes on in the next turn if the clock has gone on to another tick.
#[test]
fn an_early_cascade_keeps_nothing_waiting_that_has_become_due() {
    let (timer, clock, seen) = leaping(64);
    // In the bucket of the ticks 96 to 127, whose cascade begins at tick 65.
    (0..10_000).for_each(|_| _ = timer.after(100 * S, 1).unwrap());
    timer.after(S, 2).unwrap();
    clock.ms.store(70_000, SeqCst);
    clock.readings_left.store(9, SeqCst);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(*seen.lock().unwrap(), [2]);
    assert!(
        (1..9_000).contains(&timer.stats().cascaded),
        "{}",
        timer.stats()
    );
}

/// Seen to fail: the turn ended at the early cascade of another shard.
#[test]
fn a_turn_waits_for_what_is_due_where_another_thread_is_at_work() {
    let (timer, clock, _) = leaping(64);
    let expired = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&expired);
    let keyed = KeyedTimer::new(&timer, move |_: u8, ()| _ = count.fetch_add(1, SeqCst));
    assert!(keyed.add(1, S, ()).is_ok());
    (0..10_000).for_each(|_| _ = timer.after(100 * S, 1).unwrap());
    let held = keyed.find(&1);
    clock.ms.store(70_000, SeqCst);
    clock.readings_left.store(9, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            timer.advance_clock(Duration::ZERO);
            assert_eq!(expired.load(SeqCst), 1);
        });
        while clock.ms.load(SeqCst) == 70_000 {
            std::thread::yield_now();
        }
        // Long enough for the turn to end, if it does.
        std::thread::sleep(50 * MS);
        drop(held);
    });
}
