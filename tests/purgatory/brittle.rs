//! Keys whose code panics when the purgatory goes.

use crate::HOUR;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer};

struct Operation(Arc<AtomicU32>);

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        false
    }
    fn on_complete(&mut self) {}
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

static CLONE_PANICS: AtomicBool = AtomicBool::new(false);

#[derive(PartialEq, Eq, Hash)]
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
    let timer = Timer::builder().clock(ManualClock::new()).build().unwrap();
    let purgatory = Purgatory::new(&timer);
    let dropped = Arc::new(AtomicU32::new(0));
    let mut handles = Vec::new();
    for key in 0..10 {
        let operation = Operation(Arc::clone(&dropped));
        let watch = purgatory.try_complete_else_watch(operation, HOUR, &[Brittle(key)]).unwrap();
        handles.push(watch.pending().unwrap());
    }
    CLONE_PANICS.store(true, Ordering::SeqCst);
    let end = catch_unwind(AssertUnwindSafe(|| drop(purgatory)));
    CLONE_PANICS.store(false, Ordering::SeqCst);
    assert_eq!((end.is_ok(), dropped.load(Ordering::SeqCst), timer.len()), (true, 10, 0));
}
