//! Commits the defect that its argument names. A sanitizer that does not report it is not at work.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

struct Shared(UnsafeCell<u64>);

// SAFETY: it is not; that is the defect.
unsafe impl Sync for Shared {}

/// Two threads add to a number, without a lock. That they have used a lock before, each on its own,
/// orders nothing.
fn race() {
    let shared = Arc::new(Shared(UnsafeCell::new(0)));
    let threads = [(); 2].map(|()| {
        let shared = Arc::clone(&shared);
        let own = Mutex::new(());
        thread::spawn(move || {
            for _ in 0..1000 {
                drop(own.lock());
                // SAFETY: there is a data race.
                unsafe { *shared.0.get() += 1 };
            }
        })
    });
    threads.map(|thread| thread.join().expect("it adds only"));
}

fn leak() {
    // Deep enough in the stack that no register and no slot still points to it.
    #[inline(never)]
    fn forget(depth: u32) {
        if depth > 0 {
            forget(black_box(depth - 1));
        }
        black_box(Box::into_raw(Box::new([depth; 100])));
    }
    forget(20);
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("thread") => race(),
        Some("leak") => leak(),
        Some("none") => {}
        other => panic!("no such defect: {other:?}"),
    }
}
