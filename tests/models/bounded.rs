//! The bounded scheduler: runs all schedules with at most so many preemptions, one after another.

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::cell::Cell;
use std::rc::Rc;

/// What a run of the scheduler has seen.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// The schedules that took as many preemptions as the bound allows.
    pub(crate) at_the_bound: usize,
    /// The bound has kept a thread from going on: there are more schedules.
    pub(crate) is_bound: bool,
    /// It was stopped before it had run all schedules within the bound.
    pub(crate) is_cut: bool,
}

/// Searches the tree of all choices depth-first. What is expected is free, and anything else counts
/// as a preemption:
/// - A thread that can go on is expected to.
/// - After one that yields, the next in turn is expected. It does not go on itself before another
///   one has: it would find what it found before.
/// - After one that waits or has ended, all others are expected alike.
/// - A random bit is expected to be set.
pub(crate) struct Bounded {
    bound: usize,
    /// So many schedules are run at most.
    most: usize,
    run: usize,
    /// The choices of this schedule: the one taken, and how many there are.
    path: Vec<(usize, usize)>,
    depth: usize,
    preemptions: usize,
    seen: Rc<Cell<Seen>>,
}

impl Bounded {
    pub(crate) fn new(bound: usize, most: usize, seen: &Rc<Cell<Seen>>) -> Self {
        let seen = Rc::clone(seen);
        Bounded { bound, most, run: 0, path: Vec::new(), depth: 0, preemptions: 0, seen }
    }

    fn note(&self, note: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.get();
        note(&mut seen);
        self.seen.set(seen);
    }

    /// Makes a choice, all but the first of which count as preemptions unless they are free.
    fn choose(&mut self, choices: usize, are_free: bool) -> usize {
        if choices == 1 {
            return 0;
        }
        if !are_free && self.preemptions == self.bound {
            self.note(|seen| seen.is_bound = true);
            return 0;
        }
        if self.depth == self.path.len() {
            self.path.push((0, choices));
        }
        let (taken, known) = self.path[self.depth];
        assert_eq!(choices, known, "the model differs from run to run");
        self.depth += 1;
        self.preemptions += usize::from(!are_free && taken > 0);
        taken
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.run > 0 {
            if self.preemptions == self.bound {
                self.note(|seen| seen.at_the_bound += 1);
            }
            let is_last = |(taken, choices): &(usize, usize)| taken + 1 == *choices;
            while self.path.last().is_some_and(is_last) {
                self.path.pop();
            }
            self.path.last_mut()?.0 += 1;
        }
        if self.run == self.most {
            self.note(|seen| seen.is_cut = true);
            return None;
        }
        self.run += 1;
        (self.depth, self.preemptions) = (0, 0);
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let own = current.and_then(|own| runnable.iter().position(|task| task.id() == own));
        let next = current.map_or(0, |own| runnable.partition_point(|task| task.id() <= own));
        let (first, choices) = match own {
            Some(own) if !is_yielding => (own, runnable.len()),
            Some(_) if runnable.len() > 1 => (next, runnable.len() - 1),
            _ => (next, runnable.len()),
        };
        let choice = self.choose(choices, own.is_none());
        Some(runnable[(first + choice) % runnable.len()].id())
    }

    fn next_u64(&mut self) -> u64 {
        1 - self.choose(2, false) as u64
    }
}
