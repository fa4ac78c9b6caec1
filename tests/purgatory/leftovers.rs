//! What is left of a purgatory, or of its timer, when that goes: nothing that a user would miss.

use crate::expiry::late_in_its_third_check;
use crate::{Fixture, MS};
use std::sync::Arc;
use std::thread;
use tickwheel::Task;

/// The executor is dropped with the last clone of its timer.
#[test]
fn a_cancel_that_meets_the_drop_of_the_purgatory_does_not_keep_the_executor() {
    let keys: Vec<u32> = (0..64).collect();
    for _ in 0..500 {
        let guard = Arc::new(());
        let held = Arc::clone(&guard);
        let executor = move |task: Task| {
            let _ = &held;
            task.run();
        };
        let fixture = Fixture::with(|builder| builder.executor(executor));
        let pending = fixture.watch(fixture.script(1), &keys);
        let Fixture { purgatory, timer, .. } = fixture;
        thread::scope(|scope| {
            scope.spawn(move || drop(pending.cancel()));
            drop(purgatory);
        });
        drop(timer);
        assert_eq!(Arc::strong_count(&guard), 1, "every timer's executor is gone");
    }
}

/// Its alarm is filed: nobody will hand that over any more.
#[test]
fn an_overdue_operation_is_ended_by_a_trigger_after_the_timers_shutdown() {
    for holds in [false, true] {
        let fixture = Fixture::new();
        let condition = move |check| check > 3 && holds;
        let script = late_in_its_third_check(&fixture, |_| (), condition);
        let pending = fixture.watch_for(MS, script, &[1]);
        assert_eq!(fixture.purgatory.check_and_complete(&1), 0);
        assert!(fixture.timer.shutdown().is_empty() && pending.is_pending());
        assert_eq!(fixture.purgatory.check_and_complete(&1), usize::from(holds));
        assert!(!pending.is_pending());
        assert_eq!(fixture.purgatory.stats().expired, u64::from(!holds));
        fixture.assert_empty();
    }
}
