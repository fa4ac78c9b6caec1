//! A callback or a check may use the purgatory as it likes, and a check its own operation too.

use crate::What::{Cancelled, Checked, Completed, Dropped, Expired};
use crate::holders::elsewhere;
use crate::{Fixture, HOUR, MS, Script};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::purgatory::{Pending, Purgatory, WatchError};

/// What a script's hook takes out and uses.
pub(crate) type Hand<T> = Arc<Mutex<Option<T>>>;

pub(crate) fn hand<T>() -> (Hand<T>, Hand<T>) {
    let hand = Hand::default();
    (Arc::clone(&hand), hand)
}

#[test]
fn on_complete_may_shut_the_purgatory_down() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let log = fixture.log.clone();
    let script = fixture.script(1).at_check(3).on_complete(move || {
        assert_eq!(purgatory.shutdown().len(), 99);
        let late = purgatory.try_complete_else_watch(Script::new(200, &log), HOUR, &[1]);
        assert!(matches!(late, Err(WatchError::Shutdown(_))));
    });
    fixture.watch(script, &[1]);
    (2..101).for_each(|id| _ = fixture.watch(fixture.script(id).at_check(3), &[1, id]));
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert_eq!(fixture.log.of(Completed), [1]);
    let stats = fixture.purgatory.stats();
    assert_eq!(
        (stats.cancelled, stats.completed_by_trigger, stats.panicked),
        (99, 1, 0)
    );
    fixture.assert_empty();
}

#[test]
fn an_operations_code_may_drop_the_last_purgatory() {
    for forced in [true, false] {
        let fixture = Fixture::new();
        let (own, last) = hand::<Purgatory<u32, Script>>();
        let script = fixture
            .script(1)
            .on_complete(move || drop(own.lock().unwrap().take()));
        let pending = fixture.watch_for(MS, script, &[1]);
        let other = fixture.watch(fixture.script(2), &[1, 2]);
        fixture.log.take();
        let Fixture {
            purgatory,
            timer,
            clock,
            log,
        } = fixture;
        *last.lock().unwrap() = Some(purgatory);
        if forced {
            assert!(pending.force_complete());
            assert_eq!(log.take(), [(Completed, 1), (Dropped, 1), (Dropped, 2)]);
        } else {
            clock.advance(MS);
            assert_eq!(timer.advance_clock(Duration::ZERO), 1);
            let expected = [(Completed, 1), (Expired, 1), (Dropped, 1), (Dropped, 2)];
            assert_eq!(log.take(), expected);
        }
        assert!(!other.is_pending() && !other.force_complete());
        assert_eq!(timer.len(), 0);
        timer.assert_invariants();
    }
}

#[test]
fn on_complete_may_advance_the_timer() {
    let fixture = Fixture::new();
    let timer = fixture.timer.clone();
    let clock = fixture.clock.clone();
    let log = fixture.log.clone();
    fixture.watch_for(MS, fixture.script(2), &[2]);
    let script = fixture.script(1).on_complete(move || {
        clock.advance(MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert_eq!(log.of(Expired), [], "not inside");
    });
    assert!(fixture.watch(script, &[1]).force_complete());
    let ends = [(Dropped, 1), (Completed, 2), (Expired, 2), (Dropped, 2)];
    assert_eq!(fixture.log.take(), ends);
    assert_eq!(fixture.purgatory.stats().panicked, 0);
    fixture.assert_empty();
}

/// A check that returns false has changed nothing, so what it triggers is dropped. What it triggers
/// is done if it returns true, and is in nobody's answer.
#[test]
fn what_a_check_triggers_is_done_if_it_returns_true() {
    for holds in [false, true] {
        let fixture = Fixture::new();
        let purgatory = fixture.purgatory.clone();
        let mut checks = 0;
        let script = fixture.script(1).when(move || {
            checks += 1;
            if checks == 3 {
                for key in [1, 2, 3, 1] {
                    assert_eq!(purgatory.check_and_complete(&key), 0);
                }
            }
            holds && checks == 3
        });
        fixture.watch(script, &[1, 2]);
        fixture.watch(fixture.script(2).at_check(3), &[3]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&2), usize::from(holds));
        let log = fixture.log.take();
        if holds {
            let of_2 = [(Checked, 2), (Completed, 2), (Dropped, 2)];
            assert_eq!(
                log,
                [&[(Checked, 1), (Completed, 1), (Dropped, 1)], &of_2[..]].concat()
            );
        } else {
            assert_eq!(log, [(Checked, 1)]);
        }
        let stats = fixture.purgatory.stats();
        assert_eq!(
            (stats.completed_by_trigger, stats.panicked),
            (2 * u64::from(holds), 0)
        );
    }
}

/// An end is no trigger: its callback comes, whatever the check that caused it returns.
#[test]
fn what_a_check_forces_is_completed_even_if_it_returns_false() {
    for panics in [false, true] {
        let fixture = Fixture::new();
        let other = fixture.watch(fixture.script(2), &[2]);
        let purgatory = fixture.purgatory.clone();
        let mut checks = 0;
        let script = fixture.script(1).when(move || {
            checks += 1;
            if checks == 3 {
                assert_eq!(purgatory.check_and_complete(&2), 0);
                assert!(other.force_complete());
                assert!(!panics, "contained");
            }
            false
        });
        fixture.watch(script, &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert_eq!(fixture.log.of(Completed), [2]);
        assert_eq!(fixture.purgatory.len(), usize::from(!panics));
    }
}

#[test]
fn an_operation_that_triggers_itself_while_it_is_added_expires_all_the_same() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let mut checks = 0;
    let script = fixture.script(1).when(move || {
        checks += 1;
        assert!(checks != 2 || purgatory.check_and_complete(&1) == 0);
        false
    });
    fixture.watch_for(MS, script, &[1]);
    assert_eq!(fixture.log.of(Checked), [1, 1]);
    assert_eq!(
        fixture.advance(MS),
        [(Completed, 1), (Expired, 1), (Dropped, 1)]
    );
    fixture.assert_empty();
}

#[test]
fn a_limit_does_not_count_what_is_being_checked() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let mut checks = 0;
    let first = fixture.script(1).when(move || {
        checks += 1;
        if checks == 3 {
            elsewhere(|| {
                assert_eq!(
                    purgatory.check_and_complete_up_to(&1, 1),
                    1,
                    "the other one"
                )
            });
        }
        false
    });
    fixture.watch(first, &[1]);
    fixture.watch(fixture.script(2).at_check(3), &[1]);
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(
        fixture.log.of(Checked),
        [1, 2, 1],
        "and the first is checked again"
    );
    assert_eq!(fixture.purgatory.stats().completed_by_trigger, 1);
}

/// A cancel is too late for one whose condition holds. One that is forced counts as forced, and not
/// as one that the trigger completed: that goes on to the next.
#[test]
fn a_check_may_cancel_or_force_its_own_operation() {
    for (holds, forces) in [(false, false), (false, true), (true, false), (true, true)] {
        let fixture = Fixture::new();
        let (own, handle) = hand::<Pending<u32, Script>>();
        let script = fixture.script(1).when(move || {
            let Some(own) = own.lock().unwrap().take() else {
                return false;
            };
            let won = if forces {
                own.force_complete()
            } else {
                matches!(own.cancel(), tickwheel::purgatory::Cancel::Deferred)
            };
            assert!(won && !own.is_pending());
            assert!(
                !own.force_complete() && own.cancel().into_operation().is_none(),
                "one wins"
            );
            holds
        });
        *handle.lock().unwrap() = Some(fixture.watch(script, &[1, 2]));
        let next = fixture.watch(fixture.script(2).at_check(3), &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
        assert_eq!(next.is_pending(), holds && !forces);
        let end = if holds || forces {
            Completed
        } else {
            Cancelled
        };
        assert_eq!(
            fixture.log.take()[..3],
            [(Checked, 1), (end, 1), (Dropped, 1)]
        );
        let stats = fixture.purgatory.stats();
        assert_eq!(stats.completed_by_force, u64::from(forces));
        assert_eq!(
            (stats.cancelled, stats.panicked),
            (u64::from(!forces && !holds), 0)
        );
        next.force_complete();
        fixture.assert_empty();
    }
}

#[test]
fn a_check_may_cancel_for_its_key_and_shut_down() {
    for (shutdown, holds) in [(true, true), (true, false), (false, true), (false, false)] {
        let fixture = Fixture::new();
        let purgatory = fixture.purgatory.clone();
        let mut checks = 0;
        let script = fixture.script(1).when(move || {
            checks += 1;
            let others = match (checks, shutdown) {
                (3, true) => purgatory.shutdown(),
                (3, false) => purgatory.cancel_for_key(&1),
                _ => return false,
            };
            others.iter().map(|other| other.id).eq([2]) == holds
        });
        let pending = fixture.watch(script, &[1]);
        fixture.watch(fixture.script(2), &[1]);
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), usize::from(holds));
        let end = if holds { Completed } else { Cancelled };
        assert_eq!(
            fixture.log.take(),
            [(Checked, 1), (Dropped, 2), (end, 1), (Dropped, 1)],
            "the other one was returned"
        );
        assert!(!pending.is_pending());
        assert_eq!(
            fixture.purgatory.stats().cancelled,
            if holds { 1 } else { 2 }
        );
        fixture.assert_empty();
    }
}

/// While it is being added it can't be cancelled by its key; after a shutdown of the purgatory or
/// its timer it goes back, unless that check completes it.
#[test]
fn the_second_check_may_cancel_for_its_key_and_shut_down() {
    type Act = fn(&Purgatory<u32, Script>, &Timer);
    let by_key: Act = |purgatory, _| assert!(purgatory.cancel_for_key(&1).is_empty());
    let by_purgatory: Act = |purgatory, _| assert!(purgatory.shutdown().is_empty());
    let by_timer: Act = |_, timer| assert!(timer.shutdown().is_empty());
    for (act, shutdown) in [(by_key, false), (by_purgatory, true), (by_timer, true)] {
        for holds in [true, false] {
            let fixture = Fixture::new();
            let purgatory = fixture.purgatory.clone();
            let timer = fixture.timer.clone();
            let mut checks = 0;
            let script = fixture.script(1).when(move || {
                checks += 1;
                if checks == 2 {
                    act(&purgatory, &timer);
                }
                checks == 2 && holds
            });
            let watch = fixture
                .purgatory
                .try_complete_else_watch(script, HOUR, &[1]);
            match watch {
                Err(WatchError::Shutdown(_)) => assert!(shutdown && !holds),
                Ok(watch) => assert!(watch.is_completed() == holds && (holds || !shutdown)),
                Err(error) => panic!("{error}"),
            }
            let called = if holds { vec![1] } else { vec![] };
            assert_eq!(fixture.log.of(Completed), called);
            assert_eq!(fixture.purgatory.len(), usize::from(!shutdown && !holds));
            assert_eq!(fixture.purgatory.stats().panicked, 0);
        }
    }
}
