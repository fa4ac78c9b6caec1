//! What an end does to each part, and what it does not wait for.

use crate::{HOUR, Idle, by_hand, within};
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::future::{SleepError, TimedError};
use tickwheel::keyed::KeyedTimer;
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::{Periodic, Run};
use tickwheel::purgatory::Purgatory;
use tickwheel::{ManualClock, Task, Timer, TimerEntry};

const MICRO: Duration = Duration::from_micros(1);
const MILLI: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A store that notes what is lost.
struct Notes(Arc<Mutex<Vec<u32>>>);

impl LeaseStore<u32> for Notes {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        batch.into_iter().for_each(Renewal::renewed);
    }
    fn lost(&self, key: u32) {
        self.0.lock().unwrap().push(key);
    }
}

/// Builds everything on a timer, ends it, and checks that each part ends as it promises.
fn ends_everything<T: Send + 'static>(timer: Timer<T>, clock: &ManualClock, end: fn(Timer<T>)) {
    let (runs, lost) = (Arc::new(AtomicUsize::new(0)), Arc::default());
    let run = || {
        let runs = Arc::clone(&runs);
        move || _ = runs.fetch_add(1, SeqCst)
    };
    timer.closures().after(S, run()).unwrap();
    let counted = run();
    let series = Periodic::every(S).start(&timer, move |_| counted()).unwrap();
    let counted = run();
    let keyed = KeyedTimer::new(&timer, move |_: u32, _: u32| counted());
    keyed.schedule(1, TimerEntry::after(S, 1_u32)).unwrap();
    let purgatory = Purgatory::new(&timer);
    let _watch = purgatory.try_complete_else_watch(Idle, S, &[1]).unwrap();
    let leases = Leases::new(&timer, LeaseTerms::new(HOUR), Notes(Arc::clone(&lost)));
    let lease = leases.hold(7).unwrap();
    let woken: [Arc<Woken>; 2] = Default::default();
    let wakers = woken.clone().map(Waker::from);
    let [mut first, mut second] = wakers.each_ref().map(Context::from_waker);
    let (mut sleep, mut timed) = (pin!(timer.sleep(S)), pin!(timer.timeout(S, pending::<()>())));
    assert!(sleep.as_mut().poll(&mut first).is_pending());
    assert!(timed.as_mut().poll(&mut second).is_pending());

    end(timer.clone());
    assert!(woken.iter().all(|woken| woken.0.load(SeqCst)), "each future is woken");
    assert_eq!(sleep.poll(&mut first), Poll::Ready(Err(SleepError::Shutdown)));
    let error = TimedError::Sleep(SleepError::Shutdown);
    assert_eq!(timed.poll(&mut second), Poll::Ready(Err(error)));
    assert!(!lease.is_held() && leases.hold(8).is_err() && leases.is_empty());
    assert_eq!(*lost.lock().unwrap(), [7]);
    assert!(!series.cancel(), "it has ended");
    let ran = runs.load(SeqCst);
    clock.advance(HOUR);
    assert_eq!((timer.advance_clock(Duration::ZERO), runs.load(SeqCst)), (0, ran));
    assert_eq!((keyed.len(), purgatory.stats().expired, purgatory.delayed()), (1, 0, 1));
}

/// Seen to fail: nobody woke a future of the list that was dropped.
#[test]
fn a_shutdown_ends_everything_on_a_timer_of_closures() {
    let ends: [fn(Timer); 2] = [
        |timer| drop(timer.shutdown()),
        |timer| timer.shutdown().into_iter().for_each(|entry| entry.into_task().run()),
    ];
    for end in ends {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        ends_everything(timer, &clock, end);
    }
}

/// Seen to fail: nothing of its closures ended.
#[test]
fn a_shutdown_ends_the_closures_of_a_timer_of_other_tasks() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).executor(|_: u64| ()).build().unwrap();
    ends_everything(timer, &clock, |timer| drop(timer.shutdown()));
}

/// Seen to fail: a series that had ended was cancelled.
#[test]
fn only_the_call_that_ends_a_series_answers_true() {
    let fills = |timer: &Timer| _ = timer.after(HOUR, || ());
    let shuts_down = |timer: &Timer| drop(timer.shutdown());
    let ends: [fn(&Timer); 2] = [fills, shuts_down];
    for end in ends {
        let clock = ManualClock::new();
        let timer = Timer::builder().clock(clock.clone()).max_pending(1).build().unwrap();
        let own = timer.downgrade();
        let run = move |_: &Run<'_>| own.upgrade().iter().for_each(end);
        let series = Periodic::every(S).start(&timer, run).unwrap();
        clock.advance(S);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert!(!series.cancel(), "its last run is over");
    }
    let clock = ManualClock::new();
    let refuses = Timer::builder().clock(clock.clone()).executor(|task: Task| Err(task));
    let refuses = refuses.build().unwrap();
    let start = |timer: &Timer| Periodic::every(S).start(timer, |_| ()).unwrap();
    let (refused, timer) = (start(&refuses), by_hand());
    clock.advance(S);
    assert_eq!(refuses.advance_clock(Duration::ZERO), 1);
    let [cancelled, dropped] = [(); 2].map(|()| start(&timer));
    assert_eq!([(); 2].map(|()| cancelled.cancel()), [true, false]);
    drop(timer);
    assert!(!refused.cancel() && !dropped.cancel());
}

/// Seen to fail: a future that drives the timer kept the executor and the hook.
#[test]
fn whatever_is_kept_of_a_timer_keeps_nothing_that_it_owned() {
    for polls in [false, true] {
        let guards: [Arc<()>; 3] = Default::default();
        let [executor, hook, task] = guards.clone();
        let run = move |task: Task| {
            let _ = &executor;
            task.run();
        };
        let builder = Timer::builder().clock(ManualClock::new()).executor(run);
        let timer = builder.on_earlier_expiration(move || _ = &hook).build().unwrap();
        let leases = Leases::new(&timer, LeaseTerms::new(HOUR), Idle);
        let (weak, lease) = (timer.downgrade(), leases.hold(1).unwrap());
        let timeout = timer.after(HOUR, move || drop(task)).unwrap();
        let series = Periodic::every(HOUR).start(&timer, |_| ()).unwrap();
        let mut drive: Pin<Box<dyn Future<Output = ()>>> =
            Box::pin(timer.drive(|_| pending::<()>()));
        if polls {
            assert!(drive.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(leases);
        drop(timer);
        assert_eq!(guards.each_ref().map(Arc::strong_count), [1; 3]);
        drop((weak, lease, timeout, series, drive));
    }
}

/// Seen to fail: all of the tasks ran, which took eight seconds.
#[test]
fn an_end_waits_for_a_batch_and_not_for_a_turn() {
    let ends: [fn(Timer); 2] = [|timer| drop(timer.shutdown()), drop];
    for end in ends {
        let timer = Timer::builder().shards(1).start().unwrap();
        let (ran, (sender, has_begun)) = (Arc::new(AtomicUsize::new(0)), channel());
        let due = timer.now() + 100 * MILLI;
        for _ in 0..4_000 {
            let (ran, sender) = (Arc::clone(&ran), sender.clone());
            let task = move || {
                if ran.fetch_add(1, SeqCst) == 0 {
                    sender.send(()).unwrap();
                }
                thread::sleep(2 * MILLI);
            };
            timer.at(due, task).unwrap();
        }
        has_begun.recv().unwrap();
        end(timer);
        // Batches have 128. This thread has two seconds to come to the end.
        assert!(ran.load(SeqCst) < 1_000, "{} ran", ran.load(SeqCst));
    }
}

/// Seen to fail: none ended before the adders did.
#[test]
fn adders_delay_neither_an_end_nor_a_turn() {
    let builder = || Timer::builder().tick(MICRO).wheel_size(4).shards(1);
    type Call = fn(&Timer);
    let shutdown: Call = |timer| drop(timer.shutdown());
    let turn: Call = |timer| _ = timer.advance_clock(Duration::ZERO);
    let (driven, reaped) = (builder().build().unwrap(), builder().start().unwrap());
    for (timer, call) in [(driven, turn), (reaped, shutdown)] {
        let (stop, start) = (AtomicBool::new(false), Instant::now());
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
            thread::sleep(20 * MILLI);
            call(&timer);
            let in_time = !is_over();
            stop.store(true, SeqCst);
            in_time
        });
        assert!(in_time, "it was delayed until the adders stopped");
    }
}

/// Seen to fail: the hook was called inside itself until the stack was at its end.
#[test]
fn a_hook_may_shut_its_timer_down() {
    within(|| {
        let (depth, deepest) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (noted, timer) = (Arc::clone(&deepest), Arc::new(Mutex::new(None::<Timer>)));
        let own = Arc::clone(&timer);
        let hook = move || {
            let nested = depth.fetch_add(1, SeqCst);
            noted.fetch_max(nested, SeqCst);
            let timer = own.lock().unwrap().clone().filter(|_| nested < 50);
            drop(timer.map(|timer| timer.shutdown()));
            depth.fetch_sub(1, SeqCst);
        };
        let built = Timer::builder().on_earlier_expiration(hook).build().unwrap();
        *timer.lock().unwrap() = Some(built.clone());
        assert_eq!(built.next_expiration(), None);
        drop(built.after(HOUR, || ()));
        assert!(built.is_shutdown() && deepest.load(SeqCst) < 5, "{deepest:?} deep");
        drop(timer.lock().unwrap().take());
    });
}
