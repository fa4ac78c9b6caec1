//! Callbacks: runs operations' code, one callback after the other, never inside another one.
//!
//! A callback may complete other operations, whose callbacks complete others, and so on. If each
//! ran inside the one before, a long chain would overflow the stack. So a callback that comes up
//! while another one runs on the same thread is postponed until that has returned.

use crate::timer::report::catch_panic;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

type Callback = Box<dyn FnOnce()>;

crate::sync::thread_local! {
    /// Whether a callback runs on this thread.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    /// What that one postponed.
    static POSTPONED: RefCell<VecDeque<Callback>> = const { RefCell::new(VecDeque::new()) };
}

/// A callback runs on this thread. When this is dropped, those that it postponed run.
pub(crate) struct Turn;

impl Turn {
    /// `None` if a callback runs already.
    pub(crate) fn begin() -> Option<Self> {
        let was_running = RUNNING.with(|running| running.replace(true));
        (!was_running).then(|| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        while let Some(callback) = next() {
            // Contained also where it drops the last reference to a timer, with its executor.
            catch_panic(callback);
        }
        RUNNING.with(|running| running.set(false));
    }
}

/// The next postponed callback. None is postponed where a thread is so near its end that it has no
/// room for them any more.
fn next() -> Option<Callback> {
    let next = POSTPONED.try_with(|postponed| {
        let mut postponed = postponed.borrow_mut();
        let next = postponed.pop_front();
        if next.is_none() && postponed.capacity() > 1024 {
            *postponed = VecDeque::new();
        }
        next
    });
    next.ok().flatten()
}

/// Leaves a callback, which does not panic, to the turn that is under way.
pub(crate) fn postpone(callback: impl FnOnce() + 'static) {
    let mut callback: Option<Callback> = Some(Box::new(callback));
    let _ = POSTPONED.try_with(|postponed| postponed.borrow_mut().extend(callback.take()));
    if let Some(callback) = callback {
        callback();
    }
}
