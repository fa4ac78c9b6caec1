//! A clock of the user's, which here stands still until a test moves it.

use super::{HOUR, MS, get, sleeping, until};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::{Clock, Timer, TimerBuilder, When};

/// The hand of a clock.
pub(super) struct Hand {
    /// Far from the system's time.
    start: Instant,
    elapsed_ns: AtomicU64,
    /// The latest time that it has shown.
    latest_ns: AtomicU64,
    panics: AtomicBool,
}

impl Hand {
    pub(super) fn new() -> Arc<Self> {
        let start = Instant::now() + 24 * HOUR;
        let [elapsed_ns, latest_ns] = [const { AtomicU64::new(0) }; 2];
        Arc::new(Hand {
            start,
            elapsed_ns,
            latest_ns,
            panics: AtomicBool::new(false),
        })
    }

    pub(super) fn now(&self) -> Instant {
        assert!(!self.panics.load(SeqCst), "which is what the test is about");
        let elapsed = self.elapsed_ns.load(SeqCst);
        self.latest_ns.fetch_max(elapsed, SeqCst);
        self.start + Duration::from_nanos(elapsed)
    }

    pub(super) fn has_reached(&self, time: Instant) -> bool {
        self.start + Duration::from_nanos(self.latest_ns.load(SeqCst)) >= time
    }

    pub(super) fn leap(&self, time: Duration) {
        self.elapsed_ns.fetch_add(time.as_nanos() as u64, SeqCst);
    }

    pub(super) fn back(&self, time: Duration) {
        let elapsed = self.elapsed_ns.load(SeqCst);
        self.elapsed_ns
            .store(elapsed.saturating_sub(time.as_nanos() as u64), SeqCst);
    }

    pub(super) fn set(&self, elapsed: Duration) {
        self.elapsed_ns.store(elapsed.as_nanos() as u64, SeqCst);
    }

    /// Returns the clock of this hand.
    pub(super) fn clock(self: &Arc<Self>) -> Clock {
        let hand = Arc::clone(self);
        Clock::reading(move || hand.now())
    }

    /// Returns a builder of a timer on this clock, whose tasks are their deadlines, and a channel
    /// that tells of each task whether it came early.
    fn timer(self: &Arc<Self>) -> (TimerBuilder<Instant>, Receiver<bool>) {
        let hand = Arc::clone(self);
        let (sender, early) = channel();
        let builder = Timer::builder().clock(self.clock());
        (
            builder.executor(move |at| _ = sender.send(!hand.has_reached(at))),
            early,
        )
    }
}

/// Returns what a thread gets that advances the clock.
fn advanced(timer: &Timer<Instant>, timeout: Duration) -> Receiver<usize> {
    let timer = timer.clone();
    let (sender, advanced) = channel();
    thread::spawn(move || sender.send(timer.advance_clock(timeout)));
    advanced
}

#[test]
fn a_clock_that_stands_still_expires_nothing_and_a_timeout_ends_all_the_same() {
    let hand = Hand::new();
    let (builder, early) = hand.timer();
    let timer = builder.build().unwrap();
    timer.at(hand.now() + MS, hand.now() + MS).unwrap();
    assert_eq!(get(&advanced(&timer, 20 * MS)), 0);
    hand.leap(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(!get(&early));
}

#[test]
fn a_reaper_notices_a_leap() {
    let hand = Hand::new();
    let (builder, early) = hand.timer();
    let timer = builder.start().unwrap();
    timer.at(hand.now() + HOUR, hand.now() + HOUR).unwrap();
    let before = sleeping(&timer);
    hand.leap(HOUR - MS);
    until("it looks, and looks again", || {
        timer.stats().wakeups >= before + 2
    });
    assert!(early.try_recv().is_err(), "it is not due");
    hand.leap(MS);
    assert!(!get(&early));
    let later = hand.now() + 20 * MS;
    timer.at(later, later).unwrap();
    hand.leap(20 * MS);
    assert!(!get(&early), "it goes on");
}

/// It has looked once already, and so it waits.
#[test]
fn a_loop_in_advance_clock_notices_a_leap() {
    let hand = Hand::new();
    let (builder, early) = hand.timer();
    let timer = builder.build().unwrap();
    timer.at(hand.now() + HOUR, hand.now() + HOUR).unwrap();
    let advanced = advanced(&timer, 2 * HOUR);
    until("it looks", || timer.stats().wakeups > 0);
    hand.leap(HOUR);
    assert_eq!(get(&advanced), 1);
    assert!(!get(&early));
}

/// As far as its owner is concerned, the sleep follows the clock.
#[test]
fn a_drive_asks_once_for_a_sleep_until_a_time_of_its_clock() {
    let hand = Hand::new();
    let timer = hand.timer().0.tick(60_000 * MS).build().unwrap();
    let deadline = hand.now() + HOUR;
    timer.at(deadline, deadline).unwrap();
    let asked = Mutex::new(Vec::new());
    let mut drive = pin!(timer.drive(|next| {
        asked.lock().unwrap().push(next);
        pending::<()>()
    }));
    for _ in 0..3 {
        hand.leap(HOUR / 4);
        assert!(
            drive
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    let asked = asked.lock().unwrap();
    assert_eq!(asked.last(), Some(&deadline));
    assert!(
        asked.len() <= 2,
        "once, and once to move it to a finer wheel: {asked:?}"
    );
}

/// And pauses for a tenth of a second between two panics in a row.
#[test]
fn a_reaper_goes_on_after_a_panic_of_its_clock() {
    let hand = Hand::new();
    let (builder, early) = hand.timer();
    let timer = builder.start().unwrap();
    timer.at(hand.now() + HOUR, hand.now() + HOUR).unwrap();
    sleeping(&timer);
    hand.panics.store(true, SeqCst);
    until("it is counted", || timer.stats().panicked > 0);
    let begun = Instant::now();
    let before = timer.stats().panicked;
    until("it panics on", || timer.stats().panicked >= before + 2);
    assert!(begun.elapsed() >= 100 * MS, "it does not spin");
    let in_a_call = catch_unwind(AssertUnwindSafe(|| timer.now()));
    assert!(in_a_call.is_err());
    hand.panics.store(false, SeqCst);
    hand.leap(HOUR);
    assert!(!get(&early));
}

/// As a clock may that reads a broken source.
#[test]
fn a_clock_at_the_end_of_time_ends_no_sleep_that_never_ends() {
    let start = Instant::now();
    let is_far = Arc::new(AtomicBool::new(false));
    let reads = Arc::clone(&is_far);
    let clock = Clock::reading(move || match reads.load(SeqCst) {
        true => start + Duration::from_secs(u64::MAX / 1_000_000_000 * 2),
        false => start,
    });
    let timer = Timer::builder().clock(clock).build().unwrap();
    let mut never = pin!(timer.sleep(When::Never));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(never.as_mut().poll(context).is_pending());
    is_far.store(true, SeqCst);
    timer.advance_clock(Duration::ZERO);
    assert!(never.as_mut().poll(context).is_pending());
    let mut later = pin!(timer.sleep(When::Never));
    assert!(later.as_mut().poll(context).is_pending());
}
