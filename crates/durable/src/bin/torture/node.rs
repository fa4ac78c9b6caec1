//! A node: a process of its own, whose handler writes down what it gets.

use crate::ledger::{self, Ledger};
use crate::{LEASE, NAMESPACE, server};
use std::error::Error;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tickwheel::Timer;
use tickwheel_durable::{Due, Durable, Outcome, Sharded, When};
use tokio::sync::oneshot;

/// Runs until its standard input ends, then drains.
pub(crate) async fn run(ports: [u16; 2], ledger: &Path) -> Result<(), Box<dyn Error>> {
    let node = start(ports, ledger).await?;
    let (ended, end) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.send(())
    });
    end.await?;
    node.drain().await;
    Ok(())
}

/// Moves slots, and goes.
pub(crate) async fn move_slots(
    ports: [u16; 2],
    ledger: &Path,
    slots: Range<u32>,
    target: usize,
) -> Result<(), Box<dyn Error>> {
    let node = start(ports, ledger).await?;
    node.move_slots(slots, target).await?;
    node.drain().await;
    Ok(())
}

async fn start(ports: [u16; 2], ledger: &Path) -> Result<Sharded, Box<dyn Error>> {
    let ledger = Arc::new(Ledger::open(ledger)?);
    let timer = Timer::builder().start()?;
    let handler = move |due: Due| handle(due, Arc::clone(&ledger));
    let primary = |port| {
        let node = Durable::postgres(server::config(port)).namespace(NAMESPACE).lease(LEASE);
        node.max_in_flight(500).window(Duration::from_secs(4))
    };
    Ok(Sharded::start(ports.map(primary).into(), &timer, handler).await?)
}

/// Handles a timer by its number: most are done at once, some are slow, some fail first, and one in
/// many ends the process.
async fn handle(due: Due, ledger: Arc<Ledger>) -> Outcome {
    let at = ledger::now();
    let number: u64 = due.key.as_deref().and_then(|key| key.parse().ok()).unwrap_or(0);
    if number % 20_000 == 19_999 && due.attempt == 1 {
        std::process::abort();
    }
    if number % 20 == 3 && due.attempt == 1 {
        return Outcome::RetryAt(When::After(Duration::from_millis(200)));
    }
    if number % 30 == 4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert!(number % 500 != 5 || due.attempt > 1, "as it should");
    match ledger.write(number, &due, at) {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::Dead(error.to_string()),
    }
}
