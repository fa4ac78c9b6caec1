//! Retries of failed registrations, with exponential backoff and jitter.
//!
//! ```text
//! cargo run --release -p tickwheel-services --bin retry
//! cargo run --release -p tickwheel-services --bin retry -- --check
//! ```
//!
//! A registry that fails on schedule, and services that register there over HTTP. The exit status
//! is 1 if one was not registered, was tried too early or too often, or blocked itself forever.

use backon::{BackoffBuilder, ExponentialBuilder};
use clap::Parser;
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_services::retry::registrar::{Event, Registrar, What};
use tickwheel_services::retry::registry::{Registry, Reply};

/// Services that fail all at once.
const WORKERS: usize = 200;
/// Tries after the first one.
const RETRIES: usize = 4;
/// How long anything may take before it is given up on.
const PATIENCE: Duration = Duration::from_secs(60);

/// Services that register at a flaky registry, over HTTP, and are tried again until it works.
#[derive(Debug, Parser)]
#[command(name = "retry")]
struct Options {
    /// The shortest wait before the first retry; each further one is twice as long
    #[arg(long, value_name = "MS", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60_000))]
    delay_ms: u64,

    /// Run briefly, with a delay of 40 ms
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.check {
        options.delay_ms = 40;
    }
    match run(Duration::from_millis(options.delay_ms)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("retry: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the registry's reply to a service's request.
fn script(service: &str, earlier: usize) -> Reply {
    let unavailable = match service {
        "orders" => 3,
        // All tries are in vain, and so is the first one after they were given up.
        "payments" => RETRIES + 2,
        "mail" if earlier == 0 => return Reply::Silence,
        "mail" => 0,
        _ => 1,
    };
    if earlier < unavailable { Reply::Unavailable } else { Reply::Registered }
}

fn run(delay: Duration) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let timer = Timer::builder().start()?;
    let registry = runtime.block_on(Registry::serve(script))?;
    let backoff = ExponentialBuilder::new()
        .with_min_delay(delay)
        .with_factor(2.0)
        .with_max_times(RETRIES)
        .with_jitter();
    let (sender, events) = channel();
    let limit = Duration::from_secs(5);
    let registrar = Registrar::new(&timer, registry.address(), limit, backoff, sender);

    let mut watch = Watch { start: Instant::now(), events, ends: BTreeMap::new() };
    println!("a wait of {delay:?} to {:?} before the first retry, then twice as long", 2 * delay);
    ["orders", "payments", "mail"].iter().for_each(|service| registrar.register(service));
    watch.until(What::Registered, &["orders", "mail"])?;
    watch.until(What::GaveUp, &["payments"])?;
    println!("payments was given up, and tries anew: the first try fails, the retry does not");
    registrar.register("payments");
    watch.until(What::Registered, &["payments"])?;

    println!("stock fails, and registers again before its retry: that one is cancelled");
    registrar.register("stock");
    watch.until(What::Failed, &["stock"])?;
    registrar.register("stock");
    watch.until(What::Registered, &["stock"])?;

    println!("{WORKERS} services fail at once");
    let workers: Vec<String> = (0..WORKERS).map(|number| format!("worker-{number}")).collect();
    workers.iter().for_each(|worker| registrar.register(worker));
    watch.until(What::Registered, &workers)?;
    verify(&registry, delay)?;
    match registrar.waiting() {
        0 => Ok(()),
        left => Err(format!("{left} retries are left behind").into()),
    }
}

/// Prints what happens, and waits for it.
struct Watch {
    start: Instant,
    events: Receiver<Event>,
    /// What has happened to each service last.
    ends: BTreeMap<String, What>,
}

impl Watch {
    /// Waits until this has happened to each of these services.
    fn until(&mut self, what: What, services: &[impl AsRef<str>]) -> Result<(), String> {
        let patience = Instant::now() + PATIENCE;
        let mut open: Vec<&str> = services.iter().map(AsRef::as_ref).collect();
        loop {
            open.retain(|service| self.ends.get(*service) != Some(&what));
            if open.is_empty() {
                return Ok(());
            }
            let left = patience.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left);
            let event = event.map_err(|_| format!("waited for {what:?} of {open:?}"))?;
            let at = event.at - self.start;
            if !event.service.starts_with("worker") {
                println!("{:>7} ms  {:9} {:?}", at.as_millis(), event.service, event.what);
            }
            self.ends.insert(event.service, event.what);
        }
    }
}

/// Looks at what the registry saw: how often each service came, and how long it waited.
fn verify(registry: &Registry, delay: Duration) -> Result<(), Box<dyn Error>> {
    let shortest: Vec<Duration> =
        ExponentialBuilder::new().with_min_delay(delay).with_max_times(RETRIES).build().collect();
    let (mut firsts, mut retries) = (Vec::new(), Vec::new());
    for (service, requests) in registry.requests() {
        let expected = match service.as_str() {
            "orders" => 4..=4,
            "payments" => RETRIES + 3..=RETRIES + 3,
            // The retry that is cancelled may be under way.
            "stock" => 2..=3,
            _ => 2..=2,
        };
        if !expected.contains(&requests.len()) {
            return Err(format!("{service} came {} times", requests.len()).into());
        }
        if service == "stock" {
            continue; // It came by itself.
        }
        for (pair, shortest) in requests.windows(2).zip(&shortest) {
            let waited = pair[1] - pair[0];
            if waited < *shortest {
                return Err(format!("{service} waited {waited:?}, and not {shortest:?}").into());
            }
        }
        if service.starts_with("worker") {
            firsts.push(requests[0]);
            retries.push(requests[1]);
        }
    }
    let (first, retry) = (spread(&firsts), spread(&retries));
    println!("they came within {first:.1?}, and thanks to the jitter again within {retry:.1?}");
    Ok(())
}

fn spread(times: &[Instant]) -> Duration {
    let ends = times.iter().max().zip(times.iter().min());
    ends.map_or(Duration::ZERO, |(last, first)| *last - *first)
}
