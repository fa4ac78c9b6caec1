//! The manual clock's hand: it stops at each deadline on the way, on all timers of the clock.

use crate::idle::Idle;
use crate::{Fixture, HOUR, MS, calls};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer, TimerEntry, WeakTimer, When};

const S: Duration = Duration::from_secs(1);

/// What has happened, and when since the start.
type Diary = Arc<Mutex<Vec<(Duration, &'static str)>>>;

/// What notes when something has happened.
trait Note: Fn(&'static str) + Send + Sync + 'static {}

impl<F: Fn(&'static str) + Send + Sync + 'static> Note for F {}

/// Returns a timer, and a way to note what happens on it.
fn noting(clock: &ManualClock, tick: Duration, diary: &Diary) -> (Timer, impl Note + use<>) {
    let timer = Timer::builder()
        .clock(clock.clone())
        .tick(tick)
        .build()
        .unwrap();
    let start = clock.now();
    let clock = clock.clone();
    let diary = Arc::clone(diary);
    let note = move |what| diary.lock().unwrap().push((clock.now() - start, what));
    (timer, note)
}

#[test]
fn each_deadline_is_met_when_it_comes_whatever_it_is_of() {
    struct Fetch<F>(F);
    impl<F: Note> DelayedOperation for Fetch<F> {
        fn try_complete(&mut self) -> bool {
            false
        }
        fn on_complete(&mut self) {
            self.0("operation");
        }
    }
    let clock = ManualClock::new();
    let diary = Diary::default();
    let (timer, task) = noting(&clock, MS, &diary);
    let (_, key) = noting(&clock, MS, &diary);
    let (_, operation) = noting(&clock, MS, &diary);
    let (_, run) = noting(&clock, MS, &diary);
    timer.after(HOUR, move || task("task")).unwrap();
    let keyed = KeyedTimer::new(&timer, move |(), ()| key("key"));
    keyed.add((), 40 * S, ()).unwrap();
    let purgatory = Purgatory::new(&timer);
    purgatory
        .try_complete_else_watch(Fetch(operation), 50 * S, &[()])
        .unwrap();
    let series = Periodic::every(30 * S)
        .start(&timer, move |_| run("run"))
        .unwrap();
    let mut sleep = pin!(timer.sleep(45 * S));
    assert!(
        sleep
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let start = clock.now();
    clock.run_for(70 * S);
    assert!(
        sleep
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    );
    assert!(series.cancel());
    assert_eq!(clock.now() - start, 70 * S);
    assert_eq!(clock.step(), Some(start + HOUR));
    assert_eq!(
        (clock.step(), clock.now()),
        (None, start + HOUR),
        "nothing is pending"
    );
    let wanted = [
        (30, "run"),
        (40, "key"),
        (50, "operation"),
        (60, "run"),
        (3600, "task"),
    ];
    assert_eq!(
        *diary.lock().unwrap(),
        wanted.map(|(at, what)| (at * S, what))
    );
}

#[test]
fn timers_of_one_clock_go_by_their_deadlines_and_hosts_by_their_own_time() {
    let clock = ManualClock::new();
    let diary = Diary::default();
    let (coarse, one) = noting(&clock, 10 * MS, &diary);
    let (ahead, two) = noting(&clock.ahead(HOUR), MS, &diary);
    let (behind, three) = noting(&clock.behind(HOUR), MS, &diary);
    assert_eq!(ahead.now() - clock.now(), HOUR);
    assert_eq!(clock.now() - behind.now(), HOUR);
    coarse.after(11 * MS, move || one("at 20")).unwrap();
    ahead
        .at(clock.now() + HOUR + 12 * MS, move || two("at 12"))
        .unwrap();
    behind.after(21 * MS, move || three("at 21")).unwrap();
    ahead.after(Duration::MAX, || ()).unwrap();
    let end = clock.now() + HOUR;
    clock.run_until(end);
    assert_eq!(clock.now(), end);
    let wanted = [(12, "at 12"), (20, "at 20"), (21, "at 21")];
    assert_eq!(
        *diary.lock().unwrap(),
        wanted.map(|(at, what)| (at * MS, what))
    );
    clock.run_until(end - MS);
    assert_eq!(clock.now(), end, "it never goes back");
}

#[test]
fn a_task_that_adds_itself_again_runs_as_often_as_time_allows() {
    fn again(timer: WeakTimer, times: Arc<Mutex<u32>>) {
        let Some(alive) = timer.upgrade() else { return };
        *times.lock().unwrap() += 1;
        alive.after(5 * S, move || again(timer, times)).unwrap();
    }
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let weak = timer.downgrade();
    let times = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&times);
    timer.after(5 * S, move || again(weak, counted)).unwrap();
    clock.run_for(HOUR);
    assert_eq!(*times.lock().unwrap(), 720);
}

/// What was extended is filed anew when its former deadline comes: that is no step.
#[test]
fn a_step_goes_to_what_expires() {
    let fixture = Fixture::new();
    let start = fixture.clock.now();
    assert!(fixture.after(MS, 1).touch(HOUR));
    assert_eq!(fixture.clock.step(), Some(start + HOUR));
}

/// A key stays after the timer's end, and its bucket is never flushed.
#[test]
fn what_never_expires_ends_a_run() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let keyed = KeyedTimer::new(&timer, |(), ()| ());
    keyed.add((), S, ()).unwrap();
    drop(timer.shutdown());
    clock.run_for(HOUR);
    assert_eq!((clock.step(), keyed.len()), (None, 1));
}

#[test]
fn what_never_expires_is_no_step_and_moves_no_clock() {
    let clock = ManualClock::new();
    clock.advance(S);
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let start = clock.now();
    let extended = timer.after(HOUR, || ()).unwrap();
    assert!(extended.touch(Duration::MAX));
    timer.add(TimerEntry::new(When::Never, || ())).unwrap();
    // The clock ends before the tick that this is rounded up to.
    timer
        .after(Duration::from_nanos(u64::MAX - 1_000_001_000), || ())
        .unwrap();
    let keyed = KeyedTimer::new(&timer, |(), ()| ());
    keyed.add((), When::Never, ()).unwrap();
    let purgatory = Purgatory::new(&timer);
    purgatory
        .try_complete_else_watch(Idle, Duration::MAX, &[()])
        .unwrap();
    let mut sleep = pin!(timer.sleep(Duration::MAX));
    assert!(
        sleep
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    timer.assert_invariants();
    assert_eq!(
        (clock.step(), clock.now()),
        (None, start),
        "one was extended to never"
    );
    assert_eq!((timer.next_expiration(), timer.len()), (None, 6));
    timer.assert_invariants();
    clock.run_for(Duration::MAX);
    assert_eq!((clock.step(), timer.len()), (None, 6));
    // Moved to where it can expire, as far as it can go; and taken back by a shutdown.
    assert!(extended.reschedule(Duration::ZERO));
    assert_eq!((clock.step(), timer.len()), (Some(clock.now()), 5));
    assert_eq!(timer.shutdown().len(), 2, "a sleep is woken");
}

#[test]
fn a_step_that_a_reaper_makes_first_is_one() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).start().unwrap();
    let start = clock.now();
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    timer
        .after(5 * MS, move || runs.store(true, SeqCst))
        .unwrap();
    timer.after(7 * MS, || ()).unwrap();
    // Lets the reaper, which was woken, go on before the step looks what is due.
    let begun = Instant::now();
    let own = thread::current().id();
    let waits = move || {
        while thread::current().id() == own && !ran.load(SeqCst) && begun.elapsed() < 60 * S {
            thread::yield_now();
        }
    };
    let listener = timer.listener();
    assert!(listener.next_expiration(&calls::waker(waits)).is_some());
    assert_eq!(clock.step(), Some(start + 5 * MS));
}

#[test]
fn a_clock_may_be_ahead_by_more_than_anything_lasts() {
    let clock = ManualClock::new();
    let ahead = clock.ahead(Duration::MAX);
    let behind = clock.behind(Duration::MAX);
    assert!(behind.now() + HOUR < clock.now() && clock.now() + HOUR < ahead.now());
    clock.advance(Duration::MAX);
    let end = ahead.now();
    clock.advance(Duration::MAX);
    assert_eq!(ahead.now(), end);
    let timer = Timer::builder().clock(ahead).build().unwrap();
    assert!(
        timer
            .after(HOUR, || ())
            .unwrap()
            .deadline()
            .is_none_or(|at| at > end)
    );
}

/// Turns nest a few deep only, and a deeper one leaves what is due to an outer one.
#[test]
fn a_task_may_step_and_so_on() {
    fn step(clock: &ManualClock, timer: &WeakTimer, left: u32) {
        let Some(alive) = timer.upgrade().filter(|_| left > 0) else {
            return;
        };
        let inner = clock.clone();
        let weak = timer.clone();
        alive
            .after(S, move || step(&inner, &weak, left - 1))
            .unwrap();
        clock.step();
    }
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let start = clock.now();
    step(&clock, &timer.downgrade(), 20);
    clock.run_for(HOUR);
    assert!(timer.is_empty() && timer.stats().expired == 20);
    assert_eq!(
        clock.now() - start,
        HOUR + 8 * S,
        "eight steps were made inside each other"
    );
}

#[test]
fn it_stops_at_its_end_and_never_goes_back() {
    let clock = ManualClock::new();
    let start = clock.now();
    clock.advance(5 * S);
    clock.advance_to(start);
    assert_eq!(clock.now() - start, 5 * S);
    (0..2).for_each(|_| clock.advance(Duration::MAX));
    assert_eq!(clock.now() - start, Duration::from_nanos(u64::MAX - 2));
}
