//! Reports: `tracing` events on cold paths, or nothing without the `tracing` feature. And the one
//! place where panics end.
//!
//! Never used under a lock: a subscriber is the user's code. So is what a panic carries, whose drop
//! may panic: nothing here does, whatever these do.

use std::any::Any;
use std::mem;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[cfg(feature = "tracing")]
macro_rules! report_debug {
    ($($event:tt)+) => { $crate::timer::report::quietly(|| tracing::debug!($($event)+)) };
}
#[cfg(feature = "tracing")]
macro_rules! report_warn {
    ($($event:tt)+) => { $crate::timer::report::quietly(|| tracing::warn!($($event)+)) };
}
#[cfg(feature = "tracing")]
macro_rules! report_error {
    ($($event:tt)+) => { $crate::timer::report::quietly(|| tracing::error!($($event)+)) };
}
// Under other names until here: `warn` is an attribute as well.
#[cfg(feature = "tracing")]
pub(crate) use {report_debug as debug, report_error as error, report_warn as warn};

#[cfg(not(feature = "tracing"))]
macro_rules! nothing {
    ($($field:ident = $value:expr,)* $text:literal) => {{
        $(let _ = &$value;)*
        let _ = $text;
    }};
}
#[cfg(not(feature = "tracing"))]
pub(crate) use {nothing as debug, nothing as error, nothing as warn};

/// Calls a subscriber, whose panic can be reported to nobody.
#[cfg(feature = "tracing")]
pub(crate) fn quietly(report: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(report)) {
        discard(panic);
    }
}

/// Reports what a user's code panicked with.
fn report_panic(panic: Box<dyn Any + Send>) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    error!(panic = text.unwrap_or("not a string"), "a timer's task panicked");
    let _ = text;
    discard(panic);
}

/// Drops what a panic carried. That may panic with something whose drop panics, and so on: what is
/// left then is leaked, because nobody may drop it. A type that does so once does it by mistake, so
/// the bound only has to be one.
fn discard(mut panic: Box<dyn Any + Send>) {
    for _ in 0..4 {
        match catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            Ok(()) => return,
            Err(next) => panic = next,
        }
    }
    mem::forget(panic);
}

/// Calls a user's code; contains and reports its panic.
pub(crate) fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(code)).map_err(report_panic).ok()
}

/// What a user gave to be kept: its drop is contained as well, wherever that happens.
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(value: T) -> Self {
        Contained(Some(value))
    }
}

impl<T> Deref for Contained<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        catch_panic(|| drop(self.0.take()));
    }
}
