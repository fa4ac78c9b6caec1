//! Thousands of TCP connections that notice when the other end dies, or just falls silent.
//!
//! ```text
//! cargo run --release -p tickwheel-services --bin heartbeat
//! cargo run --release -p tickwheel-services --bin heartbeat -- --connections 10000
//! ```
//!
//! A server and its clients are processes of their own. One client is stopped, one is killed, and
//! at last the server is stopped; then it is told who noticed what, and when. The exit status is 1
//! if a connection was given up that was alive, or too early, or one that was not alive was kept.

#![forbid(unsafe_code)]

mod crew;
mod ledger;
mod options;
mod process;
mod scenario;

use options::{Options, Role};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::from_command_line();
    let result = match options.role {
        None => scenario::play(&options),
        Some(Role::Server) => process::serve(&options),
        Some(Role::Client { number, server }) => process::connect(&options, number, server),
    };
    let _ = result.as_ref().inspect_err(|error| eprintln!("heartbeat: {error}"));
    ExitCode::from(u8::from(result.is_err()))
}
