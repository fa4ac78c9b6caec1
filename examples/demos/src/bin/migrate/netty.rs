//! From Netty's `HashedWheelTimer`: calls that time out.

use crate::scene::Scene;
use std::error::Error;
use std::time::Duration;
use tickwheel::{AddError, Cancel, Timeout, Timer, TimerEntry};

pub(crate) const OUTCOME: [(u64, &str); 6] = [
    (100, "call 1: answered"),
    (200, "call 4: refused, 2 are in flight"),
    (300, "call 2: timed out"),
    (400, "call 2: the answer is too late"),
    (500, "call 3: in flight at the end"),
    (500, "0 calls pending"),
];

/// What the timer keeps of a call. No closure: so it allocates nothing, and `shutdown` returns
/// something that one can read.
struct Call(u32);

struct Client {
    timer: Timer<Call>,
    scene: Scene,
}

impl Client {
    fn send(&self, call: u32, timeout: Duration) -> Option<Timeout<Call>> {
        match self.timer.add(TimerEntry::after(timeout, Call(call))) {
            Ok(timeout) => Some(timeout),
            Err(AddError::Full(_)) => {
                self.scene
                    .tell(format!("call {call}: refused, {} are in flight", self.timer.len()));
                None
            }
            Err(error) => panic!("{error}"), // Only after a shutdown.
        }
    }

    /// Handles an answer. Either the answer or the timeout wins, and `cancel` says which.
    fn answer(&self, timeout: &Timeout<Call>, call: u32) {
        match timeout.cancel() {
            Cancel::Cancelled(Call(call)) => self.scene.tell(format!("call {call}: answered")),
            _ => self.scene.tell(format!("call {call}: the answer is too late")),
        }
    }
}

pub(crate) fn play(scene: &Scene) -> Result<(), Box<dyn Error>> {
    let diary = scene.clone();
    let expire = move |Call(call)| diary.tell(format!("call {call}: timed out"));
    let builder = Timer::builder().max_pending(2).executor(expire);
    let client = Client { timer: scene.start(builder)?, scene: scene.clone() };

    let limit = Duration::from_millis(300);
    let first = client.send(1, limit).ok_or("there should be room")?;
    let second = client.send(2, limit).ok_or("there should be room")?;
    scene.wait_until(&client.timer, 100);
    client.answer(&first, 1);
    client.send(3, Duration::from_secs(30)); // In the place of the first.
    scene.wait_until(&client.timer, 200);
    client.send(4, limit);
    scene.wait_until(&client.timer, 400);
    client.answer(&second, 2);
    scene.wait_until(&client.timer, 500);
    for entry in client.timer.shutdown() {
        scene.tell(format!("call {}: in flight at the end", entry.into_task().0));
    }
    scene.tell(format!("{} calls pending", client.timer.len()));
    Ok(())
}
