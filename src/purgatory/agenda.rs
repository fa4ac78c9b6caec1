//! A thread's agenda: the calls that operations' code makes while it runs.
//!
//! Such a call is queued, and the outermost call makes it later, in order. No code runs inside
//! other code, and no chain of operations needs a deep stack.
//!
//! A trigger from a check that returns false is dropped: the check has changed nothing. Otherwise
//! operations whose checks trigger each other would be checked forever.

use crate::engine::report::catch_panic;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// A trigger from an operation's code, or a callback of an operation that ended meanwhile.
pub(crate) struct Item {
    pub(crate) is_trigger: bool,
    pub(crate) act: Box<dyn FnOnce(&Nesting<'_>)>,
}

/// Whether a thread is in a call, and has queued anything.
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
    state: &'a Cell<u8>,
    /// Whether no operation's code on this thread has made the call.
    pub(crate) is_outermost: bool,
}

/// Makes a call that may run operations' code; the outermost call then makes the queued calls.
#[inline]
pub(crate) fn enter<R>(call: impl FnOnce(&Nesting<'_>) -> R) -> R {
    STATE.with(|state| {
        let before = state.replace(state.get().max(ACTIVE));
        call(&Nesting {
            state,
            is_outermost: before == IDLE,
        })
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

    /// Makes the queued calls, for the outermost call, which holds no operation.
    #[inline]
    pub(crate) fn work_off(&self) {
        if self.state.get() == QUEUED {
            self.work_off_all();
        }
    }

    #[cold]
    fn work_off_all(&self) {
        let next = || {
            AGENDA
                .try_with(|it| it.borrow_mut().pop_front())
                .ok()
                .flatten()
        };
        while let Some(Item { act, .. }) = next() {
            // A panic of a key's drop must not lose the items after it.
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

/// Queues an item for after the operation's code that runs on this thread.
#[cold]
pub(crate) fn queue(item: Item) {
    let mut item = Some(item);
    let _ = AGENDA.try_with(|agenda| agenda.borrow_mut().extend(item.take()));
    match item {
        None => STATE.with(|state| state.set(QUEUED)),
        // A thread so near its end has no storage.
        Some(item) => (item.act)(&Nesting {
            state: &Cell::new(ACTIVE),
            is_outermost: true,
        }),
    }
}

#[cold]
fn len() -> usize {
    AGENDA.try_with(|agenda| agenda.borrow().len()).unwrap_or(0)
}

/// Drops the triggers from this item on.
#[cold]
fn drop_triggers(first: usize) {
    let _dropped = AGENDA.try_with(|agenda| {
        let mut agenda = agenda.borrow_mut();
        let (triggers, callbacks): (Vec<_>, Vec<_>) = agenda
            .split_off(first)
            .into_iter()
            .partition(|item| item.is_trigger);
        agenda.extend(callbacks);
        triggers // Dropped where the agenda may be used again.
    });
}
