//! A node of durable timers is on the page, with its figures.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::memory::Memory;
use tickwheel_durable::{Durable, Entry, Outcome};
use tickwheel_prometheus::Metrics;

#[test]
fn a_node_is_shown_with_what_it_has_done() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let timer = Timer::builder().start().unwrap();
        let node = Durable::memory(Memory::default());
        let node = node.start(&timer, |_| async { Outcome::Done }).await.unwrap();
        let metrics = Metrics::default();
        metrics.durable("orders", &node);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics.clone()));
        node.schedule(Entry::keyed("later", Duration::from_secs(3600), "")).await.unwrap();
        node.schedule(Entry::unkeyed(Duration::ZERO, "")).await.unwrap();
        while node.stats().done == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            "tickwheel_durable_scheduled_total{durable=\"orders\"} 2",
            "tickwheel_durable_done_total{durable=\"orders\"} 1",
            "tickwheel_durable_slots{durable=\"orders\"} 1",
            "tickwheel_durable_in_flight{durable=\"orders\"} 0",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} in {page}");
        }
        let readme = include_str!("../README.md");
        let words = readme.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter(|word| word.starts_with("tickwheel_durable_")) {
            assert!(page.contains(&format!("\n{metric}{{")), "README.md names {metric}");
        }
        let figures = metrics.figures();
        assert_eq!((figures.durables[0].scheduled, figures.durables[0].dead), (2, 0));
        node.drain().await;
    });
}
