//! The plan: when the timer runs the next round.

use crate::timer::delay_queue::Wakes;
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::shards::Shards;
use crate::timer::timeout::Timeout;
use std::sync::Weak;
use std::time::Instant;

/// The next round's time and timeout. It is planned under the lock of the leases.
#[derive(Default)]
pub(crate) struct Plan(Option<(Instant, Timeout)>);

impl Plan {
    /// Ensures that there is a round at `due` or before; `entry` makes its entry. Returns whom to
    /// wake when the lock is released.
    pub(crate) fn have_by(
        &mut self,
        due: Instant,
        shards: &Weak<Shards<Task>>,
        entry: impl FnOnce(Instant) -> TimerEntry,
    ) -> Result<Wakes, AddError<Task>> {
        if let Some((at, timeout)) = &mut self.0 {
            if *at <= due && timeout.is_pending() {
                return Ok(Wakes::Nobody);
            }
            if let Some(wakes) = timeout.reschedule_unwoken(due) {
                *at = due.min(*at);
                return Ok(wakes);
            }
        }
        self.0 = None;
        // A refused task is not dropped under the lock: the error is passed on.
        let (timeout, wakes) = match shards.upgrade() {
            // One timer for all leases: they are not lost because other code has filled the timer.
            Some(shards) => shards.add_beyond_limit(entry(due))?,
            None => return Err(AddError::Shutdown(entry(due))),
        };
        self.0 = Some((due, timeout));
        Ok(wakes)
    }

    /// Forgets the round. Returns its timeout.
    pub(crate) fn take(&mut self) -> Option<Timeout> {
        self.0.take().map(|(_, timeout)| timeout)
    }
}
