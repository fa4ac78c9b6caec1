//! Operations whose code panics, or whose keys' code does: it stays there.

use crate::What::{self, Cancelled, Checked, Completed, Dropped, Expired};
use crate::reentrancy::hand;
use crate::{Fixture, HOUR, MS, Script};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tickwheel::purgatory::{Pending, Purgatory, WatchError};

/// Panics at this check, the first one being 1.
fn panics_at(script: Script, number: u32) -> Script {
    let mut checks = 0;
    script.when(move || {
        checks += 1;
        assert!(checks != number, "in check {number}");
        false
    })
}

/// Returns the calls to operation 5; the others were left in peace.
fn of_5(log: Vec<(What, u32)>) -> Vec<What> {
    log.into_iter()
        .filter(|(_, id)| *id == 5)
        .map(|(what, _)| what)
        .collect()
}

#[test]
fn a_panic_in_one_of_the_first_two_checks_ends_the_operation() {
    for check in [1, 2] {
        let fixture = Fixture::new();
        let script = panics_at(fixture.script(5), check);
        let life = script.life();
        let watch = fixture
            .purgatory
            .try_complete_else_watch(script, MS, &[1, 2, 1])
            .unwrap();
        assert!(
            watch.pending().is_none(),
            "there is nothing to hold any more"
        );
        let mut expected = vec![Checked; check as usize];
        expected.push(Dropped);
        assert_eq!(of_5(fixture.log.take()), expected);
        assert_eq!(life.strong_count(), 0);
        let stats = fixture.purgatory.stats();
        assert_eq!(
            (stats.panicked, stats.completed_at_once, stats.cancelled),
            (1, 0, 0)
        );
        fixture.assert_empty();
        assert_eq!(fixture.advance(HOUR), []);
    }
}

#[test]
fn a_panic_in_a_trigger_ends_the_operation_and_the_next_ones_are_checked() {
    let fixture = Fixture::new();
    let mut lives = Vec::new();
    let mut handles = Vec::new();
    for id in 1..100 {
        let script = if id % 5 == 0 {
            panics_at(fixture.script(id), 3)
        } else {
            fixture.script(id)
        };
        lives.push((id, script.life()));
        handles.push(fixture.watch(script, &[1, 100 + id]));
    }
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
    let log = fixture.log.take();
    let of = |what| {
        log.iter()
            .filter(move |(called, _)| *called == what)
            .map(|(_, id)| *id)
    };
    assert!(
        of(Checked).eq(1..100) && of(Completed).count() == 0,
        "{log:?}"
    );
    assert_eq!(fixture.counts(), (160, 80, 80));
    assert!(
        lives
            .iter()
            .all(|(id, life)| life.strong_count() == usize::from(id % 5 > 0))
    );
    assert_eq!(fixture.purgatory.stats().panicked, 19);
    assert_eq!(fixture.purgatory.check_and_complete(&105), 0);
    assert_eq!(fixture.log.take(), []);
    let forced = handles
        .iter()
        .filter(|pending| pending.force_complete())
        .count();
    assert_eq!(forced, 80);
    fixture.assert_empty();
}

#[test]
fn what_is_requested_of_an_operation_whose_check_panics_has_no_effect() {
    let force = |pending: &Pending<u32, Script>| _ = pending.force_complete();
    let cancel = |pending: &Pending<u32, Script>| _ = pending.cancel();
    for request in [force, cancel as fn(&_)] {
        let fixture = Fixture::new();
        let handle = Arc::new(OnceLock::new());
        let own = Arc::clone(&handle);
        let script = fixture.script(5).when(move || {
            own.get().map(request);
            assert!(own.get().is_none(), "contained");
            false
        });
        handle
            .set(fixture.watch(script, &[1]))
            .expect("it is set once");
        fixture.log.take();
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert_eq!(of_5(fixture.log.take()), [Checked, Dropped]);
        let stats = fixture.purgatory.stats();
        assert_eq!(
            (stats.panicked, stats.completed_by_force, stats.cancelled),
            (1, 0, 0)
        );
        fixture.assert_empty();
    }
}

/// Each piece of code panics in turn; before and behind the operation others wait on the key.
#[test]
fn a_panic_where_an_operation_ends_is_contained_and_counted() {
    type Ends = fn(&Fixture, &Pending<u32, Script>);
    type Panics = fn(Script, fn()) -> Script;
    let bomb = || panic!("contained");
    let trigger: Ends = |fixture, _| assert_eq!(fixture.purgatory.check_and_complete(&1), 3);
    let expiry: Ends = |fixture, _| {
        fixture.clock.advance(HOUR);
        assert_eq!(fixture.timer.advance_clock(Duration::ZERO), 3);
    };
    let force: Ends = |_, pending| assert!(pending.force_complete());
    let dropped = Script::on_drop;
    let cases: [(Panics, Ends, &[What]); 8] = [
        (
            |script, bomb| script.on_complete(bomb),
            trigger,
            &[Checked, Completed, Dropped],
        ),
        (
            |script, bomb| script.on_complete(bomb),
            force,
            &[Completed, Dropped],
        ),
        (
            |script, bomb| script.on_complete(bomb),
            expiry,
            &[Completed, Dropped],
        ),
        (
            |script, bomb| script.on_expiration(bomb),
            expiry,
            &[Completed, Expired, Dropped],
        ),
        (dropped, trigger, &[Checked, Completed, Dropped]),
        (dropped, force, &[Completed, Dropped]),
        (dropped, expiry, &[Completed, Expired, Dropped]),
        (
            |script, bomb| script.on_complete(bomb).on_drop(bomb),
            force,
            &[Completed, Dropped],
        ),
    ];
    for (number, (panics, ends, calls)) in cases.into_iter().enumerate() {
        let fixture = Fixture::new();
        fixture.watch(fixture.script(1).at_check(3), &[1]);
        let script = panics(fixture.script(5).at_check(3), bomb);
        let life = script.life();
        let pending = fixture.watch(script, &[1, 2]);
        fixture.watch(fixture.script(9).at_check(3), &[1, 2]);
        fixture.log.take();
        ends(&fixture, &pending);
        assert_eq!(of_5(fixture.log.take()), calls, "case {number}");
        assert_eq!(
            (life.strong_count(), pending.is_pending()),
            (0, false),
            "case {number}"
        );
        // The last case panics where it is completed, and again where it is dropped.
        let panicked = if number == 7 { 2 } else { 1 };
        assert_eq!(
            fixture.purgatory.stats().panicked,
            panicked,
            "case {number}"
        );
        assert_eq!(
            fixture.timer.stats().panicked,
            0,
            "the purgatory contains it"
        );
        fixture.purgatory.check_and_complete(&1);
        fixture.assert_empty();
    }
}

/// Most of their chunks are given back by the time that they are called. Seen to fail: 18,050 were
/// counted.
#[test]
fn each_of_many_panics_is_counted() {
    const MANY: u32 = 20_000;
    let fixture = Fixture::new();
    for id in 0..MANY {
        fixture.watch(
            fixture
                .script(id)
                .at_check(3)
                .on_complete(|| panic!("contained")),
            &[1],
        );
    }
    assert_eq!(fixture.purgatory.check_and_complete(&1), MANY as usize);
    assert_eq!(fixture.purgatory.stats().panicked, u64::from(MANY));
    fixture.assert_empty();
}

/// The code of an operation may run after its purgatory has gone, when its shards serve another.
#[test]
fn a_panic_counts_for_no_other_purgatory() {
    let fixture = Fixture::new();
    let (own, last) = hand::<Purgatory<u32, Script>>();
    let (other, given) = hand::<Pending<u32, Script>>();
    let timer = fixture.timer.clone();
    let log = fixture.log.clone();
    let (next, kept) = hand::<Purgatory<u32, Script>>();
    let script = fixture.script(1).on_complete(move || {
        assert!(
            other
                .lock()
                .unwrap()
                .take()
                .is_some_and(|other| other.force_complete())
        );
        drop(own.lock().unwrap().take());
        let purgatory = Purgatory::new(&timer);
        let _ = purgatory
            .try_complete_else_watch(Script::new(3, &log), HOUR, &[1])
            .unwrap();
        *kept.lock().unwrap() = Some(purgatory);
    });
    let pending = fixture.watch(script, &[1]);
    let bomb = fixture.script(2).on_complete(|| panic!("contained"));
    *given.lock().unwrap() = Some(fixture.watch(bomb, &[1]));
    let Fixture { purgatory, log, .. } = fixture;
    *last.lock().unwrap() = Some(purgatory);
    assert!(pending.force_complete());
    assert_eq!(log.of(Completed), [1, 2]);
    let next = next.lock().unwrap().take().unwrap();
    assert_eq!((next.stats().panicked, next.len()), (0, 1));
}

#[test]
fn a_panic_in_on_cancellation_is_contained_and_counted() {
    let fixture = Fixture::new();
    let script = fixture.script(5).on_cancellation(|| panic!("contained"));
    fixture.watch_cancelling(script, &[1]);
    fixture.watch(fixture.script(6).at_check(3), &[1]);
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert_eq!(of_5(fixture.log.take()), [Checked, Cancelled, Dropped]);
    let stats = fixture.purgatory.stats();
    assert_eq!(
        (stats.panicked, stats.cancelled, stats.completed_by_trigger),
        (1, 1, 1)
    );
    fixture.assert_empty();
}

/// The first check panics, and so does the drop that follows.
#[test]
fn a_panic_in_the_drop_of_an_operation_whose_check_panicked_is_contained() {
    for check in [1, 2, 3] {
        let fixture = Fixture::new();
        let script = panics_at(fixture.script(5), check).on_drop(|| panic!("contained"));
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let _ = fixture
                .purgatory
                .try_complete_else_watch(script, HOUR, &[1])
                .unwrap();
            fixture.purgatory.check_and_complete(&1);
        }));
        assert!(ended.is_ok(), "it came out of check {check}");
        assert_eq!(fixture.purgatory.stats().panicked, 2);
        fixture.assert_empty();
    }
}

#[test]
fn a_panic_in_the_drop_of_what_waits_when_the_last_purgatory_goes_is_contained() {
    let fixture = Fixture::new();
    for id in 0..10 {
        fixture.watch(
            fixture.script(id).on_drop(|| panic!("contained")),
            &[id % 3],
        );
    }
    let Fixture {
        purgatory,
        timer,
        log,
        ..
    } = fixture;
    log.take();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(purgatory))).is_ok());
    assert_eq!(log.of(Dropped).len(), 10);
    assert_eq!(timer.len(), 0);
}

/// The callbacks that wait for their turn behind a panic are called all the same, and later ones.
#[test]
fn a_panic_in_a_callback_does_not_lose_what_it_caused() {
    let fixture = Fixture::new();
    let purgatory = fixture.purgatory.clone();
    let script = fixture.script(1).at_check(3).on_complete(move || {
        assert_eq!(purgatory.check_and_complete(&2), 2);
        panic!("contained");
    });
    fixture.watch(script, &[1]);
    let bomb = || panic!("contained");
    fixture.watch(fixture.script(2).at_check(3).on_complete(bomb), &[2]);
    fixture.watch(fixture.script(3).at_check(3), &[2]);
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert_eq!(fixture.log.of(Completed), [1, 2, 3]);
    assert_eq!(fixture.purgatory.stats().panicked, 2);
    // The thread can do it again.
    fixture.watch(fixture.script(4).at_check(3), &[1]);
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    assert_eq!(fixture.log.of(Completed), [4]);
    fixture.assert_empty();
}

/// The operation is the caller's again, so its panics are as well.
#[test]
fn a_panic_does_not_shut_anything_down() {
    let fixture = Fixture::with(|builder| builder.max_pending(1));
    for _ in 0..10 {
        fixture.watch(panics_at(fixture.script(5), 3), &[1]);
        fixture.purgatory.check_and_complete(&1);
        fixture.assert_empty();
    }
    fixture.watch(fixture.script(6), &[1]);
    let full = fixture
        .purgatory
        .try_complete_else_watch(fixture.script(7), HOUR, &[1]);
    assert!(
        matches!(full, Err(WatchError::Full(_))),
        "each gave its place back, once"
    );
}

thread_local! {
    /// From which number on a key cannot be cloned.
    static NO_CLONE: Cell<u32> = const { Cell::new(50) };
}

/// A key that can't be hashed, or not cloned.
#[derive(PartialEq, Eq)]
struct Key(u32);

impl Clone for Key {
    fn clone(&self) -> Self {
        assert!(self.0 < NO_CLONE.get(), "no clone");
        Key(self.0)
    }
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        assert!(self.0 < 100, "no hash");
        self.0.hash(hasher);
    }
}

#[test]
fn a_key_that_panics_leaves_nothing_behind_under_the_keys_before() {
    let fixture = Fixture::new();
    let purgatory: Purgatory<Key, Script> = Purgatory::new(&fixture.timer);
    for keys in [
        [Key(1), Key(2), Key(100)],
        [Key(50), Key(1), Key(2)],
        [Key(1), Key(50), Key(2)],
    ] {
        let script = fixture.script(5);
        let life = script.life();
        let watch = || {
            purgatory
                .try_complete_else_watch(script, MS, &keys)
                .map(drop)
        };
        assert!(
            catch_unwind(AssertUnwindSafe(watch)).is_err(),
            "it is the caller's panic"
        );
        assert_eq!(life.strong_count(), 0);
        assert_eq!(
            (
                purgatory.stats().watched,
                purgatory.len(),
                fixture.timer.len()
            ),
            (0, 0, 0)
        );
        purgatory.assert_invariants();
    }
}

/// A key whose `Clone` panics: the purgatory's drop must neither panic nor leave anything behind.
#[test]
fn its_drop_clones_no_keys() {
    let fixture = Fixture::new();
    let purgatory = Purgatory::new(&fixture.timer);
    let watch = |key| purgatory.try_complete_else_watch(fixture.script(key), HOUR, &[Key(key)]);
    let handles: Vec<_> = (0..10)
        .map(|key| watch(key).unwrap().pending().unwrap())
        .collect();
    NO_CLONE.set(0);
    let end = catch_unwind(AssertUnwindSafe(|| drop(purgatory)));
    let dropped = fixture.log.of(What::Dropped).len();
    assert_eq!((end.is_ok(), dropped, fixture.timer.len()), (true, 10, 0));
    assert!(handles.iter().all(|handle| !handle.is_pending()));
}
