//! A guide: sessions that expire when nothing was heard for a while, also across a restart.
//!
//! The key is the session. Each sign of life moves its end; a logout cancels it. A service that
//! sees many signs a second touches when half of the time has passed, not each time: a touch is a
//! commit.

use std::error::Error;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Outcome, Scheduled, Touched};
use tokio::sync::mpsc::unbounded_channel;

const IDLE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let timer = Timer::builder().start()?;
    let (expired, mut sessions) = unbounded_channel();
    // Here the service deletes what it has stored of the session.
    let expire = move |due: Due| {
        let _ = expired.send(due.key.unwrap_or_default());
        async { Outcome::Done }
    };
    let node = Durable::sqlite(folder.path().join("timers"))
        .start(&timer, expire)
        .await?;

    for session in ["ada", "bob", "eve"] {
        assert_eq!(
            node.schedule(Entry::keyed(session, IDLE, "")).await?,
            Scheduled::New
        );
    }
    // A sign of life.
    tokio::time::sleep(IDLE / 2).await;
    match node.touch("ada", IDLE).await? {
        Touched::Moved => println!("ada stays"),
        _ => println!("too late: it has just expired"),
    }
    // A logout. `Running` means that the session has just ended by itself.
    match node.cancel("bob").await? {
        Cancelled::Cancelled(_) => println!("bob has left"),
        _ => println!("bob's session had expired"),
    }

    // Eve was not heard of. Then Ada falls silent, too.
    for _ in 0..2 {
        println!(
            "{} has expired",
            sessions.recv().await.ok_or("the node has gone")?
        );
    }
    node.drain().await;
    Ok(())
}
