//! What an end does to each part, and what it does not wait for.

use crate::wakes::Wakes;
use crate::{HOUR, Idle};
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::future::{SleepError, TimedError};
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::Purgatory;
use tickwheel::{ManualClock, Task, Timer, TimerEntry};

const MICRO: Duration = Duration::from_micros(1);
const S: Duration = Duration::from_secs(1);

/// Builds everything on a timer, ends it, and checks that each part ends as it promises.
fn ends_everything<T: Send + 'static>(timer: Timer<T>, clock: &ManualClock, end: fn(&Timer<T>)) {
    let runs = Arc::new(AtomicUsize::new(0));
    let run = || {
        let runs = Arc::clone(&runs);
        move || _ = runs.fetch_add(1, SeqCst)
    };
    let closure = timer.closures().after(S, run()).unwrap();
    let counted = run();
    let series = Periodic::every(S)
        .start(&timer, move |_| counted())
        .unwrap();
    let counted = run();
    let keyed = KeyedTimer::new(&timer, move |_: u32, _: u32| counted());
    keyed.add(1, S, 1_u32).unwrap();
    let purgatory = Purgatory::new(&timer);
    let _watch = purgatory.try_complete_else_watch(Idle, S, &[1]).unwrap();
    let woken: [Arc<Wakes>; 2] = Default::default();
    let wakers = woken.clone().map(Waker::from);
    let [mut first, mut second] = wakers.each_ref().map(Context::from_waker);
    let mut sleep = pin!(timer.sleep(S));
    let mut timed = pin!(timer.timeout(S, pending::<()>()));
    assert!(sleep.as_mut().poll(&mut first).is_pending());
    assert!(timed.as_mut().poll(&mut second).is_pending());

    end(&timer);
    assert!(
        woken.iter().all(|woken| woken.take() > 0),
        "each future is woken"
    );
    assert_eq!(
        sleep.poll(&mut first),
        Poll::Ready(Err(SleepError::Shutdown))
    );
    let error = TimedError::Sleep(SleepError::Shutdown);
    assert_eq!(timed.poll(&mut second), Poll::Ready(Err(error)));
    assert!(
        !series.cancel() && !series.is_cancelled() && closure.is_expired(),
        "they have ended"
    );
    let mut late = pin!(timer.sleep(S));
    assert_eq!(
        late.as_mut().poll(&mut first),
        Poll::Ready(Err(SleepError::Shutdown))
    );
    assert!(Periodic::every(S).start(&timer, |_| ()).is_err());
    assert_eq!(Arc::strong_count(&runs), 2, "the keyed timer has one");
    let ran = runs.load(SeqCst);
    clock.advance(HOUR);
    assert_eq!(
        (timer.advance_clock(Duration::ZERO), runs.load(SeqCst)),
        (0, ran)
    );
    assert_eq!(
        (keyed.len(), purgatory.stats().expired, purgatory.len()),
        (1, 0, 1)
    );
    let stats = timer.stats();
    assert_eq!(
        (stats.pending, stats.returned),
        (2, stats.added - 2),
        "a key, an operation"
    );
}

/// Seen to fail: nobody woke a future of the list that was dropped.
#[test]
fn a_shutdown_ends_everything_on_a_timer_of_closures() {
    let ends: [fn(&Timer); 2] = [
        |timer| drop(timer.shutdown()),
        |timer| {
            timer
                .shutdown()
                .into_iter()
                .for_each(|entry| entry.into_task().run())
        },
    ];
    for end in ends {
        let clock = ManualClock::new();
        let builder = || Timer::builder().clock(clock.clone());
        ends_everything(builder().build().unwrap(), &clock, end);
        ends_everything(builder().start().unwrap(), &clock, end);
    }
}

/// Seen to fail: nothing of its closures ended.
#[test]
fn a_shutdown_ends_the_closures_of_a_timer_of_other_tasks() {
    let clock = ManualClock::new();
    let builder = || Timer::builder().clock(clock.clone()).executor(|_: u64| ());
    for timer in [builder().build().unwrap(), builder().start().unwrap()] {
        timer.after(S, 7).unwrap();
        ends_everything(timer, &clock, |timer| {
            assert!(
                timer
                    .shutdown()
                    .into_iter()
                    .map(TimerEntry::into_task)
                    .eq([7])
            );
        });
    }
}

/// Seen to fail: a future that drives the timer kept the executor.
#[test]
fn whatever_is_kept_of_a_timer_keeps_nothing_that_it_owned() {
    for polls in [false, true] {
        let guards: [Arc<()>; 2] = Default::default();
        let [executor, task] = guards.clone();
        let run = move |task: Task| {
            let _ = &executor;
            task.run();
        };
        let timer = Timer::builder()
            .clock(ManualClock::new())
            .executor(run)
            .build()
            .unwrap();
        let weak = timer.downgrade();
        let timeout = timer.after(HOUR, move || drop(task)).unwrap();
        let series = Periodic::every(HOUR).start(&timer, |_| ()).unwrap();
        let purgatory = Purgatory::new(&timer);
        let watch = purgatory.try_complete_else_watch(Idle, HOUR, &[1]).unwrap();
        let mut drive: Pin<Box<dyn Future<Output = ()>>> =
            Box::pin(timer.drive(|_| pending::<()>()));
        if polls {
            assert!(
                drive
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        drop((purgatory, timer));
        assert_eq!(guards.each_ref().map(Arc::strong_count), [1; 2]);
        drop((weak, timeout, series, watch, drive));
    }
}

/// Seen to fail: none ended before the adders did.
#[test]
fn adders_delay_neither_an_end_nor_a_turn() {
    let builder = || Timer::builder().tick(MICRO).wheel_size(4).shards(1);
    type Call = fn(&Timer);
    let shutdown: Call = |timer| drop(timer.shutdown());
    let turn: Call = |timer| _ = timer.advance_clock(Duration::ZERO);
    let driven = builder().build().unwrap();
    let reaped = builder().start().unwrap();
    for (timer, call) in [(driven, turn), (reaped, shutdown)] {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let is_over = || stop.load(SeqCst) || start.elapsed() > Duration::from_secs(5);
        let in_time = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in 0.. {
                        // Refused after the end.
                        let _ = timer.after(MICRO * (number % 20), || ());
                        if is_over() {
                            break;
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(20));
            call(&timer);
            let in_time = !is_over();
            stop.store(true, SeqCst);
            in_time
        });
        assert!(in_time, "it was delayed until the adders stopped");
    }
}
