//! The cores of the programs in `src/bin`, which tests run as well; and what those share: a time
//! line, patience, and a `redis-server` of one's own.

#![forbid(unsafe_code)]

pub mod heartbeat;
#[cfg(feature = "redis")]
pub mod locks;
#[cfg(feature = "redis")]
mod redis_server;
#[cfg(feature = "retry")]
pub mod retry;
pub mod rpc;

#[cfg(feature = "redis")]
pub use redis_server::RedisServer;
use std::env;
use std::fmt::Display;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// Returns whether a program is to be brief: with `--check`, its only option.
pub fn is_check() -> Result<bool, &'static str> {
    let mut options = env::args_os().skip(1);
    match (options.next(), options.next()) {
        (None, _) => Ok(false),
        (Some(option), None) if option == "--check" => Ok(true),
        _ => Err("the only option is --check, with which the program is brief"),
    }
}

/// What has not happened by then will not happen, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a program prints: what has happened, and when.
pub struct Timeline(Instant);

impl Timeline {
    /// Begins now.
    pub fn begin() -> Self {
        Timeline(Instant::now())
    }

    pub fn say(&self, text: impl Display) {
        let seconds = self.0.elapsed().as_secs_f64();
        // Nobody may be listening any more: the exit status tells all the same.
        let _ = writeln!(std::io::stdout(), "{seconds:8.3} s  {text}");
    }
}

/// Waits for something that is bound to happen. Returns whether it has.
pub fn happens(mut holds: impl FnMut() -> bool) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while !holds() && Instant::now() < give_up {
        thread::sleep(Duration::from_millis(1));
    }
    holds()
}
