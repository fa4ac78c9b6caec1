//! The main job: fetches wait, for a limited time, until a partition has enough bytes for them.
//! `cargo run --example purgatory` runs it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};
use std::{error::Error, iter, thread};
use tickwheel::Timer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};

const MS: Duration = Duration::from_millis(1);
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static BYTES: AtomicUsize = AtomicUsize::new(0); // The partition: just how long it is.

/// The number of a fetch, the bytes that it waits for, and where it reports its end.
struct Fetch(u32, usize, mpsc::Sender<(u32, bool, Instant)>);

impl DelayedOperation for Fetch {
    fn try_complete(&mut self) -> bool {
        BYTES.load(SeqCst) >= self.1
    }

    // Called once: when there are enough bytes, or when the time is up.
    fn on_complete(&mut self) {
        let answered = self.try_complete();
        let end = Instant::now();
        say(&format!(
            "fetch {} {}",
            self.0,
            if answered { "is answered" } else { "times out" }
        ));
        let _ = self.2.send((self.0, answered, end));
    }
}

fn say(what: &str) {
    println!("{:>3} ms: {what}", START.elapsed().as_millis());
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::builder().start()?; // One for the whole service, with its own thread.
    let fetches = Purgatory::new(&timer);
    let (ends, ended) = mpsc::channel();
    let watch = |number, bytes| {
        say(&format!(
            "fetch {number} waits for {bytes} bytes, until 300 ms"
        ));
        let fetch = Fetch(number, bytes, ends.clone()); // Dropped when it has ended.
        fetches.try_complete_else_watch(fetch, *START + 300 * MS, &["orders"])
    };
    let _ = watch(1, 10)?;
    let second = watch(2, 100)?.pending();
    let _ = watch(3, 100)?;
    drop(ends);

    thread::sleep(100 * MS);
    say("a produce brings 10 bytes");
    BYTES.fetch_add(10, SeqCst);
    fetches.check_and_complete("orders");
    let extended = second.is_some_and(|fetch| fetch.touch(*START + 500 * MS));
    say(if extended {
        "fetch 2 may wait until 500 ms"
    } else {
        "fetch 2 has ended already"
    });

    // Ends when each fetch has dropped its sender, or after two seconds without an end.
    let mut ends: Vec<_> = iter::from_fn(|| ended.recv_timeout(2000 * MS).ok()).collect();
    ends.sort();
    let deadline = |number| {
        *START
            + if extended && number == 2 {
                500 * MS
            } else {
                300 * MS
            }
    };
    let is_early = ends.iter().any(|end| !end.1 && end.2 < deadline(end.0));
    let is_once = ends.iter().map(|end| end.0).eq(1..=3);
    if is_once && !is_early {
        Ok(())
    } else {
        Err(format!("early, twice or never: {ends:?}"))?
    }
}
