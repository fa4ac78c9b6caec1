//! From Kafka's `Timer` and `TimerTask`: members of a group, and their sessions.

use crate::scene::Scene;
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;
use tickwheel::{AddError, Task, Timeout, Timer, TimerEntry};

pub(crate) const OUTCOME: [(u64, &str); 5] = [
    (100, "ada: heartbeat"),
    (200, "cyd: leaves"),
    (200, "2 sessions"),
    (300, "bob: session expired"),
    (400, "ada: session expired"),
];

const SESSION: Duration = Duration::from_millis(300);

/// The members' sessions, each a timer.
struct Group {
    timer: Timer,
    sessions: HashMap<&'static str, Timeout>,
    scene: Scene,
}

impl Group {
    fn join(&mut self, member: &'static str) -> Result<(), AddError<Task>> {
        let scene = self.scene.clone();
        let expire = move || scene.tell(format!("{member}: session expired"));
        let session = self.timer.add(TimerEntry::after(SESSION, expire))?;
        self.sessions.insert(member, session);
        Ok(())
    }

    /// Extends the session by one write: nothing is taken out, nothing is added again.
    fn heartbeat(&self, member: &str) {
        if self.sessions.get(member).is_some_and(|session| session.touch(SESSION)) {
            self.scene.tell(format!("{member}: heartbeat"));
        }
    }

    fn leave(&mut self, member: &str) {
        let session = self.sessions.remove(member);
        if session.is_some_and(|session| session.cancel().is_cancelled()) {
            self.scene.tell(format!("{member}: leaves"));
        }
    }
}

pub(crate) fn play(scene: &Scene) -> Result<(), Box<dyn Error>> {
    let timer = scene.start(Timer::builder().name("sessions"))?;
    let mut group = Group { timer, sessions: HashMap::new(), scene: scene.clone() };
    for member in ["ada", "bob", "cyd"] {
        group.join(member)?;
    }
    scene.wait_until(&group.timer, 100);
    group.heartbeat("ada");
    scene.wait_until(&group.timer, 200);
    group.leave("cyd");
    scene.tell(format!("{} sessions", group.timer.len()));
    scene.wait_until(&group.timer, 500);
    group.heartbeat("ada"); // Of one that has expired: nothing happens.
    scene.wait_until(&group.timer, 600);
    Ok(())
}
