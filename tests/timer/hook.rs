//! When the hook of a timer without a thread is called: whatever adds what comes earlier.

use crate::idle::Idle;
use crate::{HOUR, MS};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::{Periodic, Run, Series};
use tickwheel::purgatory::Purgatory;
use tickwheel::{ManualClock, Timer, TimerEntry, WeakTimer};

/// Not so far that the timer has to be advanced earlier, to move it to a finer wheel.
const FAR: Duration = Duration::from_millis(150);

/// A timer on a manual clock, and how often its hook was called.
struct Hooked {
    timer: Timer,
    clock: ManualClock,
    calls: Arc<AtomicUsize>,
}

impl Hooked {
    fn new() -> Self {
        let (clock, calls) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let hook = move || _ = counted.fetch_add(1, Ordering::Relaxed);
        let timer = Timer::builder().clock(clock.clone()).on_earlier_expiration(hook);
        Hooked { timer: timer.build().unwrap(), clock, calls }
    }

    /// Returns how often the hook was called since this was asked last.
    fn calls(&self) -> usize {
        self.calls.swap(0, Ordering::Relaxed)
    }

    /// Asks, as the loop does, and is told of a timer that is far away.
    fn ask(&self) {
        let next = self.timer.next_expiration();
        assert!(next.is_none_or(|next| next > self.clock.now() + 10 * MS), "{next:?}");
        self.calls();
    }

    fn add(&self, delay: Duration) {
        assert!(self.timer.after(delay, || ()).is_ok());
    }
}

#[test]
fn the_hook_is_called_for_what_comes_before_what_was_told() {
    let hooked = Hooked::new();
    hooked.add(FAR);
    assert_eq!(hooked.calls(), 0, "nobody has asked");
    hooked.ask();
    hooked.add(FAR);
    hooked.add(2 * FAR);
    assert_eq!(hooked.calls(), 0, "not earlier");
    hooked.add(5 * MS);
    assert_eq!(hooked.calls(), 1);
    hooked.add(5 * MS);
    hooked.add(6 * MS);
    assert_eq!(hooked.calls(), 0, "not earlier than what it was called for");
    hooked.add(4 * MS);
    assert_eq!(hooked.calls(), 1, "earlier still");
    assert_eq!(hooked.timer.next_expiration(), Some(hooked.clock.now() + 4 * MS));
    assert_eq!(hooked.calls(), 0);
}

#[test]
fn who_was_told_of_nothing_is_told_of_the_first_timer_also_of_one_that_is_due() {
    let hooked = Hooked::new();
    assert_eq!(hooked.timer.next_expiration(), None);
    hooked.add(FAR);
    assert_eq!(hooked.calls(), 1);
    hooked.ask();
    hooked.add(Duration::ZERO);
    assert_eq!(hooked.calls(), 1);
    assert_eq!(hooked.timer.advance_clock(Duration::ZERO), 1);
    hooked.ask();
    hooked.add(Duration::MAX);
    assert_eq!(hooked.calls(), 0, "never is not earlier");
}

#[test]
fn a_timer_that_is_moved_up_calls_it_and_one_that_is_extended_or_cancelled_does_not() {
    let hooked = Hooked::new();
    let timeout = hooked.timer.after(FAR, || ()).unwrap();
    hooked.ask();
    assert!(timeout.reschedule(2 * FAR) && timeout.touch(3 * FAR));
    assert_eq!(hooked.calls(), 0);
    assert!(timeout.reschedule(MS));
    assert_eq!(hooked.calls(), 1);
    assert!(timeout.cancel().is_cancelled());
    assert_eq!(hooked.calls(), 0);
    assert_eq!(hooked.timer.next_expiration(), None, "what was cancelled counts no more");
    hooked.add(2 * MS);
    assert_eq!(hooked.calls(), 1);
}

#[test]
fn a_clock_that_is_moved_and_a_shutdown_call_it() {
    let hooked = Hooked::new();
    hooked.add(FAR);
    hooked.ask();
    hooked.clock.advance(FAR);
    assert_eq!(hooked.calls(), 1, "no wait of the loop knows that clock");
    hooked.timer.shutdown();
    assert_eq!(hooked.calls(), 1);
    let Hooked { timer, calls, .. } = Hooked::new();
    drop(timer);
    assert_eq!(calls.load(Ordering::Relaxed), 1, "the last clone");
    assert_eq!(Arc::strong_count(&calls), 1, "the hook was dropped");
}

/// The entry keeps back its own call of the hook, but no other one.
#[test]
fn what_is_added_while_a_moved_entry_is_held_calls_it() {
    let hooked = Hooked::new();
    let keyed = KeyedTimer::new(&hooked.timer, |_: u8, ()| ());
    keyed.schedule(1, TimerEntry::after(FAR, ())).unwrap();
    hooked.ask();
    let mut held = keyed.find_entry(&1).unwrap();
    held.reschedule(MS);
    assert_eq!(hooked.calls(), 0);
    hooked.add(2 * MS);
    assert_eq!(hooked.calls(), 1, "later than the held one, and earlier than what was told");
    drop(held);
    assert_eq!(hooked.calls(), 1);
}

#[test]
fn a_panic_of_the_hook_is_contained_and_counted() {
    let timer =
        Timer::builder().on_earlier_expiration(|| panic!("which is what the test is about"));
    let timer = timer.build().unwrap();
    assert_eq!(timer.next_expiration(), None);
    assert!(timer.after(MS, || ()).is_ok());
    assert_eq!(timer.stats().panicked, 1);
    assert_eq!(timer.advance_clock(HOUR), 1);
}

#[test]
fn it_is_called_whatever_the_executor_and_on_a_timer_with_a_reaper_as_well() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let hook = move || _ = counted.fetch_add(1, Ordering::Relaxed);
    let builder = Timer::builder().on_earlier_expiration(hook).executor(|_: u32| ());
    let timer = builder.clock(ManualClock::new()).start().unwrap();
    assert_eq!(timer.next_expiration(), None);
    calls.store(0, Ordering::Relaxed);
    assert!(timer.after(FAR, 1_u32).is_ok());
    assert!(calls.load(Ordering::Relaxed) > 0);
}

struct Store;

impl LeaseStore<u32> for Store {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        batch.into_iter().for_each(Renewal::renewed);
    }

    fn lost(&self, _: u32) {}
}

#[test]
fn what_is_built_on_the_timer_calls_it_too() {
    let hooked = Hooked::new();
    let timer = &hooked.timer;
    let keyed = KeyedTimer::new(timer, |_: u32, ()| ());
    hooked.ask();
    assert!(keyed.schedule(1, TimerEntry::after(FAR, ())).is_ok());
    assert_eq!(hooked.calls(), 1, "a key");
    hooked.ask();
    assert!(keyed.reschedule(&1, MS));
    assert_eq!(hooked.calls(), 1, "a key that is moved up");
    keyed.cancel(&1);
    hooked.ask();
    match keyed.entry(2) {
        Entry::Vacant(entry) => entry.schedule(TimerEntry::after(MS, ())).unwrap(),
        Entry::Occupied(_) => panic!("it is vacant"),
    }
    assert_eq!(hooked.calls(), 1, "an entry of a key");
    keyed.cancel(&2);
    hooked.ask();
    let purgatory = Purgatory::new(timer);
    let _pending = purgatory.try_complete_else_watch(Idle, MS, &[1_u32]).unwrap();
    assert_eq!(hooked.calls(), 1, "an operation");
    purgatory.cancel_for_key(&1);
    hooked.ask();
    let series = Periodic::every(MS).start(timer, |_| ()).unwrap();
    assert_eq!(hooked.calls(), 1, "a series");
    series.cancel();
    hooked.ask();
    let terms = LeaseTerms::new(3 * MS);
    let leases = Leases::new(timer, terms, Store);
    let _lease = leases.hold(1).unwrap();
    assert_eq!(hooked.calls(), 1, "a lease");
}

/// What a hook can reach that calls back.
#[derive(Default)]
struct Reached {
    timer: OnceLock<WeakTimer>,
    series: Mutex<Option<Series>>,
    leases: OnceLock<Leases<u32>>,
    calls: AtomicUsize,
}

impl Reached {
    fn call_back(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(timer) = self.timer.get().and_then(WeakTimer::upgrade) else { return };
        timer.advance_clock(Duration::ZERO);
        let (_, _, _) = (timer.next_expiration(), timer.stats(), timer.snapshot());
        assert!(timer.after(10 * FAR, || ()).is_ok_and(|timeout| timeout.cancel().is_cancelled()));
        let series = self.series.lock().unwrap().clone();
        assert!(series.is_none_or(|series| series.runs() < 100 && !series.is_cancelled()));
        assert!(self.leases.get().is_none_or(|leases| leases.len() < 100));
    }
}

/// A lock that is held hangs this test.
#[test]
fn no_lock_is_held_while_it_is_called() {
    let reached = Arc::new(Reached::default());
    let own = Arc::downgrade(&reached);
    let hook = move || own.upgrade().iter().for_each(|reached| reached.call_back());
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).on_earlier_expiration(hook).build().unwrap();
    assert!(reached.timer.set(timer.downgrade()).is_ok());
    let ask = || {
        let _ = timer.next_expiration();
        reached.calls.swap(0, Ordering::Relaxed)
    };
    ask();
    let timeout = timer.after(2 * FAR, || ()).unwrap();
    assert_eq!(ask(), 1);
    assert!(timeout.reschedule(FAR));
    assert_eq!(ask(), 1);
    let leases = Leases::new(&timer, LeaseTerms::new(4 * MS), Store);
    assert!(reached.leases.set(leases.clone()).is_ok());
    let _lease = leases.hold(1).unwrap();
    assert_eq!(ask(), 1);
    // Each run asks: then its own next run comes earlier than what was told.
    let asked = timer.downgrade();
    let asks = move |_: &Run<'_>| _ = asked.upgrade().map(|timer| timer.next_expiration());
    let series = Periodic::every(MS).start(&timer, asks).unwrap();
    *reached.series.lock().unwrap() = Some(series.clone());
    assert_eq!(ask(), 1);
    for _ in 0..10 {
        clock.advance(MS); // The hook advances the timer: runs and renewals are added in it.
        ask();
    }
    assert_eq!(series.runs(), 10);
    timer.shutdown();
}
