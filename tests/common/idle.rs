//! An operation that waits; a store that does nothing.

use tickwheel::lease::{LeaseStore, Renewal};
use tickwheel::purgatory::DelayedOperation;

#[derive(Debug)]
pub(crate) struct Idle;

impl DelayedOperation for Idle {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {}
}

impl LeaseStore<u32> for Idle {
    fn renew(&self, _: Vec<Renewal<u32>>) {}
    fn lost(&self, _: u32) {}
}
