//! The entry: an item and its deadline, as it lies in the slab of a timing wheel.

use crate::wheel::tick::Nanos;
use core::num::NonZeroU64;

/// 24 bytes in the slab for a 64-bit item: the deadline is stored as one more, so that an option of
/// an entry takes no more memory than the entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry<T> {
    deadline: NonZeroU64,
    pub(crate) item: T,
}

impl<T> Entry<T> {
    #[inline]
    pub(crate) fn new(deadline: Nanos, item: T) -> Self {
        Entry { deadline: stored(deadline), item }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        Nanos(self.deadline.get() - 1)
    }

    #[inline]
    pub(crate) fn set_deadline(&mut self, deadline: Nanos) {
        self.deadline = stored(deadline);
    }
}

#[inline]
fn stored(deadline: Nanos) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(deadline.min(Nanos::NEVER).0)
}
