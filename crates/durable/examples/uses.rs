//! Four common uses, on a file: delayed messages, sessions, retries with backoff, reminders.

use std::error::Error;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::Sqlite;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Outcome, Touched, When};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Handles the timers of a service: the first word of a key says which use it is.
async fn handle(due: Due, told: UnboundedSender<String>) -> Outcome {
    let key = due.key.clone().unwrap_or_else(|| "message".to_owned());
    let tell = |what: String| drop(told.send(what)); // Nobody listens any more: so be it.
    match key.split(':').next() {
        Some("message") => {
            tell(format!("delivered: {}", String::from_utf8_lossy(&due.payload)));
            Outcome::Done
        }
        Some("session") => {
            tell(format!("{key} has expired"));
            Outcome::Done
        }
        Some("call") if due.attempt < 3 => {
            tell(format!("{key} failed, attempt {}", due.attempt));
            // Twice as long each time. After `max_attempts` it goes to the dead ones.
            Outcome::RetryAt(When::After(Duration::from_millis(50 << due.attempt)))
        }
        Some("call") => {
            tell(format!("{key} succeeded, attempt {}", due.attempt));
            Outcome::Done
        }
        Some("reminder") => {
            tell(format!("{key}: {}", String::from_utf8_lossy(&due.payload)));
            match due.payload.as_slice() {
                // The next one from when this was due, so that lateness does not add up.
                b"first" => {
                    let at = std::time::SystemTime::from(due.at) + Duration::from_millis(100);
                    Outcome::Again(When::At(at), b"second".to_vec())
                }
                _ => Outcome::Done,
            }
        }
        _ => Outcome::Dead("no use that is known".to_owned()),
    }
}

/// Schedules delayed messages: nobody cancels them one by one, so they need no key; a tag cancels
/// many.
async fn messages(node: &Durable<Sqlite>) -> Result<(), Box<dyn Error>> {
    let soon = Duration::from_millis(100);
    node.schedule(Entry::unkeyed(soon, "hello").tag("ada")).await?;
    node.schedule(Entry::unkeyed(soon, "unwanted").tag("bob")).await?;
    assert_eq!(node.cancel_tag("bob").await?, 1);
    Ok(())
}

/// Schedules sessions: each sign of life moves the end. On a server that sees many signs a second,
/// touch when half of the time has passed, not each time.
async fn sessions(node: &Durable<Sqlite>) -> Result<(), Box<dyn Error>> {
    node.schedule(Entry::keyed("session:ada", Duration::from_millis(100), "")).await?;
    node.schedule(Entry::keyed("session:bob", Duration::from_millis(100), "")).await?;
    assert_eq!(node.touch("session:ada", Duration::from_millis(300)).await?, Touched::Moved);
    // Bob logs out. If he is `Running`, his session has just ended by itself.
    assert_eq!(node.cancel("session:bob").await?, Cancelled::Cancelled(Vec::new()));
    Ok(())
}

/// Schedules retries: due at once, and again after each failure.
async fn retries(node: &Durable<Sqlite>) -> Result<(), Box<dyn Error>> {
    node.schedule(Entry::keyed("call:7", Duration::ZERO, "POST /orders")).await?;
    Ok(())
}

/// Schedules reminders: repeatedly, each from its own outcome.
async fn reminders(node: &Durable<Sqlite>) -> Result<(), Box<dyn Error>> {
    node.schedule(Entry::keyed("reminder:3", Duration::from_millis(50), "first")).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let timer = Timer::builder().start()?;
    let (sender, mut told) = unbounded_channel();
    let handler = move |due| handle(due, sender.clone());
    let node = Durable::sqlite(folder.path().join("timers")).start(&timer, handler).await?;
    messages(&node).await?;
    sessions(&node).await?;
    retries(&node).await?;
    reminders(&node).await?;
    for _ in 0..7 {
        println!("{}", told.recv().await.ok_or("the node has gone")?);
    }
    node.drain().await;
    assert!(told.try_recv().is_err(), "that was all");
    Ok(())
}
