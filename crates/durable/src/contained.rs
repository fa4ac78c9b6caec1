//! Where the panics of users' code end: of handlers, of what is dropped, and of subscribers of
//! `tracing`. That of `tracing_subscriber::fmt` panics if nobody reads standard error any more: no
//! task of a node may end by that.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

macro_rules! event {
    ($level:ident, $($event:tt)+) => {
        drop($crate::contained::contained(|| tracing::$level!($($event)+)))
    };
}
pub(crate) use event;

/// Calls a user's code, and returns the message of a panic as an error.
pub(crate) fn contained<A>(call: impl FnOnce() -> A) -> Result<A, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(message)
}

/// Returns the message of a panic.
fn message(panic: Box<dyn Any + Send>) -> String {
    let text = if let Some(text) = panic.downcast_ref::<&str>() {
        *text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.as_str()
    } else {
        "with no text"
    };
    let message = format!("it panicked: {text}");
    // The panic's payload may panic as it is dropped, and so may the payload of that panic.
    if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        mem::forget(next);
    }
    message
}
