//! An operation that takes an item in its check is completed: `true` from `try_complete` is final.

use crate::What::{Checked, Completed, Expired};
use crate::items::{Items, waiting};
use crate::reentrancy::hand;
use crate::{Fixture, MS, Script};
use tickwheel::purgatory::Pending;

/// As if another thread were checking it: the request that is left to that is not one of the limit.
#[test]
fn what_is_being_checked_does_not_count() {
    let (fixture, items) = (Fixture::new(), Items::default());
    let (purgatory, again, mut checks) = (fixture.purgatory.clone(), items.clone(), 0);
    let first = fixture.script(1).when(move || {
        checks += 1;
        if checks == 3 {
            again.put([7]);
            assert_eq!(purgatory.check_and_complete_up_to(&1, 1), 1, "the other one takes it");
        }
        false
    });
    fixture.watch(first, &[1]);
    waiting(&fixture, &items, 2..3);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(items.taken(), [(7, 2)]);
    assert_eq!(fixture.log.of(Checked), [1, 2, 1], "and the first is checked again");
}

/// An operation that has an item is completed, and its call counts unless another call says that it
/// forced it.
#[test]
fn a_true_check_is_final() {
    for forces in [false, true] {
        let (fixture, items) = (Fixture::new(), Items::default());
        let (own, handle) = hand::<Pending<u32, Script>>();
        let taking = items.clone();
        let script = fixture.script(1).when(move || {
            if let Some(own) = own.lock().unwrap().take() {
                let forced = forces && own.force_complete();
                assert!(forced == forces && own.cancel().into_operation().is_none());
            }
            taking.take(1)
        });
        *handle.lock().unwrap() = Some(fixture.watch_for(MS, script, &[1]));
        waiting(&fixture, &items, 2..4);
        items.put([8, 9]);
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
        let mut taken = vec![(8, 1)];
        taken.extend(forces.then_some((9, 2)));
        let done: Vec<u32> = taken.iter().map(|(_, id)| *id).collect();
        assert_eq!((items.taken(), fixture.log.of(Completed)), (taken, done));
        assert_eq!(fixture.purgatory.stats().cancelled, 0);
        assert_eq!(fixture.advance(MS), [], "it does not expire as well");
    }
}

/// Its time is up during the check in which it takes an item.
#[test]
fn a_true_check_wins_over_an_expiry() {
    let (fixture, items) = (Fixture::new(), Items::default());
    let (clock, timer, taking) = (fixture.clock.clone(), fixture.timer.clone(), items.clone());
    let script = fixture.script(1).when(move || {
        let has_item = taking.take(1);
        if has_item {
            clock.advance(MS);
            timer.advance_clock(MS);
        }
        has_item
    });
    fixture.watch_for(MS, script, &[1]);
    items.put([8]);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
    let log = fixture.log.take();
    let of = |what| log.iter().filter(|(called, _)| *called == what).count();
    assert_eq!((of(Completed), of(Expired)), (1, 0));
    assert_eq!(fixture.purgatory.stats().expired, 0);
    fixture.assert_empty();
}
