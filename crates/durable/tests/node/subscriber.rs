//! A subscriber of `tracing` that panics.

use crate::{Rig, seconds};
use std::time::Duration;
use tickwheel_durable::Entry;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, subscriber};

/// Panics at each event, as that of `tracing_subscriber::fmt` does once nobody reads its output.
struct Panics;

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tickwheel_durable") && metadata.is_event()
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        panic!("nobody reads");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Seen to fail: the tasks that acknowledge ended with the first two deaths.
#[tokio::test]
async fn a_subscriber_that_panics_ends_no_node() {
    let _panics = subscriber::set_default(Panics);
    let rig = Rig::new().await;
    let node = rig.node(|options| options.max_attempts(1)).await;
    for what in ["panic", "dead", "fail", "x"].into_iter().cycle().take(12) {
        let entry = Entry::keyed("a", Duration::ZERO, what);
        node.schedule(entry).await.unwrap();
        rig.pass(seconds(1)).await;
    }
    let stats = node.stats();
    assert_eq!((stats.dead, stats.done, stats.in_flight), (9, 3, 0));
}
