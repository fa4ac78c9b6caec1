//! A `tracing` subscriber that hears events, and knows no spans.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Which events it hears, and what it does then.
pub(crate) struct Listener<F>(pub(crate) fn(&Metadata<'_>) -> bool, pub(crate) F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for Listener<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        self.1(event);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
