//! Reports: `tracing` events on cold paths, or nothing without the `tracing` feature. The only
//! place where panics end.
//!
//! Never called under a lock: subscribers and the drop of a panic's payload are user code. No
//! function here panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{mem, thread};

#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($event:tt)+) => {
        $crate::engine::report::quietly(|| tracing::$level!($($event)+))
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($field:ident = $value:expr,)* $text:literal) => {{
        $(let _ = &$value;)*
        let _ = $text;
    }};
}
pub(crate) use event;

/// Calls a subscriber. A panic in it cannot be reported.
#[cfg(feature = "tracing")]
pub(crate) fn quietly(report: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(report)) {
        discard(panic);
    }
}

/// Reports a panic in user code, and the timer that called the code, if known. A
/// [`Worker`](crate::Worker)'s thread name gives the same information.
fn report_panic(timer: Option<&str>, panic: Box<dyn Any + Send>) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("not a string");
    let thread = thread::current();
    event!(
        error,
        timer = timer,
        thread = thread.name(),
        panic = text,
        "a timer's task panicked"
    );
    discard(panic);
}

/// Drops the payload of a panic. The drop may panic with a payload whose drop panics, and so on:
/// after a few attempts the rest is leaked.
fn discard(mut panic: Box<dyn Any + Send>) {
    for _ in 0..4 {
        match catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            Ok(()) => return,
            Err(next) => panic = next,
        }
    }
    mem::forget(panic);
}

/// Calls user code that belongs to no particular timer; contains and reports its panic.
pub(crate) fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(code))
        .map_err(|panic| report_panic(None, panic))
        .ok()
}

/// Calls user code for the timer of this name; contains and reports its panic.
pub(crate) fn catch_panic_of<R>(timer: &str, code: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(code))
        .map_err(|panic| report_panic(Some(timer), panic))
        .ok()
}
