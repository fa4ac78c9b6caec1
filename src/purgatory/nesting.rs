//! Nesting: keeps the triggers inside of checks from going on without end.
//!
//! A check may trigger other keys, whose operations' checks may trigger others, and so on. Beyond a
//! few levels a trigger makes no checks itself, but leaves them to the executor. After a shutdown
//! of the timer there is no executor, so a check that triggers its own operation would be repeated
//! for ever. So such a trigger is ignored then, unless it comes from another thread.
//!
//! # Callbacks
//! Runs the code of operations, one callback after the other, never one inside another.
//!
//! A callback may complete other operations, whose callbacks complete others, and so on. If each
//! ran inside the one before, a long chain would overflow the stack. So a callback that comes up
//! while another one runs on the same thread is postponed until that one has returned.

use crate::engine::report::catch_panic;
use crate::purgatory::wait_queue::Id;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

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

type Callback = Box<dyn FnOnce()>;

/// Whether a thread is running a callback.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Running {
    None,
    One,
    /// One callback runs, and others were postponed.
    OneOfSeveral,
}

crate::sync::thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(Running::None) };
    /// The callbacks that were postponed.
    static POSTPONED: RefCell<VecDeque<Callback>> = const { RefCell::new(VecDeque::new()) };
}

/// A thread's turn to run callbacks. Dropping it runs the callbacks that were postponed in it.
pub(crate) struct CallbackTurn;

impl CallbackTurn {
    /// Begins a turn; returns `None` if a callback is running on this thread already.
    #[inline]
    pub(crate) fn begin() -> Option<Self> {
        RUNNING.with(|running| {
            let begins = running.get() == Running::None;
            begins.then(|| {
                running.set(Running::One);
                CallbackTurn
            })
        })
    }
}

impl Drop for CallbackTurn {
    #[inline]
    fn drop(&mut self) {
        RUNNING.with(|running| {
            if running.get() == Running::OneOfSeveral {
                run_postponed();
            }
            running.set(Running::None);
        });
    }
}

#[cold]
fn run_postponed() {
    while let Some(callback) = next() {
        // Also contains a panic where the last reference to a timer, and with it its executor, is
        // dropped.
        catch_panic(callback);
    }
}

/// Takes the next postponed callback. A thread that is so near its end that it has no thread-local
/// storage has postponed none.
fn next() -> Option<Callback> {
    let next = POSTPONED.try_with(|postponed| {
        let mut postponed = postponed.borrow_mut();
        let next = postponed.pop_front();
        // mutants(>=): from which size on the queue is given back.
        if next.is_none() && postponed.capacity() > 1024 {
            *postponed = VecDeque::new();
        }
        next
    });
    next.ok().flatten()
}

/// Leaves a callback, which does not panic, to the turn in progress.
pub(crate) fn postpone(callback: impl FnOnce() + 'static) {
    let mut callback: Option<Callback> = Some(Box::new(callback));
    RUNNING.with(|running| running.set(Running::OneOfSeveral));
    let _ = POSTPONED.try_with(|postponed| postponed.borrow_mut().extend(callback.take()));
    if let Some(callback) = callback {
        callback();
    }
}
