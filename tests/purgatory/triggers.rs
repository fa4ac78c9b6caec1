//! What a trigger does: whom it visits, in which order.

use crate::What::{Checked, Completed};
use crate::{Fixture, HOUR, Script};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tickwheel::purgatory::{Pending, Purgatory};

#[test]
fn a_key_with_many_operations_keeps_its_order_when_every_third_leaves() {
    let fixture = Fixture::new();
    let turn = Arc::new(AtomicU32::new(u32::MAX));
    let mut rest: Vec<u32> = (0..500).collect();
    for id in rest.clone() {
        let turn = Arc::clone(&turn);
        fixture.watch(fixture.script(id).when(move || turn.load(SeqCst) == id % 3), &[1]);
    }
    fixture.log.take();
    for round in [2, 0, 1] {
        turn.store(round, SeqCst);
        let (out, stay): (Vec<u32>, Vec<u32>) = rest.iter().partition(|id| *id % 3 == round);
        assert_eq!(fixture.purgatory.check_and_complete(&1), out.len());
        let log = fixture.log.take();
        let of = |what| log.iter().filter(move |(it, _)| *it == what).map(|(_, id)| *id);
        assert!(of(Checked).eq(rest), "all, in order");
        assert!(of(Completed).eq(out));
        assert_eq!(fixture.purgatory.watched_for(&1), stay.len());
        assert_eq!(fixture.counts(), (stay.len(), stay.len(), stay.len()));
        rest = stay;
    }
    fixture.assert_empty();
}

/// Watches an operation whose trigger watches the next one, whose condition holds as well.
fn add_again(purgatory: &Purgatory<u32, Script>, log: &crate::Log, added: &Arc<AtomicU32>) {
    let (again, kept, count) = (purgatory.clone(), log.clone(), Arc::clone(added));
    let id = added.fetch_add(1, SeqCst);
    // So that a pass that does not end fails the test instead of hanging it.
    assert!(id < 10_000, "a pass without an end");
    let script = Script::new(id, log).at_check(3);
    let script = script.on_complete(move || add_again(&again, &kept, &count));
    assert!(purgatory.try_complete_else_watch(script, HOUR, &[1]).is_ok());
}

#[test]
fn what_is_watched_during_a_pass_is_left_to_the_next_pass() {
    for several in [1, 13, 14, 15, 27, 28, 29, 42, 43, 100] {
        let fixture = Fixture::new();
        let added = Arc::new(AtomicU32::new(0));
        (0..several).for_each(|_| add_again(&fixture.purgatory, &fixture.log, &added));
        for pass in 1..10 {
            assert_eq!(fixture.purgatory.check_and_complete(&1), several as usize);
            assert_eq!(added.load(SeqCst), (pass + 1) * several);
            assert_eq!(fixture.purgatory.watched_for(&1), several as usize);
        }
        assert_eq!(fixture.purgatory.shutdown().len(), several as usize);
        fixture.assert_empty();
    }
}

/// The same when those at the end of the key leave meanwhile, so that newcomers take their places.
#[test]
fn what_takes_the_place_of_others_during_a_pass_is_left_to_the_next_pass() {
    for (several, leaving) in [(20, 5), (43, 1), (50, 8), (60, 20), (100, 60)] {
        let fixture = Fixture::new();
        let last: Arc<Mutex<Vec<Pending<u32, Script>>>> = Arc::default();
        let (victims, purgatory) = (Arc::clone(&last), fixture.purgatory.clone());
        let log = fixture.log.clone();
        let first = fixture.script(0).at_check(3).on_complete(move || {
            for victim in victims.lock().unwrap().drain(..) {
                assert!(victim.cancel().into_operation().is_some());
            }
            for id in 1000..1000 + leaving {
                let newcomer = Script::new(id, &log).at_check(3);
                assert!(purgatory.try_complete_else_watch(newcomer, HOUR, &[1]).is_ok());
            }
        });
        fixture.watch(first, &[1]);
        for id in 1..several {
            let pending = fixture.watch(fixture.script(id), &[1]);
            if id >= several - leaving {
                last.lock().unwrap().push(pending);
            }
        }
        let pass = fixture.purgatory.check_and_complete(&1);
        assert_eq!((pass, fixture.log.of(Completed)), (1, vec![0]), "{leaving} of {several}");
        assert_eq!(fixture.purgatory.check_and_complete(&1), leaving as usize);
        assert_eq!(fixture.purgatory.shutdown().len(), (several - leaving - 1) as usize);
        fixture.assert_empty();
    }
}

#[test]
fn what_leaves_during_a_pass_is_not_checked_by_it() {
    let fixture = Fixture::new();
    let (victims, purgatory) = (Arc::<Mutex<Vec<_>>>::default(), fixture.purgatory.clone());
    let hands = Arc::clone(&victims);
    let first = fixture.script(0).at_check(3).on_complete(move || {
        let mut victims = hands.lock().unwrap();
        let odd = |it: &Pending<u32, Script>| it.cancel().into_operation().is_some();
        assert!(victims.drain(..).all(|it| odd(&it)));
        assert_eq!(purgatory.cancel_for_key(&2).len(), 20);
    });
    fixture.watch(first, &[1]);
    for id in 1..101 {
        let keys = if id % 5 == 0 { vec![1, 2] } else { vec![1] };
        let pending = fixture.watch(fixture.script(id), &keys);
        if id % 2 == 1 && id % 5 > 0 {
            victims.lock().unwrap().push(pending);
        }
    }
    fixture.log.take();
    assert_eq!(fixture.purgatory.check_and_complete(&1), 1);
    let rest: Vec<u32> = (0..101).filter(|id| *id == 0 || (id % 2 == 0 && id % 5 > 0)).collect();
    assert_eq!(fixture.log.of(Checked), rest);
    assert_eq!(fixture.counts().1, 40);
}

#[derive(Clone, Debug)]
struct Seven;

impl BuildHasher for Seven {
    type Hasher = Seven;

    fn build_hasher(&self) -> Seven {
        Seven
    }
}

impl Hasher for Seven {
    fn write(&mut self, _: &[u8]) {
        // All keys look alike.
    }

    fn finish(&self) -> u64 {
        7
    }
}

#[test]
fn a_key_is_found_in_any_form_that_it_can_be_borrowed_as() {
    let fixture = Fixture::new();
    let purgatory: Purgatory<String, Script> = Purgatory::new(&fixture.timer);
    let keys = ["orders-0".to_owned()];
    let watch = |script| purgatory.try_complete_else_watch(script, HOUR, &keys).map(drop);
    watch(fixture.script(1).at_check(3)).unwrap();
    watch(fixture.script(2)).unwrap();
    assert_eq!((purgatory.watched_for("orders-0"), purgatory.watched_for("orders-1")), (2, 0));
    assert_eq!(purgatory.check_and_complete("orders-0"), 1);
    assert_eq!(purgatory.cancel_for_key("orders-0").len(), 1);
}

#[test]
fn keys_with_the_same_hash_are_told_apart() {
    let fixture = Fixture::new();
    let purgatory: Purgatory<u32, Script, Seven> = Purgatory::with_hasher(&fixture.timer, Seven);
    // The keys vanish from the front, from the back, from the middle.
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 3, 1], [3, 0, 4, 1, 2]] {
        for id in 0..10 {
            let script = fixture.script(id).at_check(3);
            let keys = [id % 5, 100 + id];
            assert!(purgatory.try_complete_else_watch(script, HOUR, &keys).is_ok());
        }
        let mut left: BTreeSet<u32> = (0..5).collect();
        fixture.log.take();
        for key in order {
            assert_eq!(purgatory.clone().check_and_complete(&key), 2);
            assert_eq!(fixture.log.of(Completed), [key, key + 5]);
            left.remove(&key);
            for key in 0..5 {
                let watched = if left.contains(&key) { 2 } else { 0 };
                assert_eq!(purgatory.watched_for(&key), watched);
                assert_eq!(purgatory.watched_for(&(100 + key)), watched / 2);
            }
            purgatory.assert_invariants();
        }
        assert_eq!((purgatory.watched(), purgatory.delayed(), fixture.timer.len()), (0, 0, 0));
    }
}
