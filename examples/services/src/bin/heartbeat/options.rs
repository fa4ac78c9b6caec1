//! The command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, value_parser};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;
use tickwheel_services::heartbeat::Terms;

/// Thousands of TCP connections that notice when the other end dies, or just falls silent.
///
/// A server and its clients are processes of their own, and send heartbeats when they have nothing
/// else to say. Client 1 is stopped and client 2 is killed: the server has to notice exactly
/// these. Client 1 goes on, then the server is stopped: all clients have to notice. The exit status
/// is 1 if anybody noticed too early, too late, or what was not so.
#[derive(Clone, Debug, Parser)]
#[command(name = "heartbeat", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Connections, over all clients
    #[arg(long, value_name = "N", default_value_t = 2000, global = true)]
    #[arg(value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,

    /// Client processes
    #[arg(long, value_name = "N", default_value_t = 4, global = true)]
    #[arg(value_parser = value_parser!(u32).range(3..=100))]
    pub(crate) clients: u32,

    /// An end that has written nothing for so long sends a heartbeat
    #[arg(long, value_name = "MS", default_value_t = 1000, global = true)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600_000))]
    heartbeat_ms: u64,

    /// An end that has read nothing for so long gives up [default: 3 heartbeats]
    #[arg(long, value_name = "MS", global = true)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600_000))]
    idle_ms: Option<u64>,

    /// Be brief: 200 connections, heartbeats of 300 ms, silence of 2100 ms
    #[arg(long)]
    pub(crate) check: bool,

    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// What a process of the crew is.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Role {
    #[command(hide = true)]
    Server,
    #[command(hide = true)]
    Client { number: u32, server: SocketAddr },
}

impl Options {
    /// Parses the options of this process, which ends here if they make no sense.
    pub(crate) fn from_command_line() -> Self {
        let mut options = Options::parse();
        if options.check {
            // Seven heartbeats long: a machine that is busy with other things is no silent peer.
            (options.connections, options.heartbeat_ms) = (200, 300);
            options.idle_ms = Some(2100);
        }
        let Terms { heartbeat, idle_timeout } = options.terms();
        if idle_timeout < 2 * heartbeat {
            let message = "--idle-ms must be at least twice --heartbeat-ms";
            Options::command().error(ErrorKind::ValueValidation, message).exit();
        }
        options
    }

    pub(crate) fn terms(&self) -> Terms {
        let heartbeat = Duration::from_millis(self.heartbeat_ms);
        let idle_timeout = self.idle_ms.map_or(3 * heartbeat, Duration::from_millis);
        Terms { heartbeat, idle_timeout }
    }

    /// Returns the connections of a client.
    pub(crate) fn connections_of(&self, client: u32) -> Range<u32> {
        let share = |client: u32| {
            (u64::from(self.connections) * u64::from(client) / u64::from(self.clients)) as u32
        };
        share(client)..share(client + 1)
    }

    /// Returns the command line of a process of the crew.
    pub(crate) fn arguments(&self, role: Role) -> Vec<String> {
        let Terms { heartbeat, idle_timeout } = self.terms();
        let (number, server) = match role {
            Role::Server => (None, None),
            Role::Client { number, server } => (Some(number), Some(server)),
        };
        let name = if number.is_some() { "client" } else { "server" };
        let options = [
            format!("--connections={}", self.connections),
            format!("--clients={}", self.clients),
            format!("--heartbeat-ms={}", heartbeat.as_millis()),
            format!("--idle-ms={}", idle_timeout.as_millis()),
            name.to_owned(),
        ];
        let number = number.map(|number| number.to_string());
        let server = server.map(|server| server.to_string());
        options.into_iter().chain(number).chain(server).collect()
    }
}
