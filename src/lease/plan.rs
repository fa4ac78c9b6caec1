//! The plan: when the timer runs the next round.

use crate::engine::shard::{Admission, Wakeup};
use crate::timer::entry::{Task, TimerEntry};
use crate::timer::error::AddError;
use crate::timer::homes::Homes;
use crate::timer::timeout::Timeout;
use std::sync::Weak;
use std::time::Instant;

/// The next round's time and timeout. It is planned under the lock of the leases.
#[derive(Default)]
pub(crate) struct Plan(Option<(Instant, Timeout)>);

impl Plan {
    /// Ensures that there is a round at `due` or before; `entry` makes its entry. Returns the
    /// duty to wake when the lock is released.
    pub(crate) fn have_by(
        &mut self,
        due: Instant,
        homes: &Weak<Homes<Task>>,
        entry: impl FnOnce(Instant) -> TimerEntry,
    ) -> Result<Wakeup, AddError<Task>> {
        if let Some((at, timeout)) = &mut self.0 {
            if *at <= due && timeout.is_pending() {
                return Ok(Wakeup::NONE);
            }
            let (is_pending, wakeup) = timeout.reschedule_unwoken(due);
            if is_pending {
                *at = due.min(*at);
                return Ok(wakeup);
            }
        }
        self.0 = None;
        // A refused task is not dropped under the lock: the error is passed on.
        let (added, wakeup) = match homes.upgrade() {
            // One timer for all leases: they are not lost because other code has filled the timer.
            Some(homes) => homes.add_unwoken(entry(due), Admission::BeyondLimit),
            None => return Err(AddError::Shutdown(entry(due))),
        };
        self.0 = Some((due, added?));
        Ok(wakeup)
    }

    /// Forgets the round. Returns its timeout.
    pub(crate) fn take(&mut self) -> Option<Timeout> {
        self.0.take().map(|(_, timeout)| timeout)
    }
}
