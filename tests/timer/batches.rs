//! Executors that take all tasks that expired together in one call.

use crate::MS;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tickwheel::{Batch, Executor, ManualClock, Timer, TimerEntry};

/// Gets a batch and a place for what it has taken.
type Takes = fn(&mut Batch<'_, u32>, &Sender<u32>);

struct InBatches {
    takes: Takes,
    taken: Sender<u32>,
}

impl Executor<u32> for InBatches {
    fn execute(&self, task: u32) -> Result<(), u32> {
        panic!("{task} comes alone")
    }

    fn execute_batch(&self, batch: &mut Batch<'_, u32>) {
        (self.takes)(batch, &self.taken);
    }
}

/// Expires tasks 0 to 4 together. Returns those that the executor took, those that were refused,
/// and the number of panics.
fn expire_five(takes: Takes) -> (Vec<u32>, Vec<u32>, u64) {
    let ((taken, all_taken), (refused, all_refused)) = (channel(), channel());
    let clock = ManualClock::new();
    let builder = Timer::builder().shards(1).clock(clock.clone());
    let builder = builder.executor(InBatches { takes, taken });
    let builder = builder.on_refused(move |id| refused.send(id).expect("the test goes on"));
    let timer = builder.build().expect("in range");
    for id in 0..5 {
        timer.add(TimerEntry::after(MS, id)).expect("there is room");
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 5);
    assert!(timer.is_empty());
    let taken = all_taken.try_iter().collect();
    (taken, all_refused.try_iter().collect(), timer.stats().panicked)
}

fn take_two(batch: &mut Batch<'_, u32>, taken: &Sender<u32>) {
    batch.by_ref().take(2).for_each(|id| taken.send(id).expect("the test goes on"));
}

#[test]
fn what_an_executor_leaves_lying_is_refused() {
    assert_eq!(expire_five(take_two), (vec![0, 1], vec![2, 3, 4], 0));
}

#[test]
fn what_an_executor_refuses_comes_before_what_it_leaves_lying() {
    let takes: Takes = |batch, taken| {
        take_two(batch, taken);
        let ids: Vec<u32> = batch.by_ref().take(2).collect();
        ids.into_iter().rev().for_each(|id| batch.refuse(id));
    };
    assert_eq!(expire_five(takes), (vec![0, 1], vec![3, 2, 4], 0));
}

#[test]
fn after_a_panic_an_executor_gets_the_rest() {
    let takes: Takes = |batch, taken| {
        take_two(batch, taken);
        assert!(batch.len() == 0, "three or one are left");
    };
    assert_eq!(expire_five(takes), (vec![0, 1, 2, 3, 4], vec![], 2));
}

/// Otherwise the turn would never end.
#[test]
fn an_executor_that_panics_and_takes_nothing_is_not_asked_again() {
    assert_eq!(expire_five(|_, _| panic!("it takes nothing")), (vec![], vec![0, 1, 2, 3, 4], 1));
}
