//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tickwheel_broker::{Limits, LongPoll, Terms};

/// A mini Kafka broker on tickwheel.
///
/// Fetches, produces and joins that must wait lie in purgatories, sessions are keyed timers, and
/// one timer expires them all. The log lies in memory and is gone at the end.
#[derive(Debug, Parser)]
#[command(name = "tickwheel-broker", verbatim_doc_comment)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Kafka's clients, until ctrl-C
    Serve(Serve),
    /// Park consumers, both ways, and print what their fetches cost and how late they are
    Load(Load),
    /// Send records that are to be delivered later, and print how late they come
    Delays(Delays),
    /// Send up to ten times more than the server can take, and print what becomes of others
    Overload(Overload),
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where Kafka's clients connect; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9092")]
    pub(crate) listen: SocketAddr,

    /// Where /metrics and /wheels are, and the follower is stopped
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    pub(crate) http: SocketAddr,

    /// Partitions of a new topic
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = value_parser!(i32).range(1..=1000))]
    partitions: i32,

    /// How a fetch waits for bytes
    #[arg(long, value_name = "WAY", default_value = "purgatory")]
    long_poll: Way,

    /// With --long-poll sleep: how long until it looks again
    #[arg(long, value_name = "MS", default_value_t = 50)]
    #[arg(value_parser = value_parser!(u64).range(1..=60_000))]
    pause_ms: u64,

    /// For how long a group's first rebalance waits for more members
    #[arg(long, value_name = "MS", default_value_t = 500)]
    #[arg(value_parser = value_parser!(u64).range(0..=60_000))]
    initial_rebalance_delay_ms: u64,

    /// How late the follower is
    #[arg(long, value_name = "MS", default_value_t = 0)]
    #[arg(value_parser = value_parser!(u64).range(0..=60_000))]
    follower_lag_ms: u64,

    /// Connections; what comes beyond is closed at once
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_connections: usize,

    /// The largest request, in bytes; the connection of a larger one is closed
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 20)]
    #[arg(value_parser = value_parser!(u32).range(1024..=1 << 30))]
    max_frame: u32,

    /// Bytes that all requests and answers, and what groups keep, may take together
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    #[arg(value_parser = value_parser!(u32).range(1 << 20..))]
    max_memory: u32,

    /// The largest batch of records, in bytes; a larger one is refused
    #[arg(long, value_name = "BYTES", default_value_t = (1 << 20) + 12)]
    #[arg(value_parser = value_parser!(u32).range(1024..=1 << 30))]
    max_message: u32,

    /// Idempotent producers whose last batches are known, in each partition that they write to
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    max_producers: u32,

    /// Requests that wait, sessions, and one more for each connection
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) max_pending: usize,

    /// Topics
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_topics: usize,

    /// Bytes of a partition's log; beyond this the oldest go
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    max_partition: u64,

    /// Consumer groups, and members of each
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_groups: usize,

    /// Log every connection, too
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// Each way has a server of its own, a process beside this one.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Consumers, each with a connection and a fetch that waits
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = value_parser!(u32).range(1..=20_000))]
    pub(crate) consumers: u32,

    /// Partitions that they share
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) partitions: u32,

    /// Produces in a second, to one partition after the other
    #[arg(long, value_name = "N", default_value_t = 50)]
    #[arg(value_parser = value_parser!(u32).range(1..=10_000))]
    pub(crate) produces: u32,

    /// max_wait of the fetches
    #[arg(long, value_name = "MS", default_value_t = 500)]
    #[arg(value_parser = value_parser!(i32).range(1..=60_000))]
    pub(crate) max_wait_ms: i32,

    /// How long each way is measured
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Draw the latencies into this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Delays {
    /// Records
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub(crate) records: u32,

    /// Over how long they are due
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Draw the lateness into this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Overload {
    /// How long each load lasts
    #[arg(long, value_name = "S", default_value_t = 10)]
    #[arg(value_parser = value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,

    /// Draw times and memory against the load into this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    Purgatory,
    Sleep,
}

impl Serve {
    pub(crate) fn terms(&self) -> Terms {
        let pause = Duration::from_millis(self.pause_ms);
        Terms {
            partitions: self.partitions,
            long_poll: match self.long_poll {
                Way::Purgatory => LongPoll::Purgatory,
                Way::Sleep => LongPoll::Sleep { pause },
            },
            initial_rebalance_delay: Duration::from_millis(self.initial_rebalance_delay_ms),
            follower_lag: Duration::from_millis(self.follower_lag_ms),
            limits: Limits {
                max_connections: self.max_connections,
                max_frame: self.max_frame as usize,
                max_memory: self.max_memory as usize,
                max_message: self.max_message as usize,
                max_producers: self.max_producers as usize,
                max_topics: self.max_topics,
                max_partition_bytes: self.max_partition,
                max_groups: self.max_groups,
                max_members: self.max_groups,
            },
        }
    }
}
