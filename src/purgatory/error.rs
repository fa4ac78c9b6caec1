//! The error of an operation that was not accepted.

use std::error::Error;
use std::fmt;

/// The error of
/// [`Purgatory::try_complete_else_watch`](crate::purgatory::Purgatory::try_complete_else_watch),
/// which hands the operation back. The operation is watched nowhere and was not completed: its
/// condition did not hold at the first check, or was not checked because there was no key.
#[non_exhaustive]
pub enum WatchError<O> {
    /// The operation has no key, so nothing would ever trigger it.
    NoKeys(O),
    /// The timer already has as many pending timers as its `max_pending` allows.
    Full(O),
    /// The purgatory, or its timer, was shut down.
    Shutdown(O),
}

impl<O> WatchError<O> {
    /// Returns the operation that was not accepted.
    pub fn into_operation(self) -> O {
        match self {
            WatchError::NoKeys(operation)
            | WatchError::Full(operation)
            | WatchError::Shutdown(operation) => operation,
        }
    }

    fn text(&self) -> &'static str {
        match self {
            WatchError::NoKeys(_) => "the operation has no key",
            WatchError::Full(_) => "the timer is full",
            WatchError::Shutdown(_) => "the purgatory was shut down",
        }
    }
}

/// Leaves out the operation, which need not be `Debug`.
impl<O> fmt::Debug for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchError({})", self.text())
    }
}

impl<O> fmt::Display for WatchError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl<O> Error for WatchError<O> {}
