//! The first minute: a timeout that expires, one that is cancelled, and one for each key.
//!
//! ```text
//! cargo run --example hello
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;

fn main() -> Result<(), Box<dyn Error>> {
    // One timer for the whole service. Its own thread sleeps until something is due.
    let timer = Timer::builder().start()?;

    // This one expires: its task runs once, on the timer's thread, never early.
    timer.after(Duration::from_millis(10), || {
        println!("request 1 timed out")
    })?;

    // Most timeouts are cancelled, because the answer comes in time.
    let timeout = timer.after(Duration::from_secs(30), || println!("request 2 timed out"))?;
    if timeout.cancel().is_cancelled() {
        println!("request 2 was answered in time");
    }

    // At most one deadline for each key, here the sessions of users.
    let sessions = KeyedTimer::new(&timer, |user: &str, connection: u32| {
        println!("{user} is idle: closing connection {connection}");
    });
    sessions.add("ada", Duration::from_millis(20), 1_u32)?;
    sessions.add("bob", Duration::from_millis(20), 2_u32)?;
    sessions.touch("bob", Duration::from_secs(300)); // A packet from bob puts his deadline off.

    thread::sleep(Duration::from_millis(50));
    println!("{} sessions are left", sessions.len());

    // What has not expired comes back. Without this call it would be dropped with the timer.
    assert!(
        timer.shutdown().is_empty(),
        "only keys are left, and they stay with their owner"
    );
    assert_eq!(sessions.cancel_all(), [("bob", 2)]);
    Ok(())
}
