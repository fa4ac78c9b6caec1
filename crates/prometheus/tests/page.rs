//! The page that Prometheus reads: what is registered is on it, with its figures.

mod common;

use common::{Page, Service};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use tickwheel::{Executor, Timer, TimerEntry};
use tickwheel_prometheus::Metrics;
use yaml_rust2::YamlLoader;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_timer_is_shown_with_what_it_has_done() {
    let service = Service::new();
    for delay in [MS, 2 * MS, 1000 * MS] {
        service.timer.add(TimerEntry::after(delay, || ())).unwrap();
    }
    let timeout = service.timer.add(TimerEntry::after(MS, || ())).unwrap();
    assert!(timeout.reschedule(3 * MS) && timeout.cancel().is_cancelled());
    service
        .timer
        .add(TimerEntry::after(MS, || panic!("a task")))
        .unwrap();
    service.advance(2 * MS);
    let page = service.page();
    let stats = service.timer.stats();
    assert_eq!(
        (stats.added, stats.pending, stats.expired, stats.panicked),
        (5, 1, 3, 1)
    );
    let timer = [("timer", "service")];
    assert_eq!(page.value("tickwheel_timer_pending", &timer), 1.0);
    for (what, count) in [
        ("added", 5),
        ("cancelled", 1),
        ("rescheduled", 1),
        ("expired", 3),
        ("refused", 0),
        ("dropped", 0),
        ("panicked", 1),
        ("returned", 0),
        ("cascaded", stats.cascaded),
        ("wakeups", stats.wakeups),
    ] {
        let name = format!("tickwheel_timer_{what}_total");
        assert_eq!(page.value(&name, &timer), count as f64, "{what}");
    }
}

#[test]
fn what_the_executor_refuses_is_shown_as_refused_and_dropped() {
    let refuse = |task: u32| Err::<(), u32>(task);
    let timer = Timer::builder()
        .name("refuses")
        .executor(refuse)
        .build()
        .unwrap();
    let metrics = Metrics::default();
    metrics.timer(&timer);
    timer.add(TimerEntry::after(Duration::ZERO, 1)).unwrap();
    timer.advance_clock(Duration::ZERO);
    let page = Page::of(&metrics);
    for what in ["refused", "dropped"] {
        let name = format!("tickwheel_timer_{what}_total");
        assert_eq!(page.value(&name, &[("timer", "refuses")]), 1.0);
    }
}

/// The bounds are always the same: a series that comes later than its first count has no rate.
#[test]
fn lateness_is_a_histogram_whose_bounds_never_change() {
    let service = Service::new();
    let name = "tickwheel_timer_lateness_seconds";
    let timer = [("timer", "service")];
    let empty = service.page().histogram(name, &timer);
    assert!(empty.iter().all(|(_, count)| *count == 0.0));
    for late in [0, 3, 3, 100] {
        service
            .timer
            .add(TimerEntry::at(service.timer.now(), || ()))
            .unwrap();
        service.advance(late * MS);
    }
    service
        .timer
        .add(TimerEntry::at(service.timer.now(), || ()))
        .unwrap();
    service.advance(Duration::from_secs(3600));
    let page = service.page();
    let bars = page.histogram(name, &timer);
    let bounds = |bars: &[(f64, f64)]| bars.iter().map(|(bound, _)| *bound).collect::<Vec<_>>();
    assert_eq!(bounds(&bars), bounds(&empty));
    assert_eq!(
        (bars.len(), bars[0].0, bars[24].0),
        (25, 8.191e-6, f64::INFINITY)
    );
    let up_to = |bound: f64| {
        bars.iter()
            .rev()
            .find(|bar| bar.0 <= bound)
            .map(|bar| bar.1)
    };
    assert_eq!(up_to(1e-5), Some(1.0));
    assert_eq!(up_to(0.005), Some(3.0));
    assert_eq!(up_to(0.2), Some(4.0));
    // The hour is beyond the last bound.
    assert_eq!(
        bars[23..].iter().map(|bar| bar.1).collect::<Vec<_>>(),
        [4.0, 5.0]
    );
    assert_eq!(
        page.value("tickwheel_timer_lateness_seconds_count", &timer),
        5.0
    );
    let sum = page.value("tickwheel_timer_lateness_seconds_sum", &timer);
    assert!((sum - 3600.106).abs() < 1e-6, "{sum}");
}

#[test]
fn levels_of_a_timer_and_of_its_keyed_timers_are_told_apart() {
    let service = Service::new();
    service.timer.add(TimerEntry::after(5 * MS, || ())).unwrap();
    service
        .timer
        .add(TimerEntry::after(Duration::from_secs(60), || ()))
        .unwrap();
    service.keyed.add(1, 5 * MS, ()).unwrap();
    let page = service.page();
    let level = |tick, slots| {
        [
            ("timer", "service"),
            ("tick_seconds", tick),
            ("slots", slots),
        ]
    };
    for (tick, slots) in [("0.001", "512"), ("0.256", "512"), ("0.001", "64")] {
        for what in ["entries", "buckets"] {
            let name = format!("tickwheel_timer_level_{what}");
            assert_eq!(
                page.value(&name, &level(tick, slots)),
                1.0,
                "{what} {tick} {slots}"
            );
        }
    }
}

#[test]
fn a_purgatory_is_shown_with_how_its_operations_ended() {
    let service = Service::new();
    service.park(3); // Two keys each.
    service.complete_one();
    service.advance(2000 * MS);
    service.park(1);
    let page = service.page();
    let fetch = [("purgatory", "fetch")];
    assert_eq!(page.value("tickwheel_purgatory_delayed", &fetch), 1.0);
    assert_eq!(page.value("tickwheel_purgatory_watched", &fetch), 2.0);
    assert_eq!(
        page.value("tickwheel_purgatory_panicked_total", &fetch),
        0.0
    );
    let ended = |how| {
        let labels = [("purgatory", "fetch"), ("how", how)];
        page.value("tickwheel_purgatory_ended_total", &labels)
    };
    let ways = ["at_once", "by_trigger", "by_force", "expired", "cancelled"];
    assert_eq!(ways.map(ended), [0.0, 1.0, 0.0, 2.0, 0.0]);
}

#[test]
fn keys_and_leases_are_counted() {
    let service = Service::new();
    for key in 0..7 {
        service.keyed.add(key, Duration::from_secs(60), ()).unwrap();
    }
    let leases = [1, 2, 3].map(|key| service.leases.hold(key).unwrap());
    let [_first, _second, third] = leases;
    service.advance(Duration::from_secs(10));
    drop(third);
    let page = service.page();
    assert_eq!(
        page.value("tickwheel_keyed_timer_keys", &[("keyed_timer", "sessions")]),
        7.0
    );
    let locks = [("leases", "locks")];
    assert_eq!(page.value("tickwheel_leases_held", &locks), 2.0);
    let of = |what| page.value(&format!("tickwheel_leases_{what}_total"), &locks);
    assert_eq!(
        ["taken", "renewed", "failed", "released", "lost"].map(of),
        [3.0, 3.0, 0.0, 1.0, 0.0]
    );
}

#[test]
fn names_that_are_taken_get_a_number_and_odd_ones_are_escaped() {
    let metrics = Metrics::default();
    let timers = ["a", "a", "a\"b"].map(|name| Timer::builder().name(name).build().unwrap());
    timers.iter().for_each(|timer| metrics.timer(timer));
    let page = Page::of(&metrics).text;
    for line in [
        "{timer=\"a\"} 0\n",
        "{timer=\"a-2\"} 0\n",
        "{timer=\"a\\\"b\"} 0\n",
    ] {
        assert!(
            page.contains(&format!("\ntickwheel_timer_pending{line}")),
            "{line}:\n{page}"
        );
    }
}

#[test]
fn the_metrics_keep_no_timer_alive() {
    let metrics = Metrics::default();
    let build = || Timer::builder().name("short").build().unwrap();
    let first = build();
    metrics.timer(&first);
    let weak = first.downgrade();
    drop(first);
    assert!(weak.upgrade().is_none());
    assert!(metrics.figures().timers.is_empty());
    // Its name is free again.
    let second = build();
    metrics.timer(&second);
    let names = Page::of(&metrics).labels("tickwheel_timer_pending", "timer");
    assert_eq!(names, BTreeSet::from(["short".to_owned()]));
}

/// An executor that looks at the metrics, once, as it is asked for its own count of panics.
struct Asks(Metrics, AtomicBool);

impl Executor<u32> for Asks {
    fn execute(&self, _: u32) -> Result<(), u32> {
        Ok(())
    }

    fn panicked(&self) -> u64 {
        if self.1.swap(false, Ordering::Relaxed) {
            assert_eq!(self.0.figures().timers.len(), 1);
        }
        0
    }
}

/// Seen to fail: the registration of the second timer hung.
#[test]
fn an_executor_may_ask_for_the_metrics_of_its_own_timer() {
    let metrics = Metrics::default();
    let asks = Asks(metrics.clone(), AtomicBool::new(true));
    let timer = Timer::builder().executor(asks).build().unwrap();
    metrics.timer(&timer);
    let (sender, registered) = channel();
    thread::spawn(move || {
        metrics.timer(&timer);
        sender.send(metrics.figures().timers.len()).unwrap();
    });
    assert_eq!(registered.recv_timeout(Duration::from_secs(20)), Ok(2));
}

/// As the format asks for it: each family once, with its samples beneath it, each sample once.
#[test]
fn the_page_is_in_order() {
    let service = Service::new();
    service.park(1);
    let other = Timer::builder().name("other").build().unwrap();
    service.metrics.timer(&other);
    let text = service.page().text;
    let mut families = BTreeSet::new();
    let mut samples = BTreeSet::new();
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
            assert!(families.insert(family), "{family} comes twice");
        } else if !line.starts_with('#') {
            assert!(line.starts_with(family), "{line} is below {family}");
            assert!(
                samples.insert(line.rsplit_once(' ').unwrap().0),
                "{line} comes twice"
            );
        }
    }
    assert!(text.ends_with("# EOF\n"));
    assert!(
        families.len() == 25 && samples.len() > 80,
        "{}: {families:#?}",
        families.len()
    );
}

#[test]
fn dashboard_and_alerts_agree_with_the_page() {
    let service = Service::new();
    service.park(1);
    service.timer.add(TimerEntry::after(MS, || ())).unwrap();
    names_agree(&service.page(), false);
}

/// Checks that the dashboard, the alerts and the table ask for nothing that is not there, and that
/// nothing is collected that nobody looks at.
fn names_agree(page: &Page, of_nodes: bool) {
    let is_meant = |name: &&str| {
        name.starts_with("tickwheel_")
            && name.starts_with("tickwheel_durable_") == of_nodes
            && *name != "tickwheel_prometheus"
    };
    let dashboard = include_str!("../grafana.json");
    for (file, text) in [
        ("grafana.json", dashboard),
        ("alerts.yml", include_str!("../alerts.yml")),
        ("README.md", include_str!("../README.md")),
    ] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metrics: BTreeSet<_> = words.filter(is_meant).collect();
        assert!(metrics.len() >= 4, "{file}: {metrics:?}");
        for metric in metrics {
            assert!(
                page.has(metric),
                "{file} names {metric}, which does not exist"
            );
        }
    }
    let alerts = YamlLoader::load_from_str(include_str!("../alerts.yml")).unwrap();
    let groups = alerts[0]["groups"].as_vec().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_vec());
    for rule in rules.flatten() {
        let is_whole = rule["alert"].as_str().is_some() && rule["expr"].as_str().is_some();
        assert!(is_whole && !rule["labels"].is_badvalue(), "{rule:?}");
    }
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let asked: String = targets
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    for metric in page.names().into_iter().filter(is_meant) {
        let is_part = ["_sum", "_count"].iter().any(|part| metric.ends_with(part));
        assert!(is_part || asked.contains(metric), "{metric} is on no panel");
    }
}

#[cfg(feature = "durable")]
#[tokio::test]
async fn a_node_is_shown_with_what_it_has_done() {
    use tickwheel_durable::{Durable, Entry, Outcome, store::memory::Memory};
    let timer = Timer::builder().start().unwrap();
    let node = Durable::memory(Memory::new(tickwheel::SystemClock));
    let node = node
        .start(&timer, |_| async { Outcome::Done })
        .await
        .unwrap();
    let metrics = Metrics::default();
    metrics.durable("orders", &node);
    node.schedule(Entry::keyed("later", Duration::from_secs(3600), ""))
        .await
        .unwrap();
    node.schedule(Entry::unkeyed(Duration::ZERO, ""))
        .await
        .unwrap();
    while node.stats().done == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node.drain().await; // Nothing is in flight any more.
    let page = Page::of(&metrics);
    let of = |what| {
        page.value(
            &format!("tickwheel_durable_{what}"),
            &[("durable", "orders")],
        )
    };
    assert_eq!(
        [
            "scheduled_total",
            "done_total",
            "expired_total",
            "in_flight"
        ]
        .map(of),
        [2.0, 1.0, 0.0, 0.0]
    );
    let lateness = page.histogram(
        "tickwheel_durable_lateness_seconds",
        &[("durable", "orders")],
    );
    assert_eq!(lateness.last(), Some(&(f64::INFINITY, 1.0)));
    names_agree(&page, true);
}

#[test]
fn the_json_is_what_was_read() {
    let service = Service::new();
    service.timer.add(TimerEntry::after(5 * MS, || ())).unwrap();
    service.park(1);
    let figures: tickwheel_prometheus::Figures =
        serde_json::from_str(&service.metrics.json()).unwrap();
    assert_eq!(figures, service.metrics.figures());
    let levels = &figures.timers[0].levels;
    let own = levels
        .iter()
        .find(|level| (level.level, level.wheel_size) == (0, 512))
        .unwrap();
    assert_eq!(
        (own.tick_ns, own.entries, &*own.slots),
        (1_000_000, 1, &[0, 0, 0, 0, 0, 1][..])
    );
    assert_eq!(
        (
            figures.purgatories[0].delayed,
            &*figures.purgatories[0].name
        ),
        (1, "fetch")
    );
}
