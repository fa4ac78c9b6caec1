//! From Netty's `HashedWheelTimer`: calls that time out.

use crate::scene::Scene;
use std::error::Error;
use std::time::Duration;
use tickwheel::{AddError, Timeout, Timer};

/// What the timer keeps of a call. No closure: so it allocates nothing, and `shutdown` returns
/// something that one can read.
struct Call(u32);

pub(crate) fn play(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let diary = scene.clone();
    let expire = move |Call(call)| diary.tell(&format!("call {call}: timed out"));
    let timer = scene.timer(Timer::builder().max_pending(2).executor(expire))?;
    // Either the answer or the timeout wins, and `cancel` says which.
    let answer = |timeout: &Timeout<Call>| match timeout.cancel().into_task() {
        Some(Call(call)) => scene.tell(&format!("call {call}: answered")),
        None => scene.tell("an answer is too late"),
    };
    let limit = Duration::from_millis(300);
    let first = timer.after(limit, Call(1))?;
    let second = timer.after(limit, Call(2))?;
    scene.wait_until(&timer, 100);
    answer(&first);
    timer.after(Duration::from_secs(30), Call(3))?; // In the place of the first.
    scene.wait_until(&timer, 200);
    if let Err(AddError::Full(entry)) = timer.after(limit, Call(4)) {
        let Call(call) = entry.into_task();
        scene.tell(&format!("call {call}: refused, {} are in flight", timer.len()));
    }
    scene.wait_until(&timer, 400);
    answer(&second);
    for entry in timer.shutdown() {
        scene.tell(&format!("call {}: in flight at the end", entry.into_task().0));
    }
    Ok("\
100 ms  call 1: answered
200 ms  call 4: refused, 2 are in flight
300 ms  call 2: timed out
400 ms  an answer is too late
400 ms  call 3: in flight at the end
")
}
