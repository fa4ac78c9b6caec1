//! Keys whose code panics when the purgatory goes.

use crate::{Fixture, HOUR, What};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use tickwheel::purgatory::Purgatory;

static CLONE_PANICS: AtomicBool = AtomicBool::new(false);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Brittle(u32);

impl Clone for Brittle {
    fn clone(&self) -> Self {
        assert!(!CLONE_PANICS.load(Ordering::SeqCst), "the key's clone panics");
        Brittle(self.0)
    }
}

/// A key whose `Clone` panics: the purgatory's drop must neither panic nor leave anything behind.
#[test]
fn its_drop_clones_no_keys() {
    let fixture = Fixture::new();
    let purgatory = Purgatory::new(&fixture.timer);
    let watch = |key| purgatory.try_complete_else_watch(fixture.script(key), HOUR, &[Brittle(key)]);
    let handles: Vec<_> = (0..10).map(|key| watch(key).unwrap().pending().unwrap()).collect();
    CLONE_PANICS.store(true, Ordering::SeqCst);
    let end = catch_unwind(AssertUnwindSafe(|| drop(purgatory)));
    CLONE_PANICS.store(false, Ordering::SeqCst);
    let dropped = fixture.log.of(What::Dropped).len();
    assert_eq!((end.is_ok(), dropped, fixture.timer.len()), (true, 10, 0));
    assert!(handles.iter().all(|handle| !handle.is_pending()));
}
