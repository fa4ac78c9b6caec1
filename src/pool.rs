//! The pool: cells without a timer, kept for the next timer with the same type of task.
//!
//! A timeout's handle refers to its cell by a plain reference. To count these references instead,
//! so that cells could be freed, would take two more locked instructions for each timer, a fifth of
//! the time that adding and cancelling it takes. So a cell lives for ever; without a timer it holds
//! about a kilobyte. There are never more of them than timers were alive at once had, but for
//! those that are worn: each shard of such a timer had used a place of its slab 2^31 times.

use crate::cell::Cell;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;

/// Not from the lock facade: it guards no more than a push or a pop, and outlives any model.
static POOL: parking_lot::Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>> =
    parking_lot::Mutex::new(BTreeMap::new());

/// What the pool has for a type of tasks.
type Cells<T> = Vec<&'static Cell<T>>;

/// A cell that has no timer.
pub(crate) fn take<T: Send + 'static>() -> &'static Cell<T> {
    let pooled = with_cells(Vec::pop);
    pooled.unwrap_or_else(|| Box::leak(Box::new(Cell::new())))
}

/// Takes a cell back whose timer is gone, and which was drained.
pub(crate) fn put<T: Send + 'static>(cell: &'static Cell<T>) {
    // A model checker's locks belong to one schedule, and can't be used in the next.
    if cell.retire() && !cfg!(tickwheel_model) {
        with_cells(|cells| cells.push(cell));
    }
}

fn with_cells<T: Send + 'static, R>(change: impl FnOnce(&mut Cells<T>) -> R) -> R {
    let mut pool = POOL.lock();
    let cells = pool.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(Cells::<T>::new()));
    change(cells.downcast_mut().expect("a vector of the type that it is filed under"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_taken_again() {
        struct Task; // A type of its own: other tests use the pool, too.
        let cells: [&Cell<Task>; 2] = [take(), take()];
        assert!(!std::ptr::eq(cells[0], cells[1]));
        cells.iter().for_each(|cell| put(*cell));
        let again: [&Cell<Task>; 2] = [take(), take()];
        assert!(again.iter().all(|cell| cells.iter().any(|old| std::ptr::eq(*old, *cell))));
        assert!(std::mem::size_of::<Cell<Task>>() <= 1152, "what a cell without a timer takes");
    }
}
