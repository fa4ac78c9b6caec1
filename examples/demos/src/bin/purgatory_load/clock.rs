//! The clock, and how seldom it is looked at.
//!
//! A look costs as much as a good part of what is measured. So what a thread saw last is good for a
//! few more steps of its work, some microseconds, unless it is known to be too old.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tickwheel::{Batch, Executor, Task};

/// For how many steps a look is good: checks of a condition, ends, adds.
const STEPS: u32 = 32;

thread_local! {
    /// What this thread saw last, and for how many steps that is good yet.
    static SEEN: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Counts nanoseconds since its start.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Clock { start: Instant::now() }
    }

    /// Looks what time it is.
    pub(crate) fn look(self) -> u64 {
        let now = self.start.elapsed().as_nanos() as u64;
        SEEN.set((now, STEPS));
        now
    }

    /// Takes a step, and returns what was seen last. Looks if that was too long ago, or if it was
    /// before `time`: so the answer is before `time` only if that has not come yet.
    pub(crate) fn step(self, time: u64) -> u64 {
        let (seen, steps) = SEEN.get();
        if steps == 0 || seen < time {
            return self.look();
        }
        SEEN.set((seen, steps - 1));
        seen
    }

    pub(crate) fn instant(self, nanos: u64) -> Instant {
        self.start + Duration::from_nanos(nanos)
    }
}

/// The executor of the purgatory's timer: runs tasks in place, as the default one does, but looks
/// at the clock before each batch. What was seen in an earlier turn may be after the deadlines of
/// this one, and they would seem to be less late than they are.
impl Executor<Task> for Clock {
    fn execute(&self, task: Task) -> Result<(), Task> {
        self.look();
        task.run();
        Ok(())
    }

    fn execute_batch(&self, batch: &mut Batch<'_, Task>) {
        self.look();
        batch.for_each(Task::run);
    }
}
