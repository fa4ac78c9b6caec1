//! An allocator that fails once, when it is told to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

struct Failing;

/// Allocations until one fails. Zero: none does.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Lets the allocation with this number fail, counted from now on; none if it is zero.
pub(crate) fn fail_at(number: u64) {
    LEFT.store(number, SeqCst);
}

/// Returns whether the one that was to fail has failed.
pub(crate) fn has_failed() -> bool {
    LEFT.load(SeqCst) == 0
}

/// Returns whether the present allocation fails.
fn fails() -> bool {
    LEFT.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) == Ok(1)
}

// SAFETY: everything is left to the system's allocator, or fails, which every allocation may.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        if fails() { null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        if fails() { null_mut() } else { unsafe { System.realloc(pointer, layout, size) } }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;
