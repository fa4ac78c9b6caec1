//! Keyed timers as owners of wheels on a driver that others share.

use crate::idle::Idle;
use crate::{HOUR, MS};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::Purgatory;
use tickwheel::{AddError, ManualClock, Timer, TimerEntry};

/// Returns a timer whose tasks are numbers, and the channel of the expired ones.
fn timer_of_numbers() -> (Timer<u64>, ManualClock, Receiver<u64>) {
    let clock = ManualClock::new();
    let (sender, expired) = channel();
    let executor = move |number: u64| sender.send(number).expect("the test lives");
    let timer = Timer::builder()
        .clock(clock.clone())
        .executor(executor)
        .build();
    (timer.expect("it has no thread"), clock, expired)
}

fn turn(timer: &Timer<u64>, clock: &ManualClock, step: Duration) -> usize {
    clock.advance(step);
    let expired = timer.advance_clock(Duration::ZERO);
    timer.assert_invariants();
    expired
}

#[test]
fn keys_count_once_in_all_that_a_timer_tells() {
    let (timer, clock, _expired) = timer_of_numbers();
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    for key in 0..100 {
        keyed.add(key, MS * (key + 1), key).expect("there is room");
        timer
            .add(TimerEntry::after(MS * (key + 1), u64::from(key)))
            .expect("there is room");
    }
    assert_eq!(timer.len(), 200);
    let levels = timer.snapshot().levels;
    assert_eq!(levels.iter().map(|level| level.entries).sum::<usize>(), 200);
    assert!(levels.is_sorted_by_key(|level| level.tick));
    assert_eq!(keyed.cancel(&99), Some(99));
    assert_eq!(turn(&timer, &clock, 50 * MS), 100);
    let stats = timer.stats();
    assert_eq!((stats.added, stats.expired, stats.cancelled), (200, 100, 1));
    assert_eq!((stats.pending, stats.lateness.count()), (99, 100));
    // Its own come back; keys are whose they are.
    assert_eq!((timer.shutdown().len(), timer.len()), (50, 49));
    assert_eq!((keyed.cancel_all().len(), timer.len()), (49, 0));
}

#[test]
fn what_has_elapsed_expires_although_another_owner_goes() {
    let (timer, clock, expired) = timer_of_numbers();
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    timer
        .add(TimerEntry::after(Duration::ZERO, 1))
        .expect("there is room");
    keyed.add(2, Duration::ZERO, 0).expect("there is room");
    drop(keyed);
    assert_eq!(turn(&timer, &clock, Duration::ZERO), 1);
    assert_eq!(expired.try_iter().collect::<Vec<_>>(), [1]);
}

#[test]
fn what_is_being_cascaded_expires_although_another_owner_goes() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .build()
        .expect("it has no thread");
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    // Level 0 reaches 511 ms ahead. What is due at 1,000 ms is cascaded from 513 ms on, and what is
    // due meanwhile comes first.
    timer
        .add(TimerEntry::after(1_000 * MS, || ()))
        .expect("there is room");
    timer
        .add(TimerEntry::after(550 * MS, move || drop(keyed)))
        .expect("there is room");
    for (step, expired) in [(600, 1), (399, 0), (1, 1)] {
        clock.advance(step * MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), expired);
        timer.assert_invariants();
    }
}

#[test]
fn what_was_dropped_wakes_nobody_and_its_number_is_taken_again() {
    [0, 50].into_iter().for_each(what_was_dropped_wakes_nobody);
}

/// Beside so many others that stay: then its buckets may stay for a while as well.
fn what_was_dropped_wakes_nobody(beside: usize) {
    let (timer, clock, expired) = timer_of_numbers();
    let _stay: Vec<_> = (0..beside)
        .map(|_| KeyedTimer::new(&timer, |_: u32, _: u32| ()))
        .collect();
    for round in 0..300_u64 {
        let others: Vec<_> = (0..3)
            .map(|_| KeyedTimer::new(&timer, |_: u32, _: u32| ()))
            .collect();
        for keyed in &others {
            for key in 0..10 {
                keyed
                    .add(key, MS * (1 + 7 * key), key)
                    .expect("there is room");
            }
        }
        timer
            .add(TimerEntry::after(2 * MS, round))
            .expect("there is room");
        drop(others);
        assert_eq!(timer.len(), 1);
        assert_eq!(timer.next_expiration(), Some(clock.now() + 2 * MS));
        assert_eq!(turn(&timer, &clock, 2 * MS), 1);
    }
    assert_eq!(expired.try_iter().count(), 300);
    assert_eq!(timer.next_expiration(), None);
}

/// A task of one makes the next one, and drops its own.
#[test]
fn keyed_timers_come_and_go_inside_a_turn() {
    fn link(timer: &Timer<u64>, left: usize, ended: &Arc<AtomicUsize>) {
        let keep = Arc::new(std::sync::Mutex::new(None));
        let weak = timer.downgrade();
        let own = Arc::clone(&keep);
        let ended = Arc::clone(ended);
        let keyed = KeyedTimer::new(timer, move |_: u32, _: u32| {
            ended.fetch_add(1, Ordering::Relaxed);
            let timer = weak.upgrade().expect("the test has it");
            if left > 0 {
                link(&timer, left - 1, &ended);
            }
            drop(own.lock().map(|mut own| own.take()));
        });
        for key in 0..2 {
            keyed.add(key, MS * (1 + key), key).expect("there is room");
        }
        *keep.lock().expect("nobody panics") = Some(keyed);
    }
    let (timer, clock, _expired) = timer_of_numbers();
    let ended = Arc::new(AtomicUsize::new(0));
    link(&timer, 20, &ended);
    for _ in 0..21 {
        assert_eq!(turn(&timer, &clock, MS), 1);
    }
    assert_eq!((ended.load(Ordering::Relaxed), timer.len()), (21, 0));
    assert_eq!(
        timer.next_expiration(),
        None,
        "the second keys were dropped with the rest"
    );
}

#[test]
fn what_is_made_after_a_shutdown_is_closed() {
    let (timer, clock, _expired) = timer_of_numbers();
    drop(timer.shutdown());
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    let refused = keyed.add(1, MS, 1);
    assert!(matches!(refused, Err(AddError::Shutdown(_))));
    let refused = timer.closures().add(TimerEntry::after(MS, || ()));
    assert!(matches!(refused, Err(AddError::Shutdown(_))));
    assert_eq!((timer.len(), turn(&timer, &clock, HOUR)), (0, 0));
}

#[test]
fn one_reaper_drives_whatever_stands_on_a_timer_of_any_tasks() {
    let (timer, clock, expired) = timer_of_numbers();
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    keyed.add(1, 10 * MS, 1).expect("there is room");
    let purgatory = Purgatory::new(&timer);
    assert!(
        purgatory
            .try_complete_else_watch(Idle, 10 * MS, &[1_u32])
            .is_ok()
    );
    let mut sleep = pin!(timer.sleep(10 * MS));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(sleep.as_mut().poll(context).is_pending());
    timer
        .add(TimerEntry::after(10 * MS, 7_u64))
        .expect("there is room");

    turn(&timer, &clock, 10 * MS);
    assert_eq!(expired.try_iter().collect::<Vec<_>>(), [7]);
    assert!(keyed.is_empty() && purgatory.is_empty());
    assert_eq!(sleep.as_mut().poll(context), Poll::Ready(Ok(())));
    assert!(timer.is_empty());
}

/// The timer of closures is the same one as often as it is asked for, and ends with its host.
#[test]
fn the_timer_of_closures_shares_clock_queue_and_end() {
    let (timer, clock, _expired) = timer_of_numbers();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = || {
        let ran = Arc::clone(&ran);
        move || _ = ran.fetch_add(1, Ordering::Relaxed)
    };
    let weak = timer.closures().downgrade();
    for _ in 0..2 {
        timer
            .closures()
            .add(TimerEntry::after(MS, count()))
            .expect("there is room");
    }
    weak.upgrade()
        .expect("its host lives")
        .add(TimerEntry::after(HOUR, count()))
        .unwrap();
    assert_eq!((timer.len(), turn(&timer, &clock, MS)), (3, 2));
    assert_eq!(ran.load(Ordering::Relaxed), 2);
    let closures = timer.closures();
    drop(timer);
    assert_eq!(closures.len(), 1, "it keeps its host alive");
    assert_eq!(closures.shutdown().len(), 1);
    assert!(closures.add(TimerEntry::after(MS, count())).is_err());
    drop(closures);
    assert!(weak.upgrade().is_none());
}

/// Returned by a closure that has dropped the last clone, or while another thread does.
#[test]
fn a_key_that_is_kept_ends_with_its_keyed_timer() {
    let (timer, clock, _expired) = timer_of_numbers();
    let last = Arc::new(Mutex::new(None::<KeyedTimer<u32, Arc<()>>>));
    let own = Arc::clone(&last);
    let keyed = KeyedTimer::new(&timer, move |key, task| {
        drop(own.lock().unwrap().take());
        Some((key, TimerEntry::after(MS, task)))
    });
    let task = Arc::new(());
    keyed.add(1, MS, Arc::clone(&task)).unwrap();
    *last.lock().unwrap() = Some(keyed);
    clock.run_for(HOUR);
    assert_eq!((Arc::strong_count(&task), timer.len()), (1, 0));
    timer.assert_invariants();
}
