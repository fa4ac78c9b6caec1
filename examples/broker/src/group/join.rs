//! The delayed join: a rebalance that waits until every member has joined again.

use super::Coordinator;
use std::sync::{Arc, Weak};
use tickwheel::purgatory::DelayedOperation;

/// Waits on its group's name, for all members. They wait for it, each on its own connection.
pub(super) struct DelayedJoin {
    pub(super) coordinator: Weak<Coordinator>,
    pub(super) group: Arc<str>,
    /// The first one of a group waits for its whole time, so that those who come soon after are in
    /// it, too.
    pub(super) is_first: bool,
}

impl DelayedOperation for DelayedJoin {
    fn try_complete(&mut self) -> bool {
        let coordinator = self.coordinator.upgrade();
        !self.is_first && coordinator.is_none_or(|it| it.all_have_joined(&self.group))
    }

    /// Also when the time is up: then the members that have not joined are out.
    fn on_complete(&mut self) {
        if let Some(coordinator) = self.coordinator.upgrade() {
            coordinator.begin_generation(&self.group);
        }
    }
}
