//! A million outstanding request timeouts on the real clock, with all the books kept.
//!
//! ```text
//! cargo run --release -p demos --bin storm
//! cargo run --release -p demos --bin storm -- --seconds 60 --threads 8 --json
//! ```
//!
//! Each thread plays an RPC server: it fills its share of the outstanding requests, then it answers
//! the oldest one (cancels its timeout) and takes a new one in, as fast as it can. One request in a
//! hundred is never answered, and a stream of short timers runs beside: those expire. Every timer
//! is entered into a ledger, so that one that fires early, twice or never is found for certain. The
//! exit status is 1 if there was one. A thread that only sleeps shows beside how late the machine
//! lets anybody be.

mod client;
mod options;
mod progress;
mod report;
mod scheduling;

use client::{Client, Tally};
use demos::ledger::{Ledger, Request};
use demos::memory;
use demos::progress::Progress;
use options::Options;
use report::{Measured, Report};
use scheduling::Scheduling;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tickwheel::{Timer, When};

/// How long the last timers may take to expire before they are given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who is returned by `shutdown` so long after its deadline was forgotten by the timer.
const OVERDUE: Duration = Duration::from_secs(1);
const REAPER: &str = "storm-reaper";

fn main() -> ExitCode {
    let options = Options::from_command_line();
    match storm(&options) {
        Ok(report) => {
            let text = if options.json { report.to_json() } else { report.to_string() };
            // Nobody may be listening any more: the exit status tells all the same.
            let _ = writeln!(std::io::stdout(), "{text}");
            ExitCode::from(u8::from(!report.is_clean()))
        }
        Err(error) => {
            eprintln!("storm: {error}");
            ExitCode::from(2)
        }
    }
}

fn storm(options: &Options) -> Result<Report, Box<dyn Error>> {
    let threads = options.threads();
    let slots = options.outstanding() + threads * options.pool();
    let ledger = Arc::new(Ledger::new(u32::try_from(slots).map_err(|_| "too many timers")?));
    let timer = start_timer(options, &ledger)?;
    let progress = Progress::default();

    let crew = Crew::start(options, &timer, &ledger)?;
    let resident = memory::resident();
    let filling = Instant::now();
    crew.go(filling)?;
    crew.wait_until_ready()?;
    let filled_in = filling.elapsed();
    // What has expired already weighs nothing.
    let is_full = timer.len() == options.outstanding();
    let grown = memory::resident().zip(resident).filter(|_| is_full);
    let grown = grown.map(|(after, before)| after.saturating_sub(before));
    progress.line(&format!("{} timers outstanding, after {filled_in:.2?}", timer.len()));

    let scheduled = Scheduling::of(REAPER);
    let start = Instant::now();
    let until = start + options.seconds();
    let builder = thread::Builder::new().name("storm-sleeper".to_owned());
    let sleeper = builder.spawn(move || scheduling::bare_sleep(until))?;
    crew.go(until)?;
    progress::watch(&progress, &timer, start, options.seconds.into());
    let tallies = crew.join()?;
    let reaper = Scheduling::of(REAPER).since(scheduled);
    let bare_sleep = sleeper.join().map_err(|_| "a thread has died")?;
    wait_for_pools(options, &ledger);

    progress.line(&format!("idle for {:?}, {} timers pending", options.idle(), timer.len()));
    let woken = timer.stats().wakeups;
    thread::sleep(options.idle());
    let idle_wakeups = timer.stats().wakeups - woken;
    let snapshot = timer.snapshot();

    let (returned, overdue) = shut_down(&timer, &ledger, options.tick());
    let stats = timer.stats();
    let tally = Tally::total(tallies);
    let measured = Measured {
        filled_in,
        grown,
        bare_sleep,
        reaper,
        idle_wakeups,
        returned,
        overdue,
        snapshot,
        stats,
    };
    Ok(Report::new(options, &ledger, &tally, measured))
}

fn start_timer(options: &Options, ledger: &Arc<Ledger>) -> Result<Timer<Request>, Box<dyn Error>> {
    let ledger = Arc::clone(ledger);
    let mut builder = Timer::builder()
        .name(REAPER)
        .tick(options.tick())
        .wheel_size(options.wheel_size)
        .executor(move |request| ledger.expire(request));
    if let Some(shards) = options.shards {
        builder = builder.shards(shards);
    }
    Ok(builder.start()?)
}

/// The client threads. They take two steps, each when told to: they fill, and they storm. Each has
/// channels of its own, so that one that panics ends the program instead of leaving it waiting.
struct Crew(Vec<Member>);

struct Member {
    /// Tells it to take the next step, and until when.
    go: mpsc::Sender<Instant>,
    ready: mpsc::Receiver<()>,
    thread: JoinHandle<Tally>,
}

impl Crew {
    /// Starts the threads, and waits until each has allocated what it needs.
    fn start(
        options: &Options,
        timer: &Timer<Request>,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut members = Vec::new();
        for number in 0..options.threads() {
            let (go, orders) = mpsc::channel();
            let (report, ready) = mpsc::channel();
            let (options, timer, ledger) = (options.clone(), timer.clone(), Arc::clone(ledger));
            let run = move || {
                let mut client = Client::new(&options, timer, ledger, number);
                let _ = report.send(());
                if orders.recv().is_ok() {
                    client.fill();
                    let _ = report.send(());
                }
                // No order is coming if another thread has failed.
                orders.recv().map_or_else(|_| Tally::default(), |until| client.storm(until))
            };
            let builder = thread::Builder::new().name(format!("storm-{number}"));
            members.push(Member { go, ready, thread: builder.spawn(run)? });
        }
        let crew = Crew(members);
        crew.wait_until_ready()?;
        Ok(crew)
    }

    fn go(&self, until: Instant) -> Result<(), Box<dyn Error>> {
        let each = |member: &Member| member.go.send(until).map_err(|_| "a thread has died".into());
        self.0.iter().try_for_each(each)
    }

    fn wait_until_ready(&self) -> Result<(), Box<dyn Error>> {
        let each = |member: &Member| member.ready.recv().map_err(|_| "a thread has died".into());
        self.0.iter().try_for_each(each)
    }

    fn join(self) -> Result<Vec<Tally>, Box<dyn Error>> {
        let join = |member: Member| member.thread.join().map_err(|_| "a thread has died".into());
        self.0.into_iter().map(join).collect()
    }
}

/// Waits until all short timers have expired, so that only far ones are left.
fn wait_for_pools(options: &Options, ledger: &Ledger) {
    let give_up = Instant::now() + options.longest_short() + options.tick() + PATIENCE;
    let is_pending = || {
        (0..options.threads()).any(|number| ledger.pending(client::pool_of(options, number)) > 0)
    };
    while is_pending() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Shuts the timer down. Returns how many timers it returned, and how many of them should have
/// expired.
fn shut_down(timer: &Timer<Request>, ledger: &Ledger, tick: Duration) -> (u64, u64) {
    let (mut returned, mut overdue) = (0, 0);
    for entry in timer.shutdown() {
        let limit = Instant::now().checked_sub(OVERDUE + tick);
        overdue += u64::from(matches!(entry.when(), When::At(deadline) if Some(deadline) < limit));
        returned += u64::from(ledger.settle(entry.into_task()));
    }
    (returned, overdue)
}
