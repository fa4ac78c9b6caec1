//! Reports: `tracing` events on cold paths, or nothing without the `tracing` feature.
//!
//! Never used under a lock: a subscriber is the user's code.

use std::panic::{AssertUnwindSafe, catch_unwind};

#[cfg(feature = "tracing")]
pub(crate) use tracing::{debug, error, warn};

#[cfg(not(feature = "tracing"))]
macro_rules! nothing {
    ($($field:ident = $value:expr,)* $text:literal) => {{
        $(let _ = &$value;)*
        let _ = $text;
    }};
}
#[cfg(not(feature = "tracing"))]
pub(crate) use {nothing as debug, nothing as error, nothing as warn};

/// Reports what a task panicked with. The payload is dropped here: that may panic as well.
fn report_panic(panic: Box<dyn std::any::Any + Send>) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    error!(panic = text.unwrap_or("not a string"), "a timer's task panicked");
    let _ = text;
    let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
}

/// Calls a user's code; contains and reports its panic.
pub(crate) fn contain<R>(code: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(code)).map_err(report_panic).ok()
}
