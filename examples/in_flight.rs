//! The table of in-flight calls of an RPC client: the task of a connection owns a queue, which is
//! both the map from a call to who waits for it, and the time limits of the calls.
//!
//! ```text
//! cargo run --example in_flight
//! ```

use std::error::Error;
use std::future::poll_fn;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Poll;
use std::time::Duration;
use tickwheel::queue::KeyedQueue;
use tickwheel::{SystemClock, Timer};

/// How a call ends: with an answer, or with the time that it had.
type Outcome = Result<&'static str, Duration>;

struct Call {
    limit: Duration,
    waits: SyncSender<Outcome>,
}

struct InFlight {
    calls: KeyedQueue<u64, Call>,
    next: u64,
}

impl InFlight {
    fn send(&mut self, limit: Duration) -> (u64, Receiver<Outcome>) {
        let (waits, outcome) = sync_channel(1);
        self.next += 1;
        self.calls.insert(self.next, limit, Call { limit, waits });
        (self.next, outcome)
    }

    /// An answer that comes after the time limit finds nobody.
    fn answered(&mut self, call: u64, answer: &'static str) {
        if let Some(call) = self.calls.remove(&call) {
            let _ = call.waits.send(Ok(answer)); // It fails if nobody waits any more.
        }
    }

    /// Ends the calls whose time is up; completes when none is left.
    async fn expire(&mut self) {
        poll_fn(|context| {
            while let Some(expired) = std::task::ready!(self.calls.poll_expired(context)) {
                let Call { limit, waits } = expired.value;
                let _ = waits.send(Err(limit));
            }
            Poll::Ready(())
        })
        .await;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let timer = Timer::builder().start()?; // Or the sleep of the connection's runtime.
    let calls = KeyedQueue::new(SystemClock, move |at| timer.sleep(at));
    let mut in_flight = InFlight { calls, next: 0 };

    let (first, answered) = in_flight.send(Duration::from_secs(30));
    let (second, late) = in_flight.send(Duration::from_millis(20));
    in_flight.answered(first, "pong");
    pollster::block_on(in_flight.expire());
    in_flight.answered(second, "pong");

    let outcomes = [answered.recv()?, late.recv()?];
    println!("{outcomes:?}");
    assert_eq!(outcomes, [Ok("pong"), Err(Duration::from_millis(20))]);
    Ok(())
}
