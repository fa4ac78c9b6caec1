//! A clock of the user's that goes back: for the timer it stands still.

use super::reading::Hand;
use super::{HOUR, MS, get};
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tickwheel::periodic::{Periodic, Run};
use tickwheel::queue::KeyedQueue;
use tickwheel::{Clock, Timer, WeakTimer};

fn is_pending(future: impl Future) -> bool {
    pin!(future)
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
}

/// Returns a hand, a clock and a timer that have seen an hour pass, which the hand then takes back.
fn an_hour_back() -> (Arc<Hand>, Clock, Timer) {
    let hand = Hand::new();
    let clock = hand.clock();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    timer.after(MS, || ()).unwrap();
    hand.set(HOUR);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    hand.set(Duration::ZERO);
    (hand, clock, timer)
}

#[test]
fn it_is_first_read_when_it_is_used_and_keeps_the_latest_time_for_all_clones() {
    let hand = Hand::new();
    let start = hand.now();
    hand.set(HOUR);
    let clock = hand.clock();
    let clone = clock.clone();
    assert_eq!(format!("{clock:?}"), "Clock::reading");
    hand.set(HOUR / 2);
    assert_eq!(clone.now(), start + HOUR / 2, "an hour was not read");
    hand.set(HOUR / 4); // Before the first reading.
    assert_eq!(clock.now(), start + HOUR / 2);
    hand.set(2 * HOUR);
    assert_eq!(clock.now(), start + 2 * HOUR);
    hand.set(HOUR);
    assert_eq!(clone.now(), start + 2 * HOUR);
    let timer: Timer = Timer::builder().clock(clone).build().unwrap();
    assert_eq!(timer.now(), start + 2 * HOUR);
    hand.set(2 * HOUR + MS);
    assert_eq!(timer.now(), start + 2 * HOUR + MS);
}

/// Seen to fail: the deadline, an hour back, was before the tick of the turn.
#[test]
fn what_a_task_adds_after_it_has_set_the_clock_back_is_not_early() {
    let hand = Hand::new();
    let timer = Timer::builder().clock(hand.clock()).build().unwrap();
    let (sender, early) = channel();
    let weak = timer.downgrade();
    let back = Arc::clone(&hand);
    timer
        .after(MS, move || {
            back.set(MS);
            let timer = weak.upgrade().expect("it lives");
            let deadline = timer.now() + HOUR / 2;
            let task = move || sender.send(weak.upgrade().unwrap().now() < deadline);
            timer.at(deadline, move || _ = task()).unwrap();
        })
        .unwrap();
    hand.set(HOUR);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    hand.set(2 * HOUR);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert!(!get(&early));
}

/// Seen to fail: the turn went on for as long as the task added itself.
#[test]
fn a_call_ends_though_its_task_sets_the_clock_back_and_adds_itself() {
    fn again(timer: &WeakTimer, hand: Arc<Hand>, runs: Arc<AtomicUsize>) {
        let weak = timer.clone();
        let task = move || {
            hand.set(Duration::ZERO);
            // Far more than there should be.
            if runs.fetch_add(1, SeqCst) < 1_000 {
                again(&weak, Arc::clone(&hand), Arc::clone(&runs));
            }
        };
        timer
            .upgrade()
            .expect("it lives")
            .after(Duration::ZERO, task)
            .unwrap();
    }
    let hand = Hand::new();
    let timer = Timer::builder().clock(hand.clock()).build().unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    again(&timer.downgrade(), Arc::clone(&hand), runs);
    for call in 1..10 {
        hand.set(HOUR * call);
        // In its own tick, which is over, and in the present one, for which it has added itself.
        assert_eq!(timer.advance_clock(Duration::ZERO), 2);
    }
}

/// Seen to fail: sleeps and queues had seen a later time, and took their deadlines for past.
#[test]
fn nothing_that_begins_after_a_step_back_is_ready_at_once() {
    let (_, _, timer) = an_hour_back();
    assert!(is_pending(timer.sleep(MS)));
    assert!(is_pending(timer.sleep(timer.now() + MS)));
    assert!(is_pending(timer.timeout(HOUR / 2, pending::<()>())));
}

/// Seen to fail, as the sleeps.
#[test]
fn no_key_of_a_queue_expires_at_once_after_a_step_back() {
    let hand = Hand::new();
    let mut queue = KeyedQueue::new(hand.clock(), |_| pending::<()>());
    let mut context = Context::from_waker(Waker::noop());
    queue.insert(1, MS, ());
    hand.set(HOUR);
    assert!(queue.poll_expired(&mut context).is_ready());
    hand.set(Duration::ZERO);
    queue.insert(2, HOUR / 2, ());
    assert!(queue.poll_expired(&mut context).is_pending());
    hand.set(HOUR + HOUR / 2);
    assert!(queue.poll_expired(&mut context).is_ready());
}

/// Seen to fail: the first period began before the clock's latest time.
#[test]
fn a_series_counts_its_periods_from_the_latest_time() {
    let (hand, clock, timer) = an_hour_back();
    let latest = clock.now();
    let (sender, runs) = channel();
    let task = move |run: &Run<'_>| _ = sender.send(run.due());
    let _series = Periodic::every(HOUR).start(&timer, task).unwrap();
    for number in 1..5 {
        hand.set(HOUR + HOUR * number - MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 0);
        hand.set(HOUR + HOUR * number);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert_eq!(get(&runs), Some(latest + HOUR * number));
        hand.set(Duration::ZERO);
        assert_eq!(timer.advance_clock(Duration::ZERO), 0);
    }
}

/// Seen to fail: with the wait counted from the latest time, the reaper looked at the clock each
/// millisecond until that had caught up.
#[test]
fn a_reaper_waits_while_its_clock_catches_up() {
    let hand = Hand::new();
    hand.set(HOUR);
    let timer: Timer = Timer::builder().clock(hand.clock()).start().unwrap();
    hand.set(Duration::ZERO);
    let (sender, ran) = channel();
    timer.after(MS, move || _ = sender.send(())).unwrap();
    let before = timer.stats().wakeups;
    let begun = Instant::now();
    std::thread::sleep(500 * MS);
    let woken = timer.stats().wakeups - before;
    // Once a second, by however much the sleep was too long, and for the timer.
    let allowed = begun.elapsed().as_secs() + 10;
    assert!(woken <= allowed, "{woken} wake-ups");
    assert!(ran.try_recv().is_err(), "it is not due");
    hand.set(HOUR + MS);
    get(&ran);
}
