//! Sources whose entries are found by keys: the common part of keyed timers and purgatories. They
//! hand over closures, and end with their last user.

use crate::engine::pool::Shards;
use crate::engine::reaper::Engine;
use crate::engine::shard::{Extra, Shard, ShardState, Spare};
use crate::engine::source::{Source, Turn};
use crate::sync::parallelism;
use crate::table::shards_for;
use crate::timer::Timer;
use crate::timer::entry::Task;
use crate::timer::tasks::Tasks;
use crate::wheel::timing_wheel::flush::Flush;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};

/// Few, because there are many shards, and a deadline is seldom near.
const WHEEL_SIZE: usize = 64;

/// The timer of closures, to which a source hands over what expires.
pub(crate) struct Closures {
    /// Weak: a closure that is under way when the timer ends must not keep the executor alive.
    tasks: Weak<Tasks<Task>>,
    spare: Spare<Task>,
}

impl Closures {
    /// Flushes a batch of a shard, as [`Source::flush`] does. `flush` runs under the lock, and adds
    /// what is to be handed over.
    pub(crate) fn flush<T, X>(
        &self,
        shard: &Shard<T, X>,
        turn: &mut Turn<'_>,
        flush: impl FnOnce(&mut ShardState<T, X>, Flush, &mut Vec<Task>),
    ) -> Option<usize> {
        shard.flush_and_hand_over(turn.start, &self.spare, flush, |closures| {
            let Some(tasks) = self.tasks.upgrade() else {
                // The timer has gone. The closures own their source, which must not own them.
                closures.clear();
                return 0;
            };
            tasks.hand_over(turn, closures)
        })
    }
}

/// A registered source, which keeps its timer alive. When dropped, the source is removed and
/// emptied.
pub(crate) struct Registered<S> {
    timer: Timer,
    number: u64,
    pub(crate) source: Arc<S>,
}

// User code is called with no lock held.
impl<S> UnwindSafe for Registered<S> {}
impl<S> RefUnwindSafe for Registered<S> {}

impl<S: Source + 'static> Registered<S> {
    /// Registers the source that `make` creates from its shards, so many for `each` hardware
    /// thread, and the place where it hands over.
    pub(crate) fn new<T: Send + 'static, X: Extra + Send + 'static>(
        timer: Timer,
        each: usize,
        make: impl FnOnce(Shards<T, X>, Closures) -> Arc<S>,
    ) -> Arc<Self> {
        let Engine {
            context, sources, ..
        } = &*timer.base.engine;
        // In virtual time no hash decides an order, unless the timer has several shards. In models
        // threads meet in several.
        let is_manual = timer.clock().is_manual() && !cfg!(tickwheel_model);
        let is_single = is_manual && timer.tasks.shards.set.len() == 1;
        let count = if is_single {
            1
        } else {
            shards_for(parallelism(), each)
        };
        let (number, source) = sources.register(|number| {
            let shards = Shards::new(context, number, count, WHEEL_SIZE);
            let closures = Closures {
                tasks: Arc::downgrade(&timer.base.closures),
                spare: Spare::default(),
            };
            make(shards, closures)
        });
        Arc::new(Registered {
            timer,
            number,
            source,
        })
    }
}

impl<S> Drop for Registered<S> {
    fn drop(&mut self) {
        self.timer.base.engine.sources.remove(self.number);
    }
}

#[cfg(all(test, not(tickwheel_model)))]
mod tests {
    use super::*;
    use crate::engine::manual_clock::ManualClock;
    use std::time::Duration;

    /// Nothing of a user's runs between the two, and no model stops there.
    #[test]
    fn what_is_taken_out_as_the_timer_goes_is_dropped() {
        let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
        let task = Arc::new(());
        let own = Arc::clone(&task);
        timer.after(Duration::ZERO, move || drop(own)).unwrap();
        let mut turn = Turn::begin(&timer.base.engine.context).unwrap();
        let gone = Closures {
            tasks: Weak::new(),
            spare: Spare::default(),
        };
        let flushed = gone.flush(
            &timer.tasks.shards.set[0],
            &mut turn,
            |state, flush, tasks| {
                state.flush(flush, |_, _, task| tasks.push(task));
            },
        );
        assert_eq!(
            (flushed, timer.len(), Arc::strong_count(&task)),
            (Some(0), 0, 1)
        );
    }
}
