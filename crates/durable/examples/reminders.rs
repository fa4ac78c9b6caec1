//! A guide: reminders that come again and again, each at its time, until they are not wanted.
//!
//! A reminder answers with its next time, in the same commit as its acknowledgement: so there is
//! always exactly one ahead. The next time follows from when this one was meant to be, so lateness
//! does not add up; for "each Monday at 9" compute it with a calendar's crate.

use std::error::Error;
use std::time::{Duration, SystemTime};
use tickwheel::Timer;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Missed, Outcome, Series};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const PERIOD: Duration = Duration::from_millis(100);

async fn remind(due: Due, told: UnboundedSender<SystemTime>) -> Outcome {
    println!("{}", String::from_utf8_lossy(&due.payload));
    let _ = told.send(due.planned.into());
    // After an outage of many periods, one reminder will do: then the first one that lies ahead.
    Series::every(PERIOD).missed(Missed::Once).next(due)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let timer = Timer::builder().start()?;
    let (sender, mut told) = unbounded_channel();
    let handler = move |due| remind(due, sender.clone());
    let node = Durable::sqlite(folder.path().join("timers"))
        .start(&timer, handler)
        .await?;

    node.schedule(Entry::keyed("water", PERIOD, "water the plants"))
        .await?;
    let first = told.recv().await.ok_or("the node has gone")?;
    for _ in 0..2 {
        let at = told.recv().await.ok_or("the node has gone")?;
        let passed = at.duration_since(first)?.as_micros();
        assert_eq!(
            passed % PERIOD.as_micros(),
            0,
            "each at its time, however late the last was"
        );
    }
    // `Running`: that run is the last one. Waits for its end.
    while node.cancel("water").await? == Cancelled::Running {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(node.get("water").await?.is_none());
    node.drain().await;
    Ok(())
}
