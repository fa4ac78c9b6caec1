//! Calls that are about all operations of a purgatory.

use crate::What::{Cancelled, Completed, Dropped};
use crate::holders::elsewhere;
use crate::{Fixture, HOUR};
use std::collections::BTreeMap;
use std::sync::mpsc;
use tickwheel::purgatory::Purgatory;

/// Returns a fixture with an operation 1 that calls `meanwhile` on another thread in its check of
/// this number, and stays false; and an operation 2 that waits on another key.
fn in_check(
    number: u32,
    meanwhile: impl Fn(&Purgatory<u32, crate::Script>) + Sync + Send + 'static,
) -> Fixture {
    let fixture = Fixture::new();
    fixture.watch(fixture.script(2), &[2]);
    let purgatory = fixture.purgatory.clone();
    let mut checks = 0;
    let script = fixture.script(1).when(move || {
        checks += 1;
        if checks == number {
            elsewhere(|| meanwhile(&purgatory));
        }
        false
    });
    fixture.watch(script, &[1]);
    fixture
}

#[test]
fn a_cancel_of_all_leaves_what_is_checked_to_its_holder_and_the_purgatory_open() {
    let (sender, returned) = mpsc::channel();
    let fixture = in_check(3, move |purgatory| {
        sender.send(purgatory.cancel_all()).unwrap();
    });
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(fixture.log.ends(), [(Cancelled, 1), (Dropped, 1)]);
    let ids: Vec<_> = returned.recv().unwrap().iter().map(|it| it.id).collect();
    assert_eq!(ids, [2]);
    assert_eq!(fixture.purgatory.stats().cancelled, 2);
    fixture.assert_empty();
    let next = fixture.watch(fixture.script(3), &[1]);
    assert!(next.is_pending());
}

#[test]
fn a_force_of_all_also_completes_what_is_checked() {
    let (sender, completed) = mpsc::channel();
    let fixture = in_check(3, move |purgatory| {
        sender.send(purgatory.force_complete_all()).unwrap();
    });
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    assert_eq!(completed.recv(), Ok(2));
    let ends = [(Completed, 2), (Dropped, 2), (Completed, 1), (Dropped, 1)];
    assert_eq!(fixture.log.ends(), ends);
    assert_eq!(fixture.purgatory.stats().completed_by_force, 2);
    fixture.assert_empty();
}

#[test]
fn what_is_being_added_is_neither_cancelled_nor_forced_with_all() {
    let fixture = in_check(2, |purgatory| {
        assert_eq!(purgatory.cancel_all().len(), 1);
        assert_eq!(purgatory.force_complete_all(), 0);
    });
    assert_eq!(fixture.counts(), (1, 1, 1));
    assert_eq!(fixture.purgatory.force_complete_all(), 1);
    fixture.assert_empty();
}

/// An answer may make its client ask again.
#[test]
fn a_force_of_all_ends_although_each_operation_adds_another_one() {
    let fixture = Fixture::new();
    for id in 0..1000 {
        let purgatory = fixture.purgatory.clone();
        let next = fixture.script(1000 + id);
        let script = fixture.script(id).on_complete(move || {
            let watch = purgatory.try_complete_else_watch(next, HOUR, &[id % 3 + 1]);
            assert!(!watch.unwrap().is_completed());
        });
        fixture.watch(script, &[id % 3]);
    }
    let completed = fixture.purgatory.force_complete_all();
    assert!((1000..=2000).contains(&completed), "{completed}");
    assert_eq!(fixture.purgatory.len(), 2000 - completed);
    assert_eq!(fixture.purgatory.cancel_all().len(), 2000 - completed);
    fixture.assert_empty();
}

#[test]
fn keys_are_listed_in_steps_of_which_none_is_long_and_none_is_empty() {
    let fixture = Fixture::new();
    let mut expected = BTreeMap::new();
    for id in 0..3000 {
        // One key has many operations; the others have few.
        let keys = [id, 5000];
        let keys = &keys[..1 + (id % 2) as usize];
        fixture.watch(fixture.script(id), keys);
        if id >= 2000 {
            keys.iter()
                .for_each(|key| *expected.entry(*key).or_insert(0) += 1);
        }
    }
    // Leaves gaps.
    for id in 0..2000 {
        assert_eq!(fixture.purgatory.cancel_for_key(&id).len(), 1);
    }
    let mut listed = BTreeMap::new();
    let mut position = Some(0);
    while let Some(from) = position {
        let mut visited = 0;
        position = fixture.purgatory.visit_keys_from(from, |key, count| {
            visited += 1;
            *listed.entry(*key).or_insert(0) += count;
            // It would hang under the lock.
            assert!(fixture.purgatory.watched_for(key) >= count);
        });
        assert!(visited <= 32);
        assert_eq!(visited > 0, position.is_some());
    }
    assert_eq!(listed, expected);
    for position in [u64::MAX, 1 << 40, u64::from(u32::MAX)] {
        fixture.purgatory.visit_keys_from(position, |_, _| ());
    }
}
