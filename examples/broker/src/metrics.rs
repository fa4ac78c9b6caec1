//! Metrics, as Prometheus reads them: the timer, the purgatories, the log, the clients.

use crate::broker::Broker;
use crate::follower::Pace;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tickwheel_prometheus::Metrics;

/// What [`text`] is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Registers the metrics of everything that waits.
pub(crate) fn of(broker: &Broker) -> Metrics {
    let metrics = Metrics::default();
    metrics.timer(&broker.timer);
    metrics.purgatory("fetch", &broker.fetches);
    metrics.purgatory("produce", &broker.produces);
    broker.producers.register(&metrics);
    broker.delays.register(&metrics);
    broker.groups.register(&metrics);
    metrics
}

/// Returns all metrics, and the broker's own.
pub(crate) fn text(broker: &Arc<Broker>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(of(broker)));
    registry.register_collector(Box::new(Own(Arc::clone(broker))));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string can't fail");
    text
}

/// The log and the clients.
struct Own(Arc<Broker>);

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Own(broker) = self;
        let topics = broker.topics.all();
        let partitions = || topics.iter().flat_map(|topic| topic.iter());
        let bytes: u64 = partitions().map(|partition| partition.bytes()).sum();
        let held: usize = partitions().map(|partition| partition.held()).sum();
        let offsets = partitions().map(|partition| partition.offsets());
        let behind: i64 = offsets.map(|(_, high, end)| end - high).sum();
        let runs = broker.follower.pace() != Pace::Stopped;
        let (_, sessions) = broker.groups.waiting();
        let (counters, budget) = (&broker.counters, &broker.budget);
        let counter = |count: u64| Box::new(ConstCounter::new(count)) as Box<dyn EncodeMetric>;
        let gauge = |value: u64| Box::new(ConstGauge::new(value)) as Box<dyn EncodeMetric>;
        let (refused, malformed) = (&counters.refused, &counters.malformed);
        for (name, help, metric) in [
            ("broker_topics", "Topics.", gauge(topics.len() as u64)),
            ("broker_log_bytes", "Bytes in the log.", gauge(bytes)),
            ("broker_held_records", "Records to be delivered later.", gauge(held as u64)),
            (
                "broker_follower_behind",
                "Records that the follower lacks.",
                gauge(u64::try_from(behind).unwrap_or(0)),
            ),
            ("broker_follower_runs", "Whether the follower runs.", gauge(runs.into())),
            ("broker_connections", "Connections.", gauge(broker.connections() as u64)),
            (
                "broker_refused",
                "Connections over the limit.",
                counter(refused.load(Ordering::Relaxed)),
            ),
            (
                "broker_malformed",
                "Frames that are no request.",
                counter(malformed.load(Ordering::Relaxed)),
            ),
            ("broker_memory_bytes", "Taken by requests, answers.", gauge(budget.taken() as u64)),
            ("broker_memory_limit_bytes", "And the limit.", gauge(budget.max() as u64)),
            (
                "broker_memory_refused",
                "Requests that there was no room for.",
                counter(budget.refused()),
            ),
            ("broker_groups", "Consumer groups.", gauge(broker.groups.groups() as u64)),
            ("broker_sessions", "Members of groups.", gauge(sessions as u64)),
        ] {
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        let (name, help) = ("broker_requests", "Requests, by kind.");
        let mut requests = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (api, count) in counters.requests() {
            let labels = [("api", format!("{:?}", api.key))];
            let mut sample = requests.encode_family(&labels)?;
            sample.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").finish_non_exhaustive()
    }
}
