//! Locks in a real Redis, renewed in batches, and what becomes of them when things stop.
//!
//! ```text
//! cargo run --release -p tickwheel-services --bin lock_watchdog
//! cargo run --release -p tickwheel-services --bin lock_watchdog -- --check
//! ```
//!
//! Two processes hold 10,000 locks each, on one timer. One is stopped for longer than its leases:
//! when it goes on it must be told of the loss of each lock, once. Then Redis is restarted: the
//! other process must keep all of its locks. The exit status is 1 if it was otherwise.

use clap::{Parser, Subcommand};
use redis::RedisResult;
use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use tickwheel_services::locks::holder::{self, Holder, Orders, Report, lock_name};
use tickwheel_services::locks::server::RedisServer;
use tickwheel_services::timeline::Timeline;

/// How long anything may take before it is given up on.
const PATIENCE: Duration = Duration::from_secs(60);
/// Locks of the stopped process that a rival takes.
const STOLEN: u32 = 10;

/// Locks in Redis that a watchdog renews while they are held. Needs `redis-server`.
#[derive(Debug, Parser)]
#[command(name = "lock_watchdog")]
struct Options {
    /// Locks that each of the two processes holds
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(STOLEN)..=1_000_000))]
    locks: u32,

    /// How long a lock lasts unrenewed; it is renewed three times as often
    #[arg(long, value_name = "MS", default_value_t = 9000)]
    #[arg(value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    lease_ms: u64,

    /// Run briefly, with leases of 3 s
    #[arg(long)]
    check: bool,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// What the program tells itself
    #[command(hide = true)]
    Hold(Orders),
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.check {
        options.lease_ms = 3000;
    }
    let done = match options.role {
        Some(Role::Hold(orders)) => holder::hold(orders),
        None => Scene::start(options.locks, Duration::from_millis(options.lease_ms))
            .and_then(Scene::play),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock_watchdog: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Scene {
    locks: u32,
    period: Duration,
    timeline: Timeline,
    server: RedisServer,
    /// The process that is stopped.
    first: Holder,
    other: Holder,
    /// What they had reported when the last line was printed.
    printed: [Report; 2],
}

impl Scene {
    fn start(locks: u32, lease: Duration) -> Result<Self, Box<dyn Error>> {
        let server = RedisServer::start()?;
        let (program, socket) = (env::current_exe()?, server.socket());
        let holder = |name| Holder::start(&program, &socket, name, locks, lease);
        let (first, other) = (holder("first")?, holder("other")?);
        let (period, printed) = (lease / 3, <[Report; 2]>::default());
        println!("two processes take {locks} locks each, for {lease:?}, renewed every {period:?}");
        let columns = "  held   lost renewed calls failed";
        println!("{:12}{:36}other", "", "first");
        println!("{:10}{columns}  {columns}", "");
        Ok(Scene { locks, period, timeline: Timeline::begin(), server, first, other, printed })
    }

    fn play(mut self) -> Result<(), Box<dyn Error>> {
        let all = self.locks as usize;
        let twice = 2 * all as u64;
        self.until("both have renewed", |first, other| {
            first.held == all && first.renewed >= twice && other.renewed >= twice
        })?;

        self.timeline.say("SIGSTOP for the first process: its leases run out");
        self.signal(Signal::STOP)?;
        self.wait("its locks expire", |scene| Ok(scene.locks_of("first")? == 0))?;
        self.steal()?;
        self.timeline.say("a rival has taken some of its locks; SIGCONT");
        self.signal(Signal::CONT)?;
        self.until("the first has lost all", |first, _| (first.held, first.lost) == (0, all))?;

        self.timeline.say("Redis is stopped");
        self.server.stop()?;
        self.until("renewals fail", |_, other| other.failed > 0)?;
        self.server.restart()?;
        self.timeline.say("Redis is back");
        let target = self.other.report().renewed + twice;
        self.until("the other has renewed", |_, other| other.renewed >= target)?;
        self.timeline.say("they give back what they hold");
        self.verify()
    }

    fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        let pid = Pid::from_raw(self.first.id() as i32).ok_or("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits until the reports of both are so.
    fn until(
        &mut self,
        what: &str,
        so: impl Fn(Report, Report) -> bool,
    ) -> Result<(), Box<dyn Error>> {
        self.wait(what, |scene| Ok(so(scene.first.report(), scene.other.report())))
    }

    /// Prints the state once a period until it is as wanted.
    fn wait(
        &mut self,
        what: &str,
        so: impl Fn(&Self) -> RedisResult<bool>,
    ) -> Result<(), Box<dyn Error>> {
        let end = Instant::now() + PATIENCE;
        let mut next_line = Instant::now() + self.period;
        while !so(self)? {
            let now = Instant::now();
            if now > end {
                return Err(format!("waited in vain until {what}").into());
            }
            if now >= next_line {
                self.say_reports();
                next_line += self.period;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.say_reports();
        Ok(())
    }

    /// Prints what is held and lost, and the renewals since the last line.
    fn say_reports(&mut self) {
        let now = [self.first.report(), self.other.report()];
        let columns = |Report { held, lost, renewed, calls, failed, .. }, before: Report| {
            let renewals = (renewed - before.renewed, calls - before.calls, failed - before.failed);
            format!("{held:6} {lost:6} {:7} {:5} {:6}", renewals.0, renewals.1, renewals.2)
        };
        let [first, other] = [0, 1].map(|holder| columns(now[holder], self.printed[holder]));
        self.timeline.say(format!("{first}  {other}"));
        self.printed = now;
    }

    /// Returns how many of a holder's locks are taken, by whichever process.
    fn locks_of(&self, holder: &str) -> RedisResult<u32> {
        // Not DBSIZE: that counts what has expired, until Redis comes across it.
        let names: Vec<String> = (0..self.locks).map(|number| lock_name(holder, number)).collect();
        redis::cmd("EXISTS").arg(names).query(&mut self.server.client().get_connection()?)
    }

    /// Takes locks that have run out, for longer than anything lasts here.
    fn steal(&self) -> RedisResult<()> {
        let mut connection = self.server.client().get_connection()?;
        (0..STOLEN).try_for_each(|number| {
            let mut set = redis::cmd("SET");
            set.arg(lock_name("first", number)).arg("rival").arg("NX").arg("EX").arg(3600);
            set.exec(&mut connection)
        })
    }

    /// Verifies that each lock of the first process was lost once, none of the other's, and that
    /// nobody has touched the rival's.
    fn verify(self) -> Result<(), Box<dyn Error>> {
        let mut connection = self.server.client().get_connection()?;
        let (first, other) = (self.first.end()?, self.other.end()?);
        let ends = |report: Report| (report.lost, report.lost_twice, report.unlocked);
        let all = self.locks as usize;
        if [ends(first), ends(other)] != [(all, 0, Some(0)), (0, 0, Some(all))] {
            return Err(format!("first: {first:?}, other: {other:?}").into());
        }
        for number in 0..STOLEN {
            let name = lock_name("first", number);
            let token: Option<String> = redis::cmd("GET").arg(&name).query(&mut connection)?;
            if token.as_deref() != Some("rival") {
                return Err(format!("{name} is the rival's, and not {token:?}").into());
            }
        }
        let left: u32 = redis::cmd("DBSIZE").query(&mut connection)?;
        if left == STOLEN { Ok(()) } else { Err(format!("{left} locks are left").into()) }
    }
}
