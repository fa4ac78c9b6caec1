//! Sleeps, time limits and intervals in async code, on any runtime; here on a very small one.
//!
//! ```text
//! cargo run --example async
//! ```

use std::error::Error;
use std::future;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::future::TimedError;

const MS: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    pollster::block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    // One timer for the whole program. It wakes the futures from its own thread.
    let timer = Timer::builder().start()?;

    timer.sleep(10 * MS).await?;
    println!("slept for 10 ms");

    // Gives up on a future that takes too long, and drops it.
    match timer.timeout(10 * MS, future::pending::<()>()).await {
        Ok(()) => println!("answered"),
        Err(TimedError::Elapsed) => println!("no answer within 10 ms"),
        Err(error) => return Err(error.into()), // The timer is full, or was shut down.
    }

    // The first tick is now, the others follow in step, however long the work between them takes.
    let mut beat = timer.interval(5 * MS);
    for number in 0..3 {
        beat.tick().await?;
        println!("tick {number}");
    }
    Ok(())
}
