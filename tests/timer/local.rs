//! The rules of `LocalTimer` that the model does not show.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use tickwheel::LocalTimer;

/// A caller that drives it by `next_expiration` is told of the tasks that still wait.
#[test]
fn a_sink_that_panics_loses_nothing_else() {
    let mut timer = LocalTimer::starting_at(0, 8);
    for id in 0..1000_u64 {
        timer.add(id % 301, id);
    }
    let mut expired = Vec::new();
    for _ in 0..1000 {
        let advance = AssertUnwindSafe(|| {
            timer.advance(400, |id| {
                expired.push(id);
                assert!(id % 10 != 0, "every tenth panics");
            })
        });
        if catch_unwind(advance).is_ok() {
            break;
        }
        timer.assert_invariants();
        let left = 1000 - expired.len();
        assert_eq!(timer.len(), left);
        assert_eq!(
            timer.next_expiration().is_some_and(|next| next <= 400),
            left > 0
        );
    }
    assert!(expired.is_sorted_by_key(|id| id % 301));
    expired.sort_unstable();
    assert!(
        expired.iter().copied().eq(0..1000),
        "each once: {}",
        expired.len()
    );
    assert_eq!((timer.len(), timer.next_expiration()), (0, None));
}

/// Fewer than are worth a sweep, and more than are looked at in one step.
#[test]
fn next_expiration_passes_any_number_of_cancelled_tasks() {
    for (cancelled, live) in [(127, 0), (128, 0), (129, 0), (200, 0), (200, 1)] {
        let mut timer = LocalTimer::new();
        let keys: Vec<_> = (0..cancelled).map(|id| timer.add(5, id)).collect();
        (0..live).for_each(|_| _ = timer.add(5, 1_000));
        assert!(keys.iter().all(|key| timer.cancel(*key).is_some()));
        assert_eq!(
            timer.next_expiration(),
            (live > 0).then_some(5),
            "{cancelled} cancelled"
        );
        timer.assert_invariants();
    }
}

#[test]
fn tasks_need_not_be_send_and_are_dropped_with_the_timer() {
    let payload = Rc::new(());
    let mut timer = LocalTimer::default();
    let key = timer.add(1, Rc::clone(&payload));
    timer.add(u64::MAX, Rc::clone(&payload));
    assert_eq!(timer.advance(1, drop), 1);
    assert_eq!((timer.deadline(key), timer.cancel(key)), (None, None));
    assert_eq!(Rc::strong_count(&payload), 2);
    drop(timer);
    assert_eq!(Rc::strong_count(&payload), 1);
}

/// The wheels know the low 32 bits of a tick only.
#[test]
fn a_timer_may_be_moved_by_exactly_two_to_the_32nd() {
    let mut timer = LocalTimer::new();
    let key = timer.add((1 << 32) + 5, "moved");
    assert!(timer.reschedule(key, 5));
    timer.assert_invariants();
    assert_eq!(timer.advance(4, |_| ()), 0);
    assert_eq!(timer.advance(5, |_| ()), 1);
    assert_eq!(timer.advance(1 << 33, |_| ()), 0);
}
