//! `check_and_complete_up_to`: one item, many waiters. An operation here takes its item in
//! `try_complete`.

use crate::What::Checked;
use crate::{Fixture, HOUR, Script};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

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

    /// An operation that waits for an item.
    pub(crate) fn worker(&self, fixture: &Fixture, id: u32) -> Script {
        let items = self.clone();
        fixture.script(id).when(move || items.take(id))
    }

    /// Which items were taken by whom since this was asked last.
    pub(crate) fn taken(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut *self.taken.lock().unwrap())
    }
}

/// So many that wait on key 1, and on a key of their own.
pub(crate) fn waiting(fixture: &Fixture, items: &Items, ids: impl Iterator<Item = u32>) {
    ids.for_each(|id| drop(fixture.watch(items.worker(fixture, id), &[1, 1000 + id])));
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

#[test]
fn a_limit_of_0_checks_nothing_and_the_largest_all() {
    let (fixture, items) = (Fixture::new(), Items::default());
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, usize::MAX), 0, "nobody is there");
    waiting(&fixture, &items, 0..50);
    items.put(0..20);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 0), 0);
    assert_eq!(fixture.log.take(), []);
    assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, usize::MAX), 20);
    assert_eq!(fixture.log.of(Checked), (0..50).collect::<Vec<_>>());
    assert_eq!(items.taken(), (0..20).map(|id| (id, id)).collect::<Vec<_>>());
    assert_eq!(fixture.counts(), (60, 30, 30));
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

/// Only some take an item at first: so a call stops in the midst, and then others leave and come.
#[test]
fn a_call_begins_behind_where_the_last_one_stopped_whoever_leaves_and_comes() {
    for stop in [0, 1, 15, 16, 17, 33, 34, 50, 59] {
        for (first, last) in
            [(0, 0), (0, 17), (stop, stop + 1), (0, stop), (stop, 60), (17, 34), (0, 60)]
        {
            let (fixture, items) = (Fixture::new(), Items::default());
            let all = Arc::new(AtomicBool::new(false));
            let handles: Vec<_> = (0..60)
                .map(|id| {
                    let (items, all) = (items.clone(), Arc::clone(&all));
                    let may = move || (id == stop || all.load(SeqCst)) && items.take(id);
                    fixture.watch(fixture.script(id).when(may), &[1])
                })
                .collect();
            items.put([0]);
            assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 1), 1);
            for handle in &handles[first as usize..last as usize] {
                drop(handle.cancel());
            }
            waiting(&fixture, &items, 60..90);
            fixture.purgatory.assert_invariants();
            all.store(true, SeqCst);
            items.put([1, 2, 3]);
            let left = |id: &u32| (*id < first || *id >= last) && *id != stop;
            let behind = (stop + 1..90).chain(0..stop).filter(left).take(3);
            let next: Vec<_> = behind.zip([1, 2, 3]).map(|(id, item)| (item, id)).collect();
            items.taken();
            assert_eq!(fixture.purgatory.check_and_complete_up_to(&1, 3), 3);
            assert_eq!(items.taken(), next, "{first}..{last} left, behind {stop}");
        }
    }
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
