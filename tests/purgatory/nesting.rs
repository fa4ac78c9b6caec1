//! Checks that trigger other keys, or their own: no call goes on without end, and none needs a deep
//! stack.

use crate::What::{Checked, Completed};
use crate::{Fixture, HOUR, MS, Script};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer, TimerBuilder};

/// How many triggers may be nested.
const NESTED: u32 = 8;

/// Its check triggers the next one's key, if the chain is open.
struct Link {
    number: u32,
    open: Arc<AtomicBool>,
    /// How many were completed, and how many of them by the check of the one before.
    counts: Arc<[AtomicU32; 2]>,
    purgatory: Purgatory<u32, Link>,
}

impl DelayedOperation for Link {
    fn try_complete(&mut self) -> bool {
        let open = self.open.load(SeqCst);
        if open {
            let completed = self.purgatory.check_and_complete(&(self.number + 1));
            self.counts[1].fetch_add(completed as u32, SeqCst);
        }
        open
    }

    fn on_complete(&mut self) {
        self.counts[0].fetch_add(1, SeqCst);
    }
}

/// Watches a chain of so many links, and opens it.
fn chain(
    links: u32,
    options: impl FnOnce(TimerBuilder) -> TimerBuilder,
) -> (Timer, Purgatory<u32, Link>, Arc<[AtomicU32; 2]>) {
    let timer = options(Timer::builder().clock(ManualClock::new())).build().unwrap();
    let purgatory = Purgatory::new(&timer);
    let (open, counts) = (Arc::new(AtomicBool::new(false)), Arc::<[AtomicU32; 2]>::default());
    for number in 0..links {
        let (open, counts) = (Arc::clone(&open), Arc::clone(&counts));
        let link = Link { number, open, counts, purgatory: purgatory.clone() };
        let watch = purgatory.try_complete_else_watch(link, HOUR, &[number]).unwrap();
        assert!(!watch.is_completed());
    }
    open.store(true, SeqCst);
    (timer, purgatory, counts)
}

/// Seen to fail: the stack overflowed.
#[test]
fn a_long_chain_of_checks_needs_no_deep_stack() {
    const LINKS: u32 = 100_000;
    let (timer, purgatory, counts) = chain(LINKS, |builder| builder.max_pending(100_000));
    assert_eq!(purgatory.check_and_complete(&0), 1);
    assert_eq!(counts[0].load(SeqCst), NESTED, "the rest is left to the executor");
    let mut turns = 0;
    while timer.advance_clock(Duration::ZERO) > 0 {
        turns += 1;
    }
    assert_eq!((counts[0].load(SeqCst), turns), (LINKS, (LINKS - NESTED).div_ceil(NESTED + 1)));
    let stats = purgatory.stats();
    assert_eq!((stats.completed_by_trigger, stats.panicked), (u64::from(LINKS), 0));
    assert_eq!((purgatory.stats().watched, purgatory.len(), timer.len()), (0, 0, 0));
    purgatory.assert_invariants();
}

/// There is nobody to leave a check to; what it completes counts at every depth.
#[test]
fn after_a_shutdown_of_the_timer_a_chain_is_checked_to_its_end() {
    let (timer, purgatory, counts) = chain(10 * NESTED, |builder| builder);
    drop(timer.shutdown());
    assert_eq!(purgatory.check_and_complete(&0), 1);
    assert_eq!(
        [0, 1].map(|count: usize| counts[count].load(SeqCst)),
        [10 * NESTED, 10 * NESTED - 1]
    );
}

/// Calls `innermost` inside of so many nested checks.
fn nested(fixture: &Fixture, depth: u32, innermost: impl FnOnce() + Send + 'static) {
    let armed = Arc::new(AtomicBool::new(false));
    let mut innermost = Some(innermost);
    for level in 0..depth {
        let (purgatory, armed) = (fixture.purgatory.clone(), Arc::clone(&armed));
        let mut innermost = if level + 1 == depth { innermost.take() } else { None };
        let script = fixture.script(100 + level).when(move || {
            let armed = armed.load(SeqCst);
            match innermost.take_if(|_| armed) {
                Some(innermost) => innermost(),
                None if armed => _ = purgatory.check_and_complete(&(101 + level)),
                None => {}
            }
            armed
        });
        fixture.watch(script, &[100 + level]);
    }
    armed.store(true, SeqCst);
    assert_eq!(fixture.purgatory.check_and_complete(&100), 1);
}

/// A trigger that is nested too deep leaves one check of each operation, whatever its limit is, and
/// however often it is repeated. What a trigger in between has completed is gone by then.
#[test]
fn what_is_nested_too_deep_is_checked_once_by_the_executor() {
    for depth in [NESTED - 1, NESTED] {
        let fixture = Fixture::new();
        let open = Arc::new(AtomicBool::new(false));
        for id in [1, 2] {
            fixture.watch(fixture.script(id).when_set(&open), &[1]);
        }
        let (purgatory, is_open) = (fixture.purgatory.clone(), Arc::clone(&open));
        fixture.log.take();
        nested(&fixture, depth, move || {
            let is_left = depth == NESTED;
            assert_eq!(purgatory.check_and_complete_up_to(&1, 1), 0);
            is_open.store(true, SeqCst);
            assert_eq!(purgatory.check_and_complete_up_to(&1, 1), usize::from(!is_left));
        });
        let mut log = fixture.log.take();
        log.retain(|(what, id)| *what == Checked && *id < 100);
        let now: &[_] = if depth == NESTED { &[] } else { &[1, 2, 1] };
        assert!(log.iter().map(|(_, id)| id).eq(now), "{log:?}");
        fixture.advance(Duration::ZERO);
        assert_eq!(fixture.purgatory.len(), if depth == NESTED { 0 } else { 1 });
        assert_eq!(fixture.purgatory.stats().panicked, 0);
    }
}

/// A trigger that is nested too deep, and meets an operation that a thread is checking, makes that
/// thread check once more; an operation whose time is up is not checked for it.
#[test]
fn what_is_nested_too_deep_leaves_nothing_to_the_executor_that_another_does() {
    let fixture = Fixture::new();
    let (purgatory, timer, clock) =
        (fixture.purgatory.clone(), fixture.timer.clone(), fixture.clock.clone());
    fixture.watch_for(MS, fixture.script(1), &[1]);
    fixture.log.take();
    nested(&fixture, NESTED, move || {
        assert_eq!(purgatory.check_and_complete(&100), 0, "which is being checked");
        assert_eq!(purgatory.check_and_complete(&1), 0);
        clock.advance(MS);
        timer.advance_clock(Duration::ZERO);
    });
    fixture.advance(Duration::ZERO);
    assert_eq!(fixture.purgatory.stats().expired, 1);
    fixture.assert_empty();
}

/// More checks than any of these tests should see: a check panics then, and so does not hang it.
const TOO_MANY: u32 = 1000;

/// Watches an operation whose condition never holds, and whose check triggers these keys.
fn triggers(fixture: &Fixture, id: u32, keys: &[u32], checks: &Arc<AtomicU32>) {
    let (purgatory, checks) = (fixture.purgatory.clone(), Arc::clone(checks));
    let keys = keys.to_vec();
    let script = fixture.script(id).when(move || {
        assert!(checks.fetch_add(1, SeqCst) < TOO_MANY, "checked without an end");
        keys.iter().for_each(|key| _ = purgatory.check_and_complete(key));
        false
    });
    fixture.watch(script, &[id]);
}

/// Seen to fail: it was checked until that panicked.
#[test]
fn after_a_shutdown_of_the_timer_what_triggers_its_own_key_is_not_checked_for_ever() {
    let rings: [&[(u32, &[u32])]; 3] =
        [&[(1, &[1])], &[(1, &[2]), (2, &[1])], &[(1, &[2, 1]), (2, &[3, 2]), (3, &[1, 3])]];
    for ring in rings {
        let fixture = Fixture::new();
        let checks = Arc::new(AtomicU32::new(0));
        for (id, keys) in ring {
            triggers(&fixture, *id, keys, &checks);
        }
        drop(fixture.timer.shutdown());
        checks.store(0, SeqCst);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        let made = checks.load(SeqCst);
        assert!(made >= 2 * ring.len() as u32 && made < 30, "{made} checks");
        assert_eq!((fixture.purgatory.len(), fixture.purgatory.stats().panicked), (ring.len(), 0));
        assert_eq!(fixture.purgatory.shutdown().len(), ring.len());
    }
}

/// What other threads ask for is not forgotten all the same.
#[test]
fn after_a_shutdown_of_the_timer_a_call_sees_to_all_other_threads() {
    let fixture = Fixture::new();
    let (purgatory, mut checks) = (fixture.purgatory.clone(), 0);
    let script: Script = fixture.script(1).when(move || {
        checks += 1;
        let trigger = || purgatory.check_and_complete(&1);
        if checks > 2 && checks < 100 {
            assert_eq!(
                (trigger(), thread::scope(|scope| scope.spawn(trigger).join().unwrap())),
                (0, 0)
            );
        }
        checks == 100
    });
    fixture.watch(script, &[1]);
    drop(fixture.timer.shutdown());
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    let log = fixture.log.take();
    assert_eq!(log.iter().filter(|(what, _)| *what == Checked).count(), 98);
    assert!(log.contains(&(Completed, 1)));
    fixture.assert_empty();
}
