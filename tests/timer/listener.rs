//! When the listener of a timer without a thread is woken: whatever adds what comes earlier.

use crate::calls;
use crate::idle::Idle;
use crate::wakes::Wakes;
use crate::{HOUR, MS};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::periodic::{Periodic, Run, Series};
use tickwheel::purgatory::Purgatory;
use tickwheel::{Listener, ManualClock, Timer, WeakTimer};

/// Not so far that the timer has to be advanced earlier, to move it to a finer wheel.
const FAR: Duration = Duration::from_millis(150);

/// A timer on a manual clock, and a loop that would drive it.
struct Looped {
    timer: Timer,
    clock: ManualClock,
    listener: Listener,
    wakes: Arc<Wakes>,
}

impl Looped {
    fn new() -> Self {
        let clock = ManualClock::new();
        let wakes = Arc::default();
        let timer = Timer::builder().clock(clock.clone()).build().unwrap();
        let listener = timer.listener();
        Looped {
            timer,
            clock,
            listener,
            wakes,
        }
    }

    /// Returns how often the loop was woken since this was asked last.
    fn woken(&self) -> usize {
        self.wakes.take()
    }

    /// Asks when to advance the timer next, as the loop does.
    fn next(&self) -> Option<Instant> {
        self.listener
            .next_expiration(&Waker::from(Arc::clone(&self.wakes)))
    }

    /// Asks, and is told of a timer that is far away.
    fn ask(&self) {
        let next = self.next();
        assert!(
            next.is_none_or(|next| next > self.clock.now() + 10 * MS),
            "{next:?}"
        );
        self.woken();
    }

    fn add(&self, delay: Duration) {
        assert!(self.timer.after(delay, || ()).is_ok());
    }
}

/// Who is owed a wake-up waits for more than another one is told meanwhile.
#[test]
fn the_loop_is_woken_though_another_has_asked_while_a_moved_entry_is_held() {
    let looped = Looped::new();
    let keyed = KeyedTimer::new(&looped.timer, |(), ()| ());
    keyed.add((), FAR, ()).unwrap();
    looped.ask();
    let mut entry = keyed.find(&()).unwrap();
    entry.reschedule(2 * MS);
    thread::scope(|scope| {
        let other = || looped.timer.listener().next_expiration(Waker::noop());
        scope.spawn(other).join().unwrap();
        scope.spawn(|| looped.add(3 * MS)).join().unwrap();
    });
    assert!(looped.woken() > 0, "while the entry is held");
    drop(entry);
}

#[test]
fn the_loop_is_woken_for_what_comes_before_what_was_told() {
    let looped = Looped::new();
    looped.add(FAR);
    assert_eq!(looped.woken(), 0, "nobody has asked");
    looped.ask();
    looped.add(FAR);
    looped.add(2 * FAR);
    assert_eq!(looped.woken(), 0, "not earlier");
    looped.add(5 * MS);
    assert_eq!(looped.woken(), 1);
    looped.add(5 * MS);
    looped.add(6 * MS);
    assert_eq!(looped.woken(), 0, "not earlier than what it was woken for");
    looped.add(4 * MS);
    assert_eq!(looped.woken(), 1, "earlier still");
    assert_eq!(looped.next(), Some(looped.clock.now() + 4 * MS));
    assert_eq!(looped.woken(), 0);
}

#[test]
fn who_was_told_of_nothing_is_told_of_the_first_timer_also_of_one_that_is_due() {
    let looped = Looped::new();
    assert_eq!(looped.next(), None);
    looped.add(FAR);
    assert_eq!(looped.woken(), 1);
    looped.ask();
    looped.add(Duration::ZERO);
    assert_eq!(looped.woken(), 1);
    assert_eq!(looped.timer.advance_clock(Duration::ZERO), 1);
    looped.ask();
    looped.add(Duration::MAX);
    assert_eq!(looped.woken(), 0, "never is not earlier");
}

#[test]
fn a_timer_that_is_moved_up_wakes_it_and_one_that_is_extended_or_cancelled_does_not() {
    let looped = Looped::new();
    let timeout = looped.timer.after(FAR, || ()).unwrap();
    looped.ask();
    assert!(timeout.reschedule(2 * FAR) && timeout.touch(3 * FAR));
    assert_eq!(looped.woken(), 0);
    assert!(timeout.reschedule(MS));
    assert_eq!(looped.woken(), 1);
    assert!(timeout.cancel().is_cancelled());
    assert_eq!(looped.woken(), 0);
    assert_eq!(looped.next(), None, "what was cancelled counts no more");
    looped.add(2 * MS);
    assert_eq!(looped.woken(), 1);
}

#[test]
fn a_clock_that_is_moved_and_a_shutdown_wake_it() {
    let looped = Looped::new();
    looped.add(FAR);
    looped.ask();
    looped.clock.advance(FAR);
    assert_eq!(looped.woken(), 1, "no wait of the loop knows that clock");
    looped.timer.shutdown();
    assert!(looped.woken() > 0);
    assert_eq!(
        (looped.next(), looped.woken()),
        (None, 1),
        "at once, from then on"
    );
    let Looped {
        timer,
        listener,
        wakes,
        ..
    } = Looped::new();
    assert_eq!(
        listener.next_expiration(&Waker::from(Arc::clone(&wakes))),
        None
    );
    drop(timer);
    assert!(wakes.take() > 0, "the last clone");
    assert_eq!(Arc::strong_count(&wakes), 1, "the waker was dropped");
}

#[test]
fn each_listener_is_woken_by_its_last_waker_until_it_is_dropped() {
    let looped = Looped::new();
    let other = Looped::new();
    let former = Arc::<Wakes>::default();
    let listener = looped.timer.listener();
    assert_eq!(
        listener.next_expiration(&Waker::from(Arc::clone(&former))),
        None
    );
    assert_eq!(
        listener.next_expiration(&Waker::from(Arc::clone(&other.wakes))),
        None
    );
    assert_eq!(Arc::strong_count(&former), 1);
    looped.ask();
    looped.add(FAR);
    assert_eq!((looped.woken(), other.woken(), former.take()), (1, 1, 0));
    drop(listener);
    looped.add(MS);
    assert_eq!((looped.woken(), other.woken()), (1, 0));
    assert_eq!(Arc::strong_count(&other.wakes), 1);
}

/// The entry keeps back its own wake-up, but no other one.
#[test]
fn what_is_added_while_a_moved_entry_is_held_wakes_it() {
    let looped = Looped::new();
    let keyed = KeyedTimer::new(&looped.timer, |_: u8, ()| ());
    keyed.add(1, FAR, ()).unwrap();
    looped.ask();
    let mut held = keyed.find(&1).unwrap();
    held.reschedule(MS);
    assert_eq!(looped.woken(), 0);
    looped.add(2 * MS);
    assert_eq!(
        looped.woken(),
        1,
        "later than the held one, and earlier than what was told"
    );
    drop(held);
    assert_eq!(looped.woken(), 1);
}

#[test]
fn a_panic_of_the_waker_is_contained_and_counted() {
    let timer = Timer::builder().build().unwrap();
    let listener = timer.listener();
    let waker = calls::waker(|| panic!("which is what the test is about"));
    assert_eq!(listener.next_expiration(&waker), None);
    assert!(timer.after(MS, || ()).is_ok());
    assert_eq!(timer.stats().panicked, 1);
    assert_eq!(timer.advance_clock(HOUR), 1);
}

#[test]
fn it_is_woken_whatever_the_executor_and_on_a_timer_with_a_reaper_as_well() {
    let builder = Timer::builder()
        .clock(ManualClock::new())
        .executor(|_: u32| ());
    let timer = builder.start().unwrap();
    let listener = timer.listener();
    let wakes = Arc::<Wakes>::default();
    assert_eq!(
        listener.next_expiration(&Waker::from(Arc::clone(&wakes))),
        None
    );
    assert!(timer.after(FAR, 1_u32).is_ok());
    assert!(wakes.take() > 0);
}

#[test]
fn what_is_built_on_the_timer_wakes_it_too() {
    let looped = Looped::new();
    let timer = &looped.timer;
    let keyed = KeyedTimer::new(timer, |_: u32, ()| ());
    looped.ask();
    assert!(keyed.add(1, FAR, ()).is_ok());
    assert_eq!(looped.woken(), 1, "a key");
    looped.ask();
    assert!(keyed.reschedule(&1, MS));
    assert_eq!(looped.woken(), 1, "a key that is moved up");
    keyed.cancel(&1);
    looped.ask();
    match keyed.entry(2) {
        Entry::Vacant(entry) => _ = entry.add(MS, ()).unwrap(),
        Entry::Occupied(_) => panic!("it is vacant"),
    }
    assert_eq!(looped.woken(), 1, "an entry of a key");
    keyed.cancel(&2);
    looped.ask();
    let purgatory = Purgatory::new(timer);
    let _pending = purgatory
        .try_complete_else_watch(Idle, MS, &[1_u32])
        .unwrap();
    assert_eq!(looped.woken(), 1, "an operation");
    purgatory.cancel_for_key(&1);
    looped.ask();
    let series = Periodic::every(MS).start(timer, |_| ()).unwrap();
    assert_eq!(looped.woken(), 1, "a series");
    series.cancel();
}

/// What a waker can reach that calls back.
#[derive(Default)]
struct Reached {
    series: Mutex<Option<Series>>,
    calls: AtomicUsize,
}

impl Reached {
    fn call_back(&self, timer: &WeakTimer) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(timer) = timer.upgrade() else { return };
        timer.advance_clock(Duration::ZERO);
        let _ = timer.next_expiration();
        let _ = timer.stats();
        let _ = timer.snapshot();
        assert!(
            timer
                .after(10 * FAR, || ())
                .is_ok_and(|timeout| timeout.cancel().is_cancelled())
        );
        let series = self.series.lock().unwrap().clone();
        assert!(series.is_none_or(|series| series.runs() < 100 && !series.is_cancelled()));
    }
}

/// A lock that is held hangs this test.
#[test]
fn no_lock_is_held_while_it_is_woken() {
    let reached = Arc::new(Reached::default());
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let own = Arc::downgrade(&reached);
    let weak = timer.downgrade();
    let back = move || {
        own.upgrade()
            .iter()
            .for_each(|reached| reached.call_back(&weak))
    };
    let waker = calls::waker(back);
    let listener = Arc::new(timer.listener());
    let ask = || {
        let _ = listener.next_expiration(&waker);
        reached.calls.swap(0, Ordering::Relaxed)
    };
    ask();
    let timeout = timer.after(2 * FAR, || ()).unwrap();
    assert_eq!(ask(), 1);
    assert!(timeout.reschedule(FAR));
    assert_eq!(ask(), 1);
    // Each run asks: then its own next run comes earlier than what was told.
    let asks = Arc::clone(&listener);
    let again = waker.clone();
    let asks = move |_: &Run<'_>| _ = asks.next_expiration(&again);
    let series = Periodic::every(MS).start(&timer, asks).unwrap();
    *reached.series.lock().unwrap() = Some(series.clone());
    assert_eq!(ask(), 1);
    for _ in 0..10 {
        clock.advance(MS); // The waker advances the timer: runs are added in it.
        ask();
    }
    assert_eq!(series.runs(), 10);
    timer.shutdown();
}
