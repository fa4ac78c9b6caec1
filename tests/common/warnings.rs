//! A `tracing` subscriber that keeps the warnings.

use std::fmt::Debug;
use std::mem;
use std::sync::{Arc, LazyLock, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Of each warning the numbers in it.
#[derive(Clone)]
pub(crate) struct Warnings(Arc<Mutex<Vec<Vec<u64>>>>);

/// Subscribers that stay. With fewer than two, `tracing` asks the thread that is the first to come
/// to an event whether anybody wants it, for good; and another test's thread has none.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Warnings(Arc::default()))));

/// Lets no event be forgotten for want of a subscriber: for every test of a binary in which one
/// keeps warnings.
pub(crate) fn listen() {
    LazyLock::force(&OTHERS);
}

/// The numbers of one event.
struct Numbers(Vec<u64>);

impl Warnings {
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

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut numbers = Numbers(Vec::new());
        event.record(&mut numbers);
        self.0.lock().unwrap().push(numbers.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Numbers {
    fn record_u64(&mut self, _: &Field, value: u64) {
        self.0.push(value);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
