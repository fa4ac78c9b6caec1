//! `check_and_complete_up_to`: one item, many waiters. An operation here takes its item in
//! `try_complete`, and is completed then: `true` is final.

use crate::What::{Checked, Completed, Expired};
use crate::reentrancy::hand;
use crate::{Fixture, HOUR, MS, Script};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tickwheel::purgatory::Pending;

/// A queue of items, and what was taken out by whom.
#[derive(Clone, Default)]
pub(crate) struct Items {
    pub(crate) queue: Arc<Mutex<VecDeque<u32>>>,
    taken: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Items {
    pub(crate) fn put(&self, items: impl IntoIterator<Item = u32>) {
        self.queue.lock().unwrap().extend(items);
    }

    pub(crate) fn take(&self, id: u32) -> bool {
        let item = self.queue.lock().unwrap().pop_front();
        self.taken.lock().unwrap().extend(item.map(|item| (item, id)));
        item.is_some()
    }

    /// Returns an operation that waits for an item.
    pub(crate) fn worker(&self, fixture: &Fixture, id: u32) -> Script {
        let items = self.clone();
        fixture.script(id).when(move || items.take(id))
    }

    /// Returns which items were taken by which operation since the last call.
    pub(crate) fn taken(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut *self.taken.lock().unwrap())
    }
}

/// Adds operations that wait on key 1, and on a key of their own.
pub(crate) fn waiting(fixture: &Fixture, items: &Items, ids: impl Iterator<Item = u32>) {
    ids.for_each(|id| _ = fixture.watch(items.worker(fixture, id), &[1, 1000 + id]));
    fixture.log.take();
}

#[test]
fn an_item_costs_one_check_and_goes_to_who_has_waited_longest() {
    let (fixture, items) = (Fixture::new(), Items::default());
    waiting(&fixture, &items, 0..100);
    for item in 0..250 {
        items.put([item]);
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
        assert_eq!(items.taken(), [(item, item)]);
        assert_eq!(fixture.log.of(Checked), [item], "and nobody else was asked");
        waiting(&fixture, &items, 100 + item..101 + item); // The worker comes back for more.
        assert_eq!(fixture.counts(), (200, 100, 100));
    }
}

#[test]
fn several_items_cost_as_many_checks() {
    let (fixture, items) = (Fixture::new(), Items::default());
    waiting(&fixture, &items, 0..200);
    let mut next = 0;
    for several in [2, 3, 31, 32, 33, 64, 30] {
        items.put(0..several);
        assert_eq!(
            fixture.purgatory.check_and_complete_up_to(&1, several as usize),
            several as usize
        );
        assert_eq!(fixture.log.of(Checked), (next..next + several).collect::<Vec<_>>());
        next += several;
    }
    items.put(0..9);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 9), 200 - next as usize);
    assert_eq!(items.queue.lock().unwrap().len(), 9 - (200 - next as usize), "nobody is left");
    fixture.assert_empty();
}

/// In each round it is the turn of each. `ready` is who can take an item.
#[test]
fn those_that_can_not_take_an_item_are_passed_over_but_not_for_ever() {
    let (fixture, items) = (Fixture::new(), Items::default());
    let ready = Arc::new(AtomicBool::new(false));
    for id in 0..60 {
        let (items, ready) = (items.clone(), Arc::clone(&ready));
        let pausing = fixture.script(id).when(move || ready.load(SeqCst) && items.take(id));
        fixture.watch(pausing, &[1]);
    }
    let mut checks = Vec::new();
    for item in 0..124 {
        waiting(&fixture, &items, 100 + item..101 + item);
        items.put([item]);
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
        assert_eq!(items.taken(), [(item, 100 + item)]);
        checks.push(fixture.log.of(Checked).len());
    }
    let all: Vec<_> = (0..124).filter(|call| checks[*call] == 61).collect();
    assert_eq!(all, [0, 61, 122], "as many calls lie between as there are operations");
    assert_eq!(checks.iter().sum::<usize>(), 121 + 3 * 61, "the others cost one check");
    ready.store(true, SeqCst);
    items.put([1]);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
    assert_eq!(items.taken(), [(1, 0)], "behind the last there is nobody");
}

#[test]
fn a_call_that_finds_nothing_asks_each_once_and_leaves_their_turn_as_it_was() {
    for passed in [0, 1, 16, 17, 18, 50, 69] {
        let (fixture, items) = (Fixture::new(), Items::default());
        waiting(&fixture, &items, 0..70);
        items.put(0..passed);
        let limit = passed as usize;
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, limit), limit);
        fixture.log.take();
        waiting(&fixture, &items, 70..80);
        for _ in 0..3 {
            assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 0);
            assert_eq!(fixture.log.of(Checked), (passed..80).collect::<Vec<_>>());
        }
    }
}

/// Adds so many operations that wait on key 1, of which only `only` takes an item; or any of them,
/// if that is `ANY`.
fn choosy(
    fixture: &Fixture,
    items: &Items,
    only: &Arc<AtomicU32>,
    several: u32,
) -> Vec<Pending<u32, Script>> {
    let watch = |id| {
        let (items, only) = (items.clone(), Arc::clone(only));
        let may = move || [id, ANY].contains(&only.load(SeqCst)) && items.take(id);
        fixture.watch(fixture.script(id).when(may), &[1])
    };
    (0..several).map(watch).collect()
}

const ANY: u32 = u32::MAX;

/// First one takes an item in the midst, then others leave and come.
#[test]
fn a_call_begins_behind_where_the_last_one_stopped_whoever_leaves_and_comes() {
    for stop in [0, 1, 15, 16, 17, 33, 34, 50, 59] {
        let leaving = [(0, 0), (0, 17), (stop, stop + 1), (0, stop), (stop, 60), (17, 34), (0, 60)];
        for (first, last) in leaving {
            let (fixture, items) = (Fixture::new(), Items::default());
            let only = Arc::new(AtomicU32::new(stop));
            let handles = choosy(&fixture, &items, &only, 60);
            items.put([0]);
            assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
            handles[first as usize..last as usize].iter().for_each(|it| drop(it.cancel()));
            waiting(&fixture, &items, 60..90);
            fixture.purgatory.assert_invariants();
            only.store(ANY, SeqCst);
            items.taken();
            let left = |id: &u32| (*id < first || *id >= last) && *id != stop;
            let order: Vec<_> = (stop + 1..90).chain(0..stop).filter(left).collect();
            items.put(0..90);
            assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 90), order.len());
            let who: Vec<u32> = items.taken().into_iter().map(|(_, id)| id).collect();
            assert_eq!(who, order, "{first}..{last} left, behind {stop}");
        }
    }
}

/// Nothing is left of the place where a call stopped before, when it is that block's turn again.
#[test]
fn whose_turn_it_is_does_not_follow_from_where_earlier_calls_stopped() {
    let (fixture, items) = (Fixture::new(), Items::default());
    let only = Arc::new(AtomicU32::new(0));
    let handles = choosy(&fixture, &items, &only, 51);
    for stop in [20, 5] {
        only.store(stop, SeqCst);
        items.put([stop]);
        assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
    }
    handles[..17].iter().for_each(|it| drop(it.cancel()));
    only.store(ANY, SeqCst);
    items.put([1]);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
    assert_eq!(items.taken().last(), Some(&(1, 17)));
}

/// Each takes an item, and puts one for the next.
#[test]
fn a_call_in_on_complete_serves_the_next() {
    let (fixture, items) = (Fixture::new(), Items::default());
    for id in 0..100 {
        let (again, purgatory) = (items.clone(), fixture.purgatory.clone());
        let worker = items.worker(&fixture, id).on_complete(move || {
            again.put([id + 1]);
            let completed = purgatory.check_and_complete_up_to(&1, 1);
            assert_eq!(completed, usize::from(id < 99), "its own call completes the next");
        });
        fixture.watch(worker, &[1]);
    }
    fixture.log.take();
    items.put([0]);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1, "the others did the others");
    assert_eq!(fixture.log.of(Checked), (0..100).collect::<Vec<_>>());
    assert_eq!(items.taken(), (0..100).map(|id| (id, id)).collect::<Vec<_>>());
    assert_eq!(fixture.purgatory.stats().panicked, 0);
    fixture.assert_empty();
}

#[test]
fn who_comes_during_a_call_is_left_to_the_next() {
    let (fixture, items) = (Fixture::new(), Items::default());
    let (purgatory, log) = (fixture.purgatory.clone(), fixture.log.clone());
    let first = items.worker(&fixture, 0).on_complete(move || {
        for id in 100..120 {
            let watch = purgatory.try_complete_else_watch(Script::new(id, &log), HOUR, &[1]);
            assert!(watch.is_ok());
        }
        log.take();
    });
    fixture.watch(first, &[1]);
    waiting(&fixture, &items, 1..20);
    items.put(0..20);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 40), 20);
    assert_eq!(fixture.log.of(Checked), (1..20).collect::<Vec<_>>());
    assert_eq!(fixture.purgatory.watched_for(&1), 20);
}

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
