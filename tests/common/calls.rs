//! A waker that calls a closure.

use std::sync::Arc;
use std::task::{Wake, Waker};

/// Returns a waker that calls a closure.
pub(crate) fn waker(closure: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Calls<F>(F);
    impl<F: Fn() + Send + Sync> Wake for Calls<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Calls(closure)))
}
