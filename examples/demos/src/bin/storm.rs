//! A million outstanding request timeouts on the real clock, with all the books kept.
//!
//! ```text
//! cargo run --profile bench -p demos --bin storm
//! cargo run --profile bench -p demos --bin storm -- --seconds 60 --threads 8 --json
//! ```
//!
//! Each thread plays an RPC server: it fills its share of the outstanding requests, then it answers
//! the oldest one (cancels its timeout) and takes a new one in, as fast as it can. One request in a
//! hundred is never answered, and a stream of short timers runs beside: those expire. Every timer
//! is entered into a ledger, so that one that fires early, twice or never is found for certain. The
//! exit status is 1 if there was one. A thread that only sleeps shows beside how late the machine
//! lets anybody be.

use clap::{Parser, value_parser};
use demos::ledger::{End, Ledger, Request};
use demos::{Lateness, Report, resident, watch};
use fastrand::Rng;
use std::error::Error;
use std::process::ExitCode;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};
use tickwheel::{Cancel, Stats, Timeout, Timer, TimerEntry};

/// The timeout of a request that will be answered.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Of a hundred requests, so many are answered.
const ANSWERED: u32 = 99;
/// Between two short timers of a thread.
const SHORT_PERIOD: Duration = Duration::from_micros(500);
/// What expires is pending for 1 to so many milliseconds.
const LONGEST_SHORT_MS: u64 = 100;
/// How many timers of a thread may wait to expire at once.
const POOL: usize = 1 << 16;

/// A million outstanding request timeouts on the real clock.
///
/// The exit status is 1 if a timer fired early, twice, or was lost.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// Threads that add and cancel
    #[arg(long, value_name = "N", default_value_t = cores())]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// Requests outstanding at any time, over all threads
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(default_value_if("check", "true", "100000"))]
    #[arg(value_parser = value_parser!(u32).range(1024..=1_000_000_000))]
    outstanding: u32,

    /// How long the storm lasts
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(default_value_if("check", "true", "1"))]
    #[arg(value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Run briefly: for a second, with 100,000 outstanding, unless told otherwise
    #[arg(long)]
    check: bool,

    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

fn cores() -> u32 {
    available_parallelism().map_or(1, |cores| cores.get() as u32)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = Options::parse();
    let threads = options.threads as usize;
    let share = options.outstanding as usize / threads;
    let ledger = Ledger::open(threads * (share + POOL));
    let expire = move |request| _ = ledger.end(request, End::Expired);
    let timer = Timer::builder()
        .name("storm-reaper")
        .executor(expire)
        .start()?;
    let clients = (0..threads).map(|number| Client::new(&timer, ledger, number, share));
    let mut clients: Vec<_> = clients.collect();

    let start = Instant::now();
    let empty = resident();
    on_threads(&mut clients, Client::fill);
    let filled_in = start.elapsed();
    let grown = resident().saturating_sub(empty);
    let filled = timer.stats();
    let start = Instant::now();
    let end = start + Duration::from_secs(options.seconds);
    let bare_sleep = Lateness::default();
    thread::scope(|scope| {
        scope.spawn(|| only_sleep(end, &bare_sleep));
        scope.spawn(|| on_threads(&mut clients, |client| client.storm(end)));
        let state = || format!("{} pending, {} expired", timer.len(), timer.stats().expired);
        watch(
            || Instant::now() >= end,
            || operations(&timer.stats()),
            state,
        );
    });
    let seconds = start.elapsed().as_secs_f64();
    let stormed = timer.stats();

    let overdue = ledger.wait_for_those_due(Instant::now());
    for entry in timer.shutdown() {
        ledger.end(entry.into_task(), End::Returned);
    }
    let mut report = Report::default();
    let outstanding = (share * threads) as f64;
    report.count("threads", threads as u64, "");
    let rate = (operations(&stormed) - operations(&filled)) as f64 / seconds;
    report.figure(
        "operations_per_s",
        rate,
        "adds and cancels of all threads, each add timed",
    );
    report.figure("fill_adds_per_s", outstanding / filled_in.as_secs_f64(), "");
    report.figure(
        "bytes_per_timer",
        grown as f64 / outstanding,
        "resident, with its handle",
    );
    report.quantiles(
        "lateness_us",
        ledger.lateness.quantiles(),
        "until the task runs",
    );
    report.quantiles(
        "bare_sleep_us",
        bare_sleep.quantiles(),
        "of a thread that only sleeps",
    );
    ledger.report(&mut report);
    report.none("overdue", overdue, "a minute after the storm");
    tell_of_clients(&mut report, &clients);
    let last = timer.stats();
    let counts = [stormed.cancelled, last.expired, last.returned];
    let agrees =
        counts == [End::Cancelled, End::Expired, End::Returned].map(|end| ledger.ended(end));
    report.require(agrees, "stats() does not agree with the ledger");
    Ok(report.print(options.json))
}

/// Reports what the clients met, all together.
fn tell_of_clients(report: &mut Report, clients: &[Client<'_>]) {
    let longest = clients.iter().map(|client| client.longest_add).max();
    report.figure(
        "add_max_us",
        longest.unwrap_or_default().as_secs_f64() * 1e6,
        "by the clock, preempted or not",
    );
    let sum = |of: fn(&Client<'_>) -> u64| clients.iter().map(of).sum();
    report.none(
        "refused",
        sum(|client| client.refused),
        "by add, which had no reason to",
    );
    report.count(
        "held_back",
        sum(|client| client.held_back),
        "too many waited to expire",
    );
}

fn operations(stats: &Stats) -> u64 {
    stats.added + stats.cancelled
}

fn on_threads<'a>(clients: &mut [Client<'a>], run: impl Fn(&mut Client<'a>) + Sync) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| run(client));
        }
    });
}

/// Sleeps from one millisecond to the next. It is late for each that it slept through, as timers of
/// that millisecond would be.
fn only_sleep(until: Instant, lateness: &Lateness) {
    let mut due = Instant::now();
    while due < until {
        due += Duration::from_millis(1);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        lateness.record(due.elapsed().as_nanos() as u64);
    }
}

/// One thread's requests, added and cancelled as fast as it can.
struct Client<'a> {
    timer: &'a Timer<Request>,
    ledger: &'static Ledger,
    random: Rng,
    /// The requests that will be answered, as a ring: the oldest is the next one.
    requests: Vec<Option<Timeout<Request>>>,
    next_request: usize,
    next_in_pool: usize,
    /// The first one's in the ledger; behind those are the slots of the pool.
    first_slot: usize,
    refused: u64,
    held_back: u64,
    longest_add: Duration,
    /// The clock, as last read.
    now: Instant,
}

impl<'a> Client<'a> {
    /// Allocates and touches all memory that the client needs.
    fn new(
        timer: &'a Timer<Request>,
        ledger: &'static Ledger,
        number: usize,
        share: usize,
    ) -> Self {
        Client {
            timer,
            ledger,
            random: Rng::with_seed(number as u64),
            requests: (0..share).map(|_| None).collect(),
            next_request: 0,
            next_in_pool: 0,
            first_slot: number * (share + POOL),
            refused: 0,
            held_back: 0,
            longest_add: Duration::ZERO,
            now: Instant::now(),
        }
    }

    /// Takes in requests until its share is outstanding.
    fn fill(&mut self) {
        (0..self.requests.len()).for_each(|_| self.exchange());
    }

    /// Answers old requests and takes in new ones, until the end.
    fn storm(&mut self, end: Instant) {
        let mut next_short = Instant::now();
        while self.now < end {
            if self.random.u32(0..100) < ANSWERED {
                self.exchange();
            } else {
                self.leave();
            }
            if next_short <= self.now {
                next_short += SHORT_PERIOD;
                self.leave();
            }
        }
    }

    /// Answers the oldest request, and takes in one that will be answered in its turn.
    fn exchange(&mut self) {
        let place = self.next_request;
        self.next_request = (place + 1) % self.requests.len();
        if let Some(timeout) = self.requests[place].take() {
            // It has expired if timeouts are shorter than the turn.
            if let Cancel::Cancelled(request) = timeout.cancel() {
                self.ledger.end(request, End::Cancelled);
            }
        }
        self.requests[place] = self.add(self.first_slot + place, TIMEOUT);
    }

    /// Adds a timer that nobody will cancel: a request that stays unanswered, or a short timer.
    fn leave(&mut self) {
        let slot = self.first_slot + self.requests.len() + self.next_in_pool;
        self.next_in_pool = (self.next_in_pool + 1) % POOL;
        let timeout = Duration::from_micros(self.random.u64(1000..=1000 * LONGEST_SHORT_MS));
        let _ = self.add(slot, timeout); // Without the handle: that leaves the timer alone.
    }

    /// Adds a timer and takes the time of that. Returns `None` if the slot is still taken.
    fn add(&mut self, slot: usize, timeout: Duration) -> Option<Timeout<Request>> {
        let before = Instant::now();
        self.now = before;
        let Some(request) = self.ledger.enter(slot, before + timeout) else {
            self.held_back += 1;
            thread::yield_now();
            return None;
        };
        let added = self.timer.add(TimerEntry::at(before + timeout, request));
        self.now = Instant::now();
        self.longest_add = self.longest_add.max(self.now - before);
        match added {
            Ok(timeout) => Some(timeout),
            Err(error) => {
                self.ledger
                    .end(error.into_entry().into_task(), End::Returned);
                self.refused += 1;
                None
            }
        }
    }
}
