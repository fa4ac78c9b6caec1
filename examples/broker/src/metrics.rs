//! Metrics, as Prometheus reads them: the timer, the purgatories, the log, the clients.

use crate::broker::Broker;
use crate::follower::Pace;
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;
use tickwheel::Stats;
use tickwheel::purgatory::PurgatoryStats;

/// All of them.
pub(crate) fn text(broker: &Broker) -> String {
    let mut page = Page::default();
    timer(&mut page, &broker.timer.stats());
    purgatories(
        &mut page,
        &[
            ("fetch", broker.fetches.stats()),
            ("produce", broker.produces.stats()),
            ("join", broker.groups.stats()),
        ],
    );
    log(&mut page, broker);
    clients(&mut page, broker);
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }
}

fn timer(page: &mut Page, stats: &Stats) {
    let gauge = "tickwheel_timer_pending";
    page.single(gauge, "gauge", "Timers that wait for their deadline.", stats.pending);
    for (name, help, value) in [
        ("added", "Timers that were added.", stats.added),
        ("cancelled", "Timers that were cancelled.", stats.cancelled),
        ("rescheduled", "Deadlines that were moved.", stats.rescheduled),
        ("expired", "Timers that expired.", stats.expired),
        ("panicked", "Tasks that panicked.", stats.panicked),
        ("wakeups", "How often the reaper woke up.", stats.wakeups),
    ] {
        page.single(&format!("tickwheel_timer_{name}_total"), "counter", help, value);
    }
    let name = "tickwheel_timer_lateness_seconds";
    page.family(name, "histogram", "By how much timers expired after their deadline.");
    let mut count = 0;
    for (up_to, bar) in stats.lateness.bars() {
        count += bar;
        let labels = format!("{{le=\"{}\"}}", up_to.as_secs_f64());
        page.sample(&format!("{name}_bucket"), &labels, count);
    }
    page.sample(&format!("{name}_bucket"), "{le=\"+Inf\"}", count);
    page.sample(&format!("{name}_sum"), "", stats.lateness.sum().as_secs_f64());
    page.sample(&format!("{name}_count"), "", count);
}

fn purgatories(page: &mut Page, purgatories: &[(&str, PurgatoryStats)]) {
    let name = "tickwheel_purgatory_delayed";
    page.family(name, "gauge", "Requests that wait.");
    for (purgatory, stats) in purgatories {
        page.sample(name, &format!("{{purgatory=\"{purgatory}\"}}"), stats.delayed);
    }
    let name = "tickwheel_purgatory_ended_total";
    page.family(name, "counter", "Requests that have ended, and how.");
    for (purgatory, stats) in purgatories {
        for (how, count) in [
            ("at_once", stats.completed_at_once),
            ("by_trigger", stats.completed_by_trigger),
            ("expired", stats.expired),
            ("cancelled", stats.cancelled),
            ("panicked", stats.panicked),
        ] {
            let labels = format!("{{purgatory=\"{purgatory}\",how=\"{how}\"}}");
            page.sample(name, &labels, count);
        }
    }
}

fn log(page: &mut Page, broker: &Broker) {
    let topics = broker.topics.all();
    let partitions = || topics.iter().flat_map(|(_, topic)| topic.iter());
    let bytes: u64 = partitions().map(|partition| partition.bytes()).sum();
    let behind = partitions().map(|partition| partition.offsets()).map(|(_, high, end)| end - high);
    let behind: i64 = behind.sum();
    page.single("broker_topics", "gauge", "Topics.", topics.len());
    page.single("broker_log_bytes", "gauge", "Bytes in the log.", bytes);
    page.single("broker_follower_behind", "gauge", "Records that the follower lacks.", behind);
    let runs = u8::from(broker.follower.pace() != Pace::Stopped);
    page.single("broker_follower_runs", "gauge", "Whether the follower runs.", runs);
}

fn clients(page: &mut Page, broker: &Broker) {
    let counters = &broker.counters;
    page.single("broker_connections", "gauge", "Connections.", broker.connections());
    let refused = counters.refused.load(Ordering::Relaxed);
    page.single("broker_refused_total", "counter", "Connections over the limit.", refused);
    let malformed = counters.malformed.load(Ordering::Relaxed);
    page.single("broker_malformed_total", "counter", "Frames that are no request.", malformed);
    let (_, sessions) = broker.groups.waiting();
    page.single("broker_groups", "gauge", "Consumer groups.", broker.groups.groups());
    page.single("broker_sessions", "gauge", "Members of groups.", sessions);
    let name = "broker_requests_total";
    page.family(name, "counter", "Requests, by kind.");
    for (api, count) in counters.requests() {
        page.sample(name, &format!("{{api=\"{:?}\"}}", api.key), count);
    }
}
