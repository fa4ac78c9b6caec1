//! One node on a file: timers outlive the node that scheduled them.

use std::error::Error;
use std::path::Path;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::store::sqlite::Sqlite;
use tickwheel_durable::{Cancelled, Due, Durable, Entry, Outcome};

async fn start(timer: &Timer, file: &Path) -> Result<Durable<Sqlite>, tickwheel_durable::Error> {
    let handler = |due: Due| async move {
        let key = due.key.unwrap_or_default();
        println!("  {key} fired, {} ms late", due.late_by.as_millis());
        Outcome::Done
    };
    Durable::sqlite(file).start(timer, handler).await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("timers.sqlite");
    let timer = Timer::builder().start()?;

    println!("A node schedules timers in {}, each committed:", file.display());
    let node = start(&timer, &file).await?;
    for (key, ms) in [("tea", 500), ("call back", 1_500), ("reminder", 2_500), ("offer", 2_500)] {
        node.schedule(Entry::keyed(key, Duration::from_millis(ms), "payload")).await?;
        println!("  {key} in {ms} ms");
    }
    tokio::time::sleep(Duration::from_millis(800)).await;
    match node.cancel("offer").await? {
        Cancelled::Cancelled(_) => println!("  offer is cancelled: certainly"),
        answer => println!("  offer: {answer:?}"),
    }

    println!("The node is dropped, as if it had crashed; one timer falls due meanwhile.");
    drop(node);
    tokio::time::sleep(Duration::from_millis(1_200)).await;

    println!("Another one starts on the same file:");
    let node = start(&timer, &file).await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let stats = node.stats();
    println!("It has claimed {}, {} are done.", stats.claimed, stats.done);
    node.drain().await;
    Ok(())
}
