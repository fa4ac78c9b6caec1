//! The agenda of a thread: what the code of operations, its checks and callbacks, triggers and ends
//! while it runs there.
//!
//! A call that is made from such code does none of this itself, but queues it. The outermost call
//! works it off, in order. So no code runs inside other code, and no chain of operations needs a
//! deep stack.
//!
//! A trigger that is made in a check is dropped unless the check returns true: a check that returns
//! false has changed nothing. Otherwise operations whose checks trigger each other would be checked
//! for ever.

use crate::engine::report::catch_panic;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Something to do: a trigger that the code of an operation makes, or the callback of an operation
/// that ends while other code runs.
pub(crate) struct Item {
    pub(crate) is_trigger: bool,
    pub(crate) act: Box<dyn FnOnce(&Nesting<'_>)>,
}

/// Whether a thread is in a call, and has something on its agenda.
const IDLE: u8 = 0;
const ACTIVE: u8 = 1;
const QUEUED: u8 = 2;

/// How many items an agenda keeps room for.
const ROOM: usize = 1024;

crate::sync::thread_local! {
    static STATE: Cell<u8> = const { Cell::new(IDLE) };
    static AGENDA: RefCell<VecDeque<Item>> = const { RefCell::new(VecDeque::new()) };
}

/// How a call that may run the code of operations is nested.
pub(crate) struct Nesting<'a> {
    /// The thread's.
    state: &'a Cell<u8>,
    /// Whether the call was not made from such code on the same thread.
    pub(crate) is_outermost: bool,
}

/// Makes a call that may run the code of operations, and works off what that left if it is the
/// outermost.
#[inline]
pub(crate) fn enter<R>(call: impl FnOnce(&Nesting<'_>) -> R) -> R {
    STATE.with(|state| {
        let before = state.replace(state.get().max(ACTIVE));
        call(&Nesting { state, is_outermost: before == IDLE })
    })
}

impl Nesting<'_> {
    /// Makes a check, which does not panic.
    #[inline]
    pub(crate) fn check(&self, check: impl FnOnce() -> Option<bool>) -> Option<bool> {
        let before = if self.state.get() == QUEUED { len() } else { 0 };
        let holds = check();
        if self.state.get() == QUEUED && holds != Some(true) {
            drop_triggers(before);
        }
        holds
    }

    /// Works off what is on the agenda, for the outermost call. It holds no operation.
    #[inline]
    pub(crate) fn work_off(&self) {
        if self.state.get() == QUEUED {
            self.work_off_all();
        }
    }

    #[cold]
    fn work_off_all(&self) {
        let next = || AGENDA.try_with(|it| it.borrow_mut().pop_front()).ok().flatten();
        while let Some(Item { act, .. }) = next() {
            // Contained, so that the panic of a key's drop costs nothing that comes after it.
            catch_panic(|| act(self));
        }
        let _ = AGENDA.try_with(|agenda| agenda.borrow_mut().shrink_to(ROOM));
        self.state.set(ACTIVE);
    }
}

impl Drop for Nesting<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            self.work_off();
            self.state.set(IDLE);
        }
    }
}

/// Queues what is to be done after the code of an operation that runs on this thread.
#[cold]
pub(crate) fn queue(item: Item) {
    let mut item = Some(item);
    let _ = AGENDA.try_with(|agenda| agenda.borrow_mut().extend(item.take()));
    match item {
        None => STATE.with(|state| state.set(QUEUED)),
        // A thread that is so near its end has no storage any more.
        Some(item) => (item.act)(&Nesting { state: &Cell::new(ACTIVE), is_outermost: true }),
    }
}

#[cold]
fn len() -> usize {
    AGENDA.try_with(|agenda| agenda.borrow().len()).unwrap_or(0)
}

/// Drops the triggers among the items from this number on.
#[cold]
fn drop_triggers(first: usize) {
    let _dropped = AGENDA.try_with(|agenda| {
        let mut agenda = agenda.borrow_mut();
        let (triggers, callbacks): (Vec<_>, Vec<_>) =
            agenda.split_off(first).into_iter().partition(|item| item.is_trigger);
        agenda.extend(callbacks);
        triggers // Dropped where the agenda may be used again.
    });
}
