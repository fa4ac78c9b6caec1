//! Holding: which keyed timers a thread holds a shard of, in debug builds.
//!
//! What a user does with an entry, or in a closure that looks at a task, happens under the lock of
//! a shard. From there, a call to the same keyed timer or a turn of its timer would wait for its
//! own thread: without a word in release builds, and with a panic in debug builds.

use crate::timer::context::TimerContext;
use std::cell::RefCell;
use std::ptr;

const NOTES: bool = cfg!(all(debug_assertions, not(tickwheel_model)));

/// A note that this thread has a shard of a keyed timer under its lock, until it is dropped.
pub(crate) struct Holding(Held);

/// The addresses of a keyed timer and of its timer's context.
type Held = (usize, usize);

std::thread_local! {
    static HOLDING: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

impl Holding {
    /// Notes that this thread is about to lock a shard of the keyed timer at `keyed`.
    #[inline]
    pub(crate) fn begin(keyed: &impl Sized, timer: &TimerContext) -> Self {
        let held = (ptr::from_ref(keyed).addr(), ptr::from_ref(timer).addr());
        if NOTES {
            if is_any(|(keyed, _)| keyed == held.0) {
                panic!("this thread uses a keyed timer while it holds one of that timer's entries");
            }
            let _ = HOLDING.try_with(|holding| holding.borrow_mut().push(held));
        }
        Holding(held)
    }
}

impl Drop for Holding {
    #[inline]
    fn drop(&mut self) {
        if NOTES {
            let _ = HOLDING.try_with(|holding| holding.borrow_mut().retain(|held| *held != self.0));
        }
    }
}

/// Panics if this thread has a shard of a keyed timer on this timer under its lock.
#[inline]
pub(crate) fn assert_none_on(timer: &TimerContext) {
    if NOTES && is_any(|(_, of)| of == ptr::from_ref(timer).addr()) {
        panic!("this thread advances a timer while it holds an entry of a keyed timer on it");
    }
}

fn is_any(is_meant: impl Fn(Held) -> bool) -> bool {
    // A thread at its end may have no storage any more: then nothing is checked.
    HOLDING.try_with(|holding| holding.borrow().iter().any(|held| is_meant(*held))) == Ok(true)
}
