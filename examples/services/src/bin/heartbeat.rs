//! Hundreds of TCP connections that notice when the other end dies, or just falls silent.
//!
//! ```text
//! cargo run -p tickwheel-services --bin heartbeat
//! cargo run -p tickwheel-services --bin heartbeat -- --check
//! ```
//!
//! The exit status is 1 if a connection was given up too early, if one was kept that was silent or
//! dead, or if anything of them stayed in the timer. A machine that is busy for longer than the
//! idle timeout silences those that live as well: that is told, and is no failure.

use std::error::Error;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel_services::heartbeat::{End, Event, Exchange, keep_connected, serve};
use tickwheel_services::{PATIENCE, Timeline, happens, is_check};
use tokio::net::TcpListener;
use tokio::runtime::Builder;

fn main() -> Result<(), Box<dyn Error>> {
    let (count, ms) = if is_check()? { (50, 300) } else { (300, 1000) };
    let timer = Timer::builder().start()?;
    let heartbeat = Duration::from_millis(ms);
    let idle_timeout = 3 * heartbeat;
    let exchange = Exchange {
        timer,
        heartbeat,
        idle_timeout,
    };
    // One timer for everything; tokio has the sockets, and no timers.
    let runtime = Builder::new_multi_thread().enable_io().build()?;
    let inside = runtime.enter();
    let (sender, events) = channel();
    let timeline = Timeline::begin();
    let mut seen = Seen {
        events,
        count,
        opened: [0; 3],
        closed: [0; 3],
        idle_timeout,
    };

    // All of them come at once, fewer than tokio lets wait.
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let server = listener.local_addr()?;
    tokio::spawn(serve(exchange.clone(), listener, move |event| {
        _ = sender.send(event)
    }));
    for connection in 0..count {
        tokio::spawn(keep_connected(exchange.clone(), server, connection));
    }
    // These have only a name: they say nothing else.
    let connect = |connection: u32| {
        let mut stream = TcpStream::connect(server)?;
        stream.write_all(&connection.to_be_bytes())?;
        Ok(stream)
    };
    let dying = (count..2 * count)
        .map(connect)
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    let silent = (2 * count..3 * count)
        .map(connect)
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    seen.wait_until("all are open", |seen| {
        seen.opened.iter().all(|opened| *opened >= count)
    })?;
    timeline.say(format!(
        "{count} that live, {count} that die and {count} silent ones are open"
    ));
    drop(dying);
    seen.wait_until("the dead are closed", |seen| seen.closed[1] == count)?;
    timeline.say("those that died are closed");
    seen.wait_until("the silent are given up", |seen| seen.closed[2] == count)?;
    timeline.say(format!(
        "the silent ones are given up, after {idle_timeout:?}"
    ));
    timeline.say(format!(
        "of those that live, {} are open",
        seen.opened[0] - seen.closed[0]
    ));

    drop((silent, inside));
    drop(runtime); // And with it the other ends.
    let is_empty = happens(|| exchange.timer.is_empty());
    timeline.say(format!(
        "all is over; {} timers are left",
        exchange.timer.len()
    ));
    if is_empty {
        Ok(())
    } else {
        Err("timers are left".into())
    }
}

/// What the server saw of those that live, that die, and that are silent.
struct Seen {
    events: Receiver<Event>,
    count: u32,
    opened: [u32; 3],
    closed: [u32; 3],
    idle_timeout: Duration,
}

impl Seen {
    fn wait_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<(), String> {
        let give_up = Instant::now() + PATIENCE;
        while !holds(self) {
            let left = give_up.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left);
            match event.map_err(|_| format!("waited in vain until {what}"))? {
                Event::Opened { connection } => {
                    self.opened[(connection / self.count) as usize] += 1;
                }
                Event::Closed { connection, end } => {
                    self.closed[(connection / self.count) as usize] += 1;
                    if matches!(end, End::Silent(silence) if silence < self.idle_timeout) {
                        return Err(format!("{connection} was given up too early: {end:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}
