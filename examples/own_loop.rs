//! A timer without a thread, driven by the loop that the program has anyway.
//!
//! ```text
//! cargo run --example own_loop
//! ```
//!
//! Here the loop waits on a channel; a game loop or an event loop does the same with its own wait.

use std::error::Error;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use tickwheel::Timer;

const IDLE: Duration = Duration::from_millis(30);

/// What the loop is told: by the network, and by the timer.
enum Event {
    Packet(u32),
    Idle(u32),
}

fn main() -> Result<(), Box<dyn Error>> {
    let (sender, events) = mpsc::channel();
    let network = play_network(sender.clone());

    // `build` starts no thread. Expired tasks go where all other events come from.
    let timer: Timer<u32> = Timer::builder()
        .executor(move |connection| {
            sender.send(Event::Idle(connection)).map_err(|_| connection) // Refused: the loop ended.
        })
        .build()?;
    let timeouts = [timer.after(IDLE, 0_u32)?, timer.after(IDLE, 1_u32)?];

    let mut open = timeouts.len();
    while open > 0 {
        // Wait no longer than until the timer has something to do.
        let next = timer
            .next_expiration()
            .unwrap_or_else(|| timer.now() + IDLE);
        match events.recv_timeout(next.saturating_duration_since(timer.now())) {
            Ok(Event::Packet(connection)) => {
                println!("a packet on connection {connection}");
                timeouts[connection as usize].touch(IDLE); // Extends its deadline.
            }
            Ok(Event::Idle(connection)) => {
                println!("connection {connection} is idle: close it");
                open -= 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        timer.advance_clock(Duration::ZERO); // Hands what is due to the executor; does not wait.
    }
    network
        .join()
        .map_err(|_| "the network's thread panicked")?;
    Ok(())
}

/// Sends some packets, on connection 1 more than on connection 0.
fn play_network(sender: mpsc::Sender<Event>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for connection in [0, 1, 1, 1, 1] {
            let _ = sender.send(Event::Packet(connection)); // Fails when the loop has ended.
            thread::sleep(Duration::from_millis(10));
        }
    })
}
