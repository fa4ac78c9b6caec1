//! A delayed operation's record: the operation and all that it has, its entries' places and its
//! timeout.

use crate::purgatory::place::Places;
use crate::purgatory::state::State;
use crate::timer::timeout::Timeout;

/// Lies in the shard of the operation's first key.
#[derive(Debug)]
pub(crate) struct Delayed<O> {
    pub(crate) state: State,
    /// Whether there is a handle: then the record stays when the operation has ended, to tell how.
    pub(crate) has_handle: bool,
    pub(crate) content: Content<O>,
}

/// Empty when the operation has ended.
pub(crate) struct Content<O> {
    /// `None` while somebody holds it.
    pub(crate) operation: Option<O>,
    pub(crate) timeout: Option<Timeout>,
    pub(crate) places: Places,
}

impl<O> Delayed<O> {
    /// Of an operation that its creator holds, to add it.
    pub(crate) fn adding() -> Self {
        Delayed { state: State::adding(), has_handle: false, content: Content::EMPTY }
    }
}

impl<O> Content<O> {
    pub(crate) const EMPTY: Self = Content { operation: None, timeout: None, places: Places::NONE };
}

impl<O> std::fmt::Debug for Content<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
