//! What can go wrong.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Why a call failed. Cloning shares the cause: one batch may fail for many callers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The store could not be reached, or refused. What was asked for was not done.
    Unavailable(Arc<dyn StdError + Send + Sync>),
    /// The answer was lost: what was asked for was done, or was not. With a key it is safe to ask
    /// again: the same key is replaced, not doubled.
    Uncertain(Arc<dyn StdError + Send + Sync>),
    /// The store's tables are of a later version of this crate: it does not touch them.
    NewerSchema {
        /// The version of the tables.
        found: i32,
        /// The latest version that this crate knows.
        known: i32,
    },
    /// A key, a tag or a namespace is longer than 512 bytes, or holds a zero byte, which
    /// PostgreSQL does not store.
    BadName(String),
    /// A payload is longer than 1 MiB: keep it elsewhere, and schedule its name.
    PayloadTooLong(usize),
    /// The slot of a key is served by another primary, or on its way there: nothing was done. See
    /// [`Sharded`](crate::Sharded).
    Moved,
    /// The timer's row is no longer this claim's: another node has claimed it since. Roll back.
    Fenced,
    /// The node was drained or dropped, or the `tickwheel` timer was shut down.
    Closed,
}

impl Error {
    pub(crate) fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Unavailable(Arc::from(cause.into()))
    }

    pub(crate) fn uncertain(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Uncertain(Arc::from(cause.into()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unavailable(cause) => write!(f, "the store is unavailable: {cause}"),
            Error::Uncertain(cause) => write!(f, "the store's answer was lost: {cause}"),
            Error::NewerSchema { found, known } => {
                write!(f, "the tables are of version {found}; this crate knows {known}")
            }
            Error::BadName(name) => write!(f, "no key, tag or namespace can be {name:?}"),
            Error::PayloadTooLong(bytes) => write!(f, "a payload of {bytes} bytes is too long"),
            Error::Moved => f.write_str("another primary serves this slot, or will soon"),
            Error::Fenced => f.write_str("another node has claimed the timer since"),
            Error::Closed => f.write_str("the node was drained, or its timer shut down"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Unavailable(cause) | Error::Uncertain(cause) => Some(&**cause),
            _ => None,
        }
    }
}
