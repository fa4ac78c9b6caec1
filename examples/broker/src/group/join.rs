//! The delayed join: a rebalance that waits until every member has joined again.

use super::coordinator::{Group, Sessions};
use std::sync::Arc;
use tickwheel::TimerEntry;
use tickwheel::purgatory::DelayedOperation;

/// Parked on its group's name. On expiry, members that have not joined are out.
pub(super) struct DelayedJoin {
    pub(super) group: Arc<Group>,
    pub(super) sessions: Sessions,
    /// The first one of a group waits for its whole time.
    pub(super) is_first: bool,
}

impl DelayedOperation for DelayedJoin {
    fn try_complete(&mut self) -> bool {
        !self.is_first && self.group.state.lock().all_have_joined()
    }

    fn on_complete(&mut self) {
        let name = &self.group.name;
        let mut state = self.group.state.lock();
        let gone = state.begin_generation();
        for id in &gone {
            self.sessions.cancel(&(Arc::clone(name), id.clone()));
        }
        for (id, member) in &state.members {
            let session = TimerEntry::after(member.session_timeout, ());
            // Nobody is without a session, so nothing is added that could be refused.
            let _ = self.sessions.schedule((Arc::clone(name), id.clone()), session);
        }
        let (members, generation) = (state.members.len(), state.generation);
        drop(state);
        let gone = gone.len();
        tracing::info!(group = &**name, generation, members, gone, "group rebalanced");
    }
}
