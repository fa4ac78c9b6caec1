//! From Kafka's `Timer` and `TimerTask`: members of a group, and their sessions.

use crate::scene::Scene;
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;
use tickwheel::{Timeout, Timer, TimerEntry};

const SESSION: Duration = Duration::from_millis(300);

pub(crate) fn play(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let timer: Timer = scene.timer(Timer::builder().name("sessions"))?;
    let mut sessions: HashMap<&str, Timeout> = HashMap::new();
    for member in ["ada", "bob", "cyd"] {
        let diary = scene.clone();
        let expire = move || diary.tell(&format!("{member}: session expired"));
        sessions.insert(member, timer.add(TimerEntry::after(SESSION, expire))?);
    }
    // A heartbeat extends the session by one write: nothing is taken out, nothing is added again.
    let heartbeat = |session: &Timeout| {
        let is_alive = session.touch(SESSION);
        scene.tell(if is_alive { "ada: heartbeat" } else { "ada: this comes too late" });
    };
    scene.wait_until(&timer, 100);
    heartbeat(&sessions["ada"]);
    scene.wait_until(&timer, 200);
    if sessions.remove("cyd").is_some_and(|session| session.cancel().is_cancelled()) {
        scene.tell(&format!("cyd: leaves, {} sessions are left", timer.len()));
    }
    scene.wait_until(&timer, 500);
    heartbeat(&sessions["ada"]);
    Ok("\
100 ms  ada: heartbeat
200 ms  cyd: leaves, 2 sessions are left
300 ms  bob: session expired
400 ms  ada: session expired
500 ms  ada: this comes too late
")
}
