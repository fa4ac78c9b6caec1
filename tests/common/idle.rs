//! An operation that waits.

use tickwheel::purgatory::DelayedOperation;

#[derive(Debug)]
pub(crate) struct Idle;

impl DelayedOperation for Idle {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {}
}
