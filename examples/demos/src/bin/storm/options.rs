//! The command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, value_parser};
use std::thread::available_parallelism;
use std::time::Duration;

/// Slots that each thread has at least for timers that are to expire.
const SMALLEST_POOL: u64 = 1 << 16;
const LARGEST_POOL: u64 = 1 << 22;

/// A million outstanding request timeouts on the real clock.
///
/// Each thread plays an RPC server: it keeps its share of the outstanding requests, answers the
/// oldest (cancels its timeout) and takes a new one in, as fast as it can. Some requests are never
/// answered, and a stream of short timers runs beside: those expire, and it is measured how late,
/// beside how late a thread wakes that only sleeps for a millisecond at a time. Every timer is
/// accounted for: the exit status is 1 if one fired early, twice, or was lost.
#[derive(Clone, Debug, Parser)]
#[command(name = "storm", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Threads that add and cancel [default: number of cores]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,

    /// Requests outstanding at any time, over all threads
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000_000))]
    outstanding: u32,

    /// How long the storm lasts
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,

    /// How long the idle timer is watched afterwards
    #[arg(long, value_name = "S", default_value_t = 2)]
    #[arg(value_parser = value_parser!(u32).range(1..=86_400))]
    idle_seconds: u32,

    /// How finely the timer tells deadlines apart
    #[arg(long, value_name = "US", default_value_t = 1000)]
    #[arg(value_parser = value_parser!(u64).range(1..=60_000_000))]
    pub(crate) tick_us: u64,

    /// Slots of each wheel
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) wheel_size: usize,

    /// Parts of the timer with a lock each [default: up to the library]
    #[arg(long, value_name = "N")]
    pub(crate) shards: Option<usize>,

    /// The timeout of a request that will be answered
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    #[arg(value_parser = value_parser!(u64).range(1..=86_400_000))]
    timeout_ms: u64,

    /// Of 100 requests, so many are answered; the others expire
    #[arg(long, value_name = "N", default_value_t = 99)]
    #[arg(value_parser = value_parser!(u64).range(0..=100))]
    pub(crate) cancelled_percent: u64,

    /// Short timers that each thread adds per second
    #[arg(long, value_name = "N", default_value_t = 2000)]
    #[arg(value_parser = value_parser!(u64).range(0..=10_000_000))]
    pub(crate) short_per_second: u64,

    /// The longest short timeout; the shortest is 1 ms
    #[arg(long, value_name = "MS", default_value_t = 100)]
    #[arg(value_parser = value_parser!(u64).range(1..=60_000))]
    short_ms: u64,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// Parses the options of this process, which ends here if they make no sense.
    pub(crate) fn from_command_line() -> Self {
        let options = Options::parse();
        if options.threads.is_some_and(|threads| threads > options.outstanding) {
            let message = "--threads must not be more than --outstanding";
            Options::command().error(ErrorKind::ValueValidation, message).exit();
        }
        options
    }

    pub(crate) fn threads(&self) -> usize {
        let cores = || available_parallelism().map_or(1, usize::from).min(self.outstanding());
        self.threads.map_or_else(cores, |threads| threads as usize)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding as usize
    }

    pub(crate) fn seconds(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    pub(crate) fn idle(&self) -> Duration {
        Duration::from_secs(self.idle_seconds.into())
    }

    pub(crate) fn tick(&self) -> Duration {
        Duration::from_micros(self.tick_us)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub(crate) fn longest_short(&self) -> Duration {
        Duration::from_millis(self.short_ms)
    }

    /// Returns how many timers of a thread may wait to expire at once.
    pub(crate) fn pool(&self) -> usize {
        let streamed = 2 * self.short_per_second * self.short_ms / 1000;
        (SMALLEST_POOL + streamed).min(LARGEST_POOL) as usize
    }
}
