//! A `tracing` subscriber that keeps the warnings.

mod listener;

use listener::Listener;
use std::fmt::Debug;
use std::mem;
use std::sync::{Arc, LazyLock, Mutex};
use tracing::field::{Field, Visit};
use tracing::{Dispatch, Event, Level};

/// Of each warning the numbers in it.
pub(crate) struct Warnings(Arc<Mutex<Vec<Vec<u64>>>>);

/// Subscribers that stay. With fewer than two, `tracing` asks the thread that is the first to come
/// to an event whether anybody wants it, for good; and another test's thread has none.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Warnings(Arc::default()).listener())));

/// Lets no event be forgotten for want of a subscriber: for every test of a binary in which one
/// keeps warnings.
pub(crate) fn listen() {
    LazyLock::force(&OTHERS);
}

/// The numbers of one event.
struct Numbers(Vec<u64>);

impl Warnings {
    /// Returns the subscriber that keeps them.
    pub(crate) fn listener(&self) -> Listener<impl Fn(&Event<'_>) + use<>> {
        let kept = Arc::clone(&self.0);
        let keep = move |event: &Event<'_>| {
            let mut numbers = Numbers(Vec::new());
            event.record(&mut numbers);
            kept.lock().unwrap().push(numbers.0);
        };
        Listener(|metadata| *metadata.level() == Level::WARN, keep)
    }

    /// Returns the warnings since the last call.
    pub(crate) fn take(&self) -> Vec<Vec<u64>> {
        mem::take(&mut self.0.lock().unwrap())
    }
}

impl Default for Warnings {
    fn default() -> Self {
        listen();
        Warnings(Arc::default())
    }
}

impl Visit for Numbers {
    fn record_u64(&mut self, _: &Field, value: u64) {
        self.0.push(value);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
