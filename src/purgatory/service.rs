//! The service: what a shard knows of the purgatory that it serves now.

use crate::timer::context::TimerContext;
use crate::timer::entry::Task;
use crate::timer::homes::Homes;
use std::sync::Arc;

/// The part that belongs to the purgatory that a shard serves.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) context: Arc<TimerContext>,
    /// The number of the purgatory's first shard on the driver.
    pub(crate) first: u32,
    /// The shards that take the checks that are left to the executor. `None` once the purgatory is
    /// gone: a remaining operation need not keep them from the next timer.
    pub(crate) closures: Option<Arc<Homes<Task>>>,
}

impl Service {
    /// Returns whether it is for this purgatory: a shard may serve another one by the time that a
    /// driver comes to it.
    pub(crate) fn is_for(&self, context: &Arc<TimerContext>, first: u32) -> bool {
        self.first == first && Arc::ptr_eq(&self.context, context)
    }
}
