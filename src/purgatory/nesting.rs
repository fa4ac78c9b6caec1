//! Nesting: keeps the triggers inside of checks from going on without end.
//!
//! A check may trigger other keys, whose operations' checks may trigger others, and so on. Beyond a
//! few levels a trigger makes no checks itself, but leaves them to the executor. After a shutdown
//! of the timer there is no executor, so a check that triggers its own operation would be repeated
//! for ever. So such a trigger is ignored then, unless it comes from another thread.

use crate::purgatory::place::Id;
use std::cell::{Cell, RefCell};

/// The maximum nesting of triggers on one thread. It bounds the stack that they take.
const MAX_NESTED: u32 = if cfg!(tickwheel_model) { 1 } else { 8 };

crate::sync::thread_local! {
    static NESTED: Cell<u32> = const { Cell::new(0) };
    /// The operations, with the address of their shards, that this thread is checking again.
    static CHECKED_AGAIN: RefCell<Vec<(usize, Id)>> = const { RefCell::new(Vec::new()) };
}

/// A trigger that may make checks. Dropping it ends the trigger.
pub(crate) struct Level;

impl Level {
    /// Begins a trigger; returns `None` if it is nested too deep.
    #[inline]
    pub(crate) fn begin() -> Option<Self> {
        NESTED.with(|nested| {
            let level = nested.get();
            (level < MAX_NESTED).then(|| {
                nested.set(level + 1);
                Level
            })
        })
    }
}

impl Drop for Level {
    #[inline]
    fn drop(&mut self) {
        NESTED.with(|nested| nested.set(nested.get() - 1));
    }
}

/// Makes a check, which does not panic, of an operation that was checked before.
pub(crate) fn check_again<R>(shards: usize, id: Id, check: impl FnOnce() -> R) -> R {
    // A thread at its end may have no storage any more.
    let noted = CHECKED_AGAIN.try_with(|own| own.borrow_mut().push((shards, id))).is_ok();
    let result = check();
    if noted {
        let _ = CHECKED_AGAIN.try_with(|own| own.borrow_mut().pop());
    }
    result
}

/// Returns whether this thread is inside of [`check_again`] for this operation.
#[cold]
pub(crate) fn is_checked_again(shards: usize, id: Id) -> bool {
    CHECKED_AGAIN.try_with(|own| own.borrow().contains(&(shards, id))).unwrap_or(false)
}
