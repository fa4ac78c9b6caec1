//! Callbacks: runs the code of operations, one callback after the other, never one inside another.
//!
//! A callback may complete other operations, whose callbacks complete others, and so on. If each
//! ran inside the one before, a long chain would overflow the stack. So a callback that comes up
//! while another one runs on the same thread is postponed until that one has returned.

use crate::timer::report::catch_panic;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

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
