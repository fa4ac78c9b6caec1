//! A service with one of everything, in virtual time, and the page that it shows.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use prometheus_parse::{Scrape, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{ManualClock, Timer};
use tickwheel_leases::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel_prometheus::Metrics;

pub(crate) struct Service {
    clock: ManualClock,
    pub(crate) timer: Timer,
    pub(crate) keyed: KeyedTimer<u32, ()>,
    pub(crate) leases: Leases<u32>,
    fetches: Purgatory<u32, Fetch>,
    answers: Arc<AtomicUsize>,
    pub(crate) metrics: Metrics,
}

struct Store;

impl LeaseStore<u32> for Store {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        batch.into_iter().for_each(Renewal::renewed);
    }
    fn lost(&self, _: u32) {}
}

/// Is complete when there is an answer for it.
pub(crate) struct Fetch(Arc<AtomicUsize>);

impl DelayedOperation for Fetch {
    fn try_complete(&mut self) -> bool {
        let take = |count: usize| count.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
    fn on_complete(&mut self) {}
}

impl Service {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .name("service")
            .clock(clock.clone())
            .build()
            .unwrap();
        let keyed = KeyedTimer::new(&timer, |_, ()| ());
        let leases = Leases::new(&timer, LeaseTerms::new(Duration::from_secs(30)), Store);
        let fetches = Purgatory::new(&timer);
        let answers = Arc::default();
        let metrics = Metrics::default();
        metrics.timer(&timer);
        metrics.keyed_timer("sessions", &keyed);
        metrics.leases("locks", &leases);
        metrics.purgatory("fetch", &fetches);
        Service {
            clock,
            timer,
            keyed,
            leases,
            fetches,
            answers,
            metrics,
        }
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.timer.advance_clock(Duration::ZERO);
    }

    /// Parks so many operations on two keys each, for a second.
    pub(crate) fn park(&self, count: usize) {
        for _ in 0..count {
            let fetch = Fetch(Arc::clone(&self.answers));
            let second = Duration::from_secs(1);
            let watch = self
                .fetches
                .try_complete_else_watch(fetch, second, &[1, 2])
                .unwrap();
            assert!(!watch.is_completed());
        }
    }

    pub(crate) fn complete_one(&self) {
        self.answers.store(1, Ordering::Relaxed);
        assert_eq!(self.fetches.check_and_complete(&1), 1);
    }

    pub(crate) fn page(&self) -> Page {
        Page::of(&self.metrics)
    }
}

/// What a scrape has read.
pub(crate) struct Page {
    pub(crate) text: String,
    scrape: Scrape,
}

impl Page {
    pub(crate) fn of(metrics: &Metrics) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        Page { text, scrape }
    }

    fn find(&self, metric: &str, labels: &[(&str, &str)]) -> &Value {
        let is = |sample: &&prometheus_parse::Sample| {
            let has = |(name, value): &(&str, &str)| sample.labels.get(name) == Some(*value);
            sample.metric == metric && labels.iter().all(has) && sample.labels.len() == labels.len()
        };
        let mut found = self.scrape.samples.iter().filter(is);
        let first = found
            .next()
            .unwrap_or_else(|| panic!("no {metric} {labels:?}:\n{}", self.text));
        assert!(found.next().is_none(), "{metric} {labels:?} comes twice");
        &first.value
    }

    pub(crate) fn value(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        match self.find(metric, labels) {
            Value::Gauge(value) | Value::Counter(value) | Value::Untyped(value) => *value,
            other => panic!("{metric} is {other:?}"),
        }
    }

    /// Returns the bounds and the cumulative counts.
    pub(crate) fn histogram(&self, metric: &str, labels: &[(&str, &str)]) -> Vec<(f64, f64)> {
        match self.find(metric, labels) {
            Value::Histogram(bars) => bars.iter().map(|bar| (bar.less_than, bar.count)).collect(),
            other => panic!("{metric} is {other:?}"),
        }
    }

    pub(crate) fn labels(&self, metric: &str, label: &str) -> BTreeSet<String> {
        let samples = self
            .scrape
            .samples
            .iter()
            .filter(|sample| sample.metric == metric);
        samples
            .filter_map(|sample| sample.labels.get(label).map(str::to_owned))
            .collect()
    }

    /// Returns the names of all series.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        let samples = self.text.lines().filter(|line| !line.starts_with('#'));
        samples
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect()
    }

    /// Returns whether there is such a series, or such a family.
    pub(crate) fn has(&self, name: &str) -> bool {
        let family = format!("# TYPE {name} ");
        self.names().contains(name) || self.text.lines().any(|line| line.starts_with(&family))
    }
}
