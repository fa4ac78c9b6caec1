//! Calls to slow, silent, stuck and dead servers over TCP: each ends exactly once, and in time.
//!
//! ```text
//! cargo run --release -p tickwheel-services --bin rpc_timeout
//! cargo run --release -p tickwheel-services --bin rpc_timeout -- --seconds 60 --callers 10000
//! ```
//!
//! First it shows each way in which a call ends, one after the other; then it calls as fast as it
//! can. The exit status is 1 if a call ended in a wrong way or too early, or was left over.

#![forbid(unsafe_code)]

mod load;
mod options;
mod scenario;
mod servers;

use options::Options;
use std::error::Error;
use std::process::ExitCode;
use tickwheel::Timer;
use tickwheel_services::timeline::Timeline;

fn main() -> ExitCode {
    let result = run(&Options::from_command_line());
    let _ = result.as_ref().inspect_err(|error| eprintln!("rpc_timeout: {error}"));
    ExitCode::from(u8::from(result.is_err()))
}

/// Runs everything on one timer; tokio has the sockets, and no timers.
fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let timer = Timer::builder().start()?;
    let timeline = Timeline::begin();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        scenario::play(&timer, &timeline).await?;
        load::run(&timer, &timeline, options).await
    })?;
    drop(runtime); // And with it what the servers are at.
    timeline.say(format!("{} timers are left", timer.len()));
    require(timer.is_empty(), "timers are left of calls that have ended")?;
    timeline.say("all as it must be");
    Ok(())
}

fn require(holds: bool, otherwise: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
