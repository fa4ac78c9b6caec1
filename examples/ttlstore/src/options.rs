//! The command line.

use clap::Parser;
use std::net::IpAddr;
use std::time::Duration;
use tickwheel_ttlstore::memory::Policy;
use tickwheel_ttlstore::request::Limits;
use tickwheel_ttlstore::shared::Bounds;

/// A server for Redis' clients whose keys vanish on time.
///
/// Strings with a time to live, in memory. Try it: redis-cli -p 6380 set key value px 1500
#[derive(Debug, Parser)]
#[command(name = "ttlstore")]
pub(crate) struct Options {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) bind: IpAddr,
    /// The port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 6380)]
    pub(crate) port: u16,
    /// Tells the timers' figures at this port: to Prometheus under /metrics, to tickwheel-top under
    /// /wheels
    #[arg(long)]
    pub(crate) stats_port: Option<u16>,
    /// Threads that serve connections; the timer has one of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Connections at a time
    #[arg(long, default_value_t = 10_000)]
    max_clients: usize,
    /// Bytes of a request
    #[arg(long, default_value_t = 8 << 20)]
    max_request_bytes: usize,
    /// Words of a request
    #[arg(long, default_value_t = 1 << 16)]
    max_request_words: usize,
    /// Bytes of the replies to a command or a transaction; a connection with more is cut
    #[arg(long, default_value_t = 64 << 20)]
    max_reply_bytes: usize,
    /// Bytes of events that a subscriber may lie behind
    #[arg(long, default_value_t = 32 << 20)]
    max_backlog_bytes: usize,
    /// Bytes of requests and replies in all connections, beyond 64 KiB each; when there are more,
    /// the connections that hold most are cut
    #[arg(long, default_value_t = 512 << 20)]
    max_held_bytes: usize,
    /// Seconds for which a client may take nothing of what is written to it
    #[arg(long, default_value_t = 60)]
    max_stall_seconds: u64,
    /// Bytes that keys and values may take, or 0 for any number
    #[arg(long, default_value_t = 0)]
    maxmemory: usize,
    /// Which keys go when they take more: none (noeviction), or some that would expire soon
    /// (volatile-ttl)
    #[arg(long, default_value_t = Policy::NoEviction)]
    maxmemory_policy: Policy,
    /// Keys at a time
    #[arg(long, default_value_t = 100_000_000)]
    pub(crate) max_keys: usize,
    /// Logs each connection
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

impl Options {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            max_clients: self.max_clients,
            request: Limits { max_frame: self.max_request_bytes, max_args: self.max_request_words },
            max_reply: self.max_reply_bytes,
            max_backlog: self.max_backlog_bytes,
            max_held: self.max_held_bytes,
            max_stall: Duration::from_secs(self.max_stall_seconds),
            max_memory: self.maxmemory,
            policy: self.maxmemory_policy,
        }
    }
}
