//! What leases report as `tracing` events.

use crate::{Fixture, Mood};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the number in each warning.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u64>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Warnings {
    fn record_u64(&mut self, _: &Field, value: u64) {
        self.0.lock().unwrap().push(value);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

#[test]
fn an_outage_is_reported_once_a_round_and_not_for_each_lease() {
    let (fixture, warnings) = (Fixture::new(), Warnings::default());
    let _leases: Vec<_> = (0..12).map(|key| fixture.leases.hold(key).unwrap()).collect();
    tracing::subscriber::with_default(warnings.clone(), || {
        fixture.set(Mood::Fails);
        fixture.pass(12);
        fixture.set(Mood::Renews);
        fixture.pass(20);
    });
    assert_eq!(*warnings.0.lock().unwrap(), [12]);
    assert_eq!(fixture.take_lost(), []);
}
