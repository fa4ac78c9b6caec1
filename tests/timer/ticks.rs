//! The current tick stays open: what has passed comes with the next turn, and ticks are handed over
//! in their order.

use crate::MS;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tickwheel::{ManualClock, Timeout, Timer, When};

const S: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Returns a timer of numbers, its clock, and what has expired.
fn numbers(clock: ManualClock, tick: Duration) -> (Timer<u32>, ManualClock, Arc<Mutex<Vec<u32>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let builder = Timer::builder().clock(clock.clone()).tick(tick);
    let timer = builder.executor(move |number: u32| sink.lock().unwrap().push(number)).build();
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
}

/// Seen to fail on c465f0f: called before each turn, it kept the timer for ever.
#[test]
fn a_reschedule_to_now_postpones_nothing() {
    for tick in [MS, S, 60 * S] {
        let (timer, clock, seen) = numbers(ManualClock::new(), tick);
        let timeout = timer.after(tick / 2, 1).unwrap();
        clock.advance(tick / 2);
        assert!(timeout.reschedule(Duration::ZERO));
        assert_eq!(timer.advance_clock(Duration::ZERO), 1, "as what is added for now");
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
        let (seen, first) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&handles));
        timer
            .after(MS, move || {
                let [next, hour, moved] = first.get().unwrap();
                assert!(next.cancel().is_cancelled() && hour.cancel().is_cancelled());
                assert!(moved.touch(DAY));
            })
            .unwrap();
        let late = |name: u32, delay| {
            let seen = Arc::clone(&seen);
            timer.after(delay, move || seen.lock().unwrap().push(name)).unwrap()
        };
        let all = [late(1, 2 * MS), late(2, 3_600 * S), late(3, 2 * MS)];
        assert!(handles.set(all).is_ok());
        clock.advance(2 * 3_600 * S);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1, "seed {seed}");
        assert_eq!((seen.lock().unwrap().len(), timer.stats().panicked), (0, 0));
    }
}

/// Seen to fail on c465f0f: the clock went to where the deadline had been, and a day was lost.
#[test]
fn what_was_moved_to_never_moves_no_clock() {
    type Disarm = fn(&Timeout<u32>) -> bool;
    let ways: [Disarm; 3] =
        [|it| it.reschedule(When::Never), |it| it.touch(When::Never), |it| it.touch(Duration::MAX)];
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
