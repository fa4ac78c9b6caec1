//! An echo server on one thread, with mio's loop; another thread adds timers to it.
//!
//! ```text
//! cargo run --release -p tickwheel-services --bin echo
//! nc 127.0.0.1 PORT
//! ```
//!
//! What a client sends comes back, and a client that is silent is cut off. A line of the standard
//! input is sent to all clients a little later. Ctrl-C ends the server; the end of the input does
//! not.

use clap::Parser;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;
use tickwheel::SystemClock;
use tickwheel_services::echo::{Due, Echo, Event};

/// A TCP server that sends back what it gets, and closes connections that are idle.
#[derive(Debug, Parser)]
#[command(name = "echo")]
struct Options {
    /// Where to listen on this machine; 0 is any free port
    #[arg(long, default_value_t = 0)]
    port: u16,

    /// How long a connection may be silent
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    idle_ms: u64,

    /// How long after it was typed a line is sent to all
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=86_400_000))]
    delay_ms: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let idle = Duration::from_millis(options.idle_ms);
    let server = Echo::bind(address, idle, SystemClock)?;
    say(format_args!("listening at {}", server.address()?))?;

    let (timer, delay) = (server.timer(), Duration::from_millis(options.delay_ms));
    // Another thread adds to the timer that this one drives, and so wakes it. The server goes on
    // when that thread ends with the input, at once if there is none.
    thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
            let text = format!("{}\n", String::from_utf8_lossy(&line));
            let _ = timer.after(delay, Due::Announce(text)); // Refused only when the server ends.
        }
    });
    server.run(|event| {
        let _ = match event {
            Event::Opened(number) => say(format_args!("connection {number} is open")),
            Event::Closed(number) => say(format_args!("connection {number} was closed")),
            Event::Idle(number) => say(format_args!("connection {number} was idle: closed")),
        };
    })?;
    Ok(())
}

/// Prints a line. Fails if nobody reads any more.
fn say(line: std::fmt::Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}
