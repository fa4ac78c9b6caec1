//! A guide: delayed messages. Each is delivered after its delay, once somebody is there to do it.
//!
//! Nobody cancels them one by one, so they need no key. A tag cancels all
//! of a recipient at once.

use std::error::Error;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Entry, Outcome};
use tokio::sync::mpsc::unbounded_channel;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let timer = Timer::builder().start()?;
    let (mailbox, mut mail) = unbounded_channel();
    let deliver = move |due: Due| {
        let delivered = mailbox.send(String::from_utf8_lossy(&due.payload).into_owned());
        async move {
            match delivered {
                Ok(()) => Outcome::Done,
                // Nobody is there. It is tried again, and after `max_attempts` it is given up.
                Err(error) => Outcome::RetryAt(Duration::from_secs(10).into(), error.to_string()),
            }
        }
    };
    let node = Durable::sqlite(folder.path().join("timers"))
        .start(&timer, deliver)
        .await?;

    // Many in one commit. The delays are counted by the store's clock, from now on.
    let message = |delay, text: &str| Entry::unkeyed(Duration::from_millis(delay), text);
    node.schedule_many(vec![
        message(100, "Ada: your order is on its way").tag("ada"),
        message(50, "Ada: your order is packed").tag("ada"),
        message(60_000, "Bob: we have an offer").tag("bob"),
    ])
    .await?;
    // Bob wants no more of them. What a handler has already is not taken back.
    assert_eq!(node.cancel_tag("bob").await?, 1);

    for _ in 0..2 {
        let text = mail.recv().await.ok_or("the node has gone")?;
        println!("{text}");
        assert!(text.starts_with("Ada"), "Bob's was cancelled");
    }
    node.drain().await;
    assert!(mail.try_recv().is_err(), "that was all");
    Ok(())
}
