//! A guide: calls that are retried with backoff until they succeed, or are given up.
//!
//! The call itself is the timer: it is due at once, and due again after each failure. So no call is
//! forgotten when the process dies between two attempts. What fails each time ends among the dead
//! timers, where somebody looks at it and has it tried again.

use std::error::Error;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Entry, Outcome, Search};

/// Calls a service that is down at first; one of its paths will never work.
async fn call(due: &Due) -> Result<(), &'static str> {
    match &*due.payload {
        b"POST /nowhere" => Err("there is no such path"),
        _ if due.attempt < 3 => Err("connection refused"),
        _ => Ok(()),
    }
}

/// Answers what becomes of a call. `due.id` is the same in each attempt: a service that remembers
/// it does nothing twice.
async fn attempt(due: Due) -> Outcome {
    let key = due.key.clone().unwrap_or_default();
    match call(&due).await {
        Ok(()) => {
            println!("{key}: done, attempt {}", due.attempt);
            Outcome::Done
        }
        Err(error) => {
            println!("{key}: {error}, attempt {}", due.attempt);
            // Twice as long each time; and up to a half more, so that not all come back at once.
            let pause = Duration::from_millis(20 << due.attempt.min(6));
            let again = pause + pause / 2 * (due.id as u32 % 8) / 7;
            Outcome::RetryAt(again.into(), error.to_owned())
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let timer = Timer::builder().start()?;
    let node = Durable::sqlite(folder.path().join("timers"));
    let node = node.max_attempts(4).start(&timer, attempt).await?;

    node.schedule(Entry::keyed("order 7", Duration::ZERO, "POST /orders/7"))
        .await?;
    node.schedule(Entry::keyed("order 8", Duration::ZERO, "POST /nowhere"))
        .await?;
    while node.stats().done < 1 || node.stats().dead < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let dead = node.dead(Search::new(10)).await?;
    println!("given up: {:?}: {}", dead[0].key, dead[0].reason);
    assert_eq!((dead.len(), dead[0].attempts), (1, 4));
    // Somebody has mended it, and has it tried again: `inspect --requeue` does the same.
    assert!(node.requeue(dead[0].id).await?);
    node.drain().await;
    Ok(())
}
