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
        registry.register_collector(Box::new(metrics));
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
            "tickwheel_durable_lateness_seconds_count{durable=\"orders\"} 1",
            "tickwheel_durable_lateness_seconds_bucket{le=\"+Inf\",durable=\"orders\"} 1",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} in {page}");
        }
        names_agree(&page);
        node.drain().await;
    });
}

/// Checks that dashboard, alerts and table name nothing that is not there, and that the dashboard
/// shows all there is.
fn names_agree(page: &str) {
    let dashboard = include_str!("../grafana.json");
    for text in [dashboard, include_str!("../alerts.yml"), include_str!("../README.md")] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: Vec<&str> =
            words.filter(|word| word.starts_with("tickwheel_durable_")).collect();
        assert!(named.len() >= 4, "{named:?}");
        for metric in named {
            let samples = [format!("\n{metric}{{"), format!("\n{metric}_count{{")];
            assert!(samples.iter().any(|sample| page.contains(sample)), "{metric} is not there");
        }
    }
    let samples = page.lines().filter_map(|line| line.split_once('{'));
    for (metric, _) in samples.filter(|(metric, _)| metric.starts_with("tickwheel_durable_")) {
        let is_part = ["_sum", "_count"].iter().any(|part| metric.ends_with(part));
        assert!(is_part || dashboard.contains(metric), "{metric} is on no panel");
    }
}
