//! The command line: the options of Kafka's benchmark, and ours.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum, value_parser};
use std::time::Duration;

/// Kafka's own benchmark of the purgatory, with the same options, and with all the books kept.
///
/// One thread adds requests at random times, each watched on some keys. A request has a latency
/// drawn from a log-normal distribution: if that is less than the timeout, another thread completes
/// it at that time, otherwise it expires. Every request is accounted for: the exit status is 1 if
/// one ended early, twice or never, or if anything was left behind.
#[derive(Clone, Debug, Parser)]
#[command(name = "purgatory_load", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    pub(crate) num: u32,

    /// Requests per second
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    pub(crate) rate: u32,

    /// Timeout of a request
    #[arg(long, value_name = "MS", default_value_t = 200)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600_000))]
    timeout: u64,

    /// Median of the latency
    #[arg(long, value_name = "MS", default_value_t = 20.0, value_parser = positive)]
    pub(crate) pct50: f64,

    /// 75th percentile of the latency
    #[arg(long, value_name = "MS", default_value_t = 60.0, value_parser = positive)]
    pub(crate) pct75: f64,

    /// Keys of a request
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = value_parser!(u32).range(1..=10_000))]
    pub(crate) keys: u32,

    /// Different keys that there are; with --kafka 100 unless given
    ///
    /// As many as a large broker has partitions. At the rate, the latencies and the keys that are
    /// the defaults about three requests wait on each, as the two followers and a consumer of a
    /// partition do. A trigger checks all that wait on its key.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(default_value_if("kafka", "true", "100"))]
    #[arg(value_parser = value_parser!(u32).range(1..=100_000_000))]
    pub(crate) key_space_size: u32,

    /// How requests are completed
    #[arg(long, value_name = "HOW", value_enum, default_value_t = CompleteBy::Trigger)]
    #[arg(default_value_if("kafka", "true", "force"))]
    pub(crate) complete_by: CompleteBy,

    /// Kafka's own set-up: keys drawn once, for all requests, which are completed by force
    ///
    /// For figures that compare with those of Kafka's purgatory.
    #[arg(long, conflicts_with = "complete_by")]
    pub(crate) kafka: bool,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompleteBy {
    /// Make its condition true, and trigger one of its keys: each key once in a millisecond
    Trigger,
    /// Force it by its handle, as the original does
    Force,
}

impl Options {
    /// Parses the options of this process, which ends here if they make no sense.
    pub(crate) fn from_command_line() -> Self {
        let options = Options::parse();
        if options.pct75 < options.pct50 {
            let message = "--pct75 must not be less than --pct50";
            Options::command().error(ErrorKind::ValueValidation, message).exit();
        }
        options
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    pub(crate) fn timeout_nanos(&self) -> u64 {
        self.timeout * 1_000_000
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|error| error.to_string())?;
    // At least a nanosecond; at most what the timeout is limited to.
    if (1e-6..=3_600_000.0).contains(&number) { Ok(number) } else { Err("out of range".into()) }
}
