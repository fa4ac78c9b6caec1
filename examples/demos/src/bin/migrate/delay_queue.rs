//! From tokio-util's `DelayQueue` with a map of its keys beside it: sessions that outlive their
//! connection.

use crate::scene::Scene;
use std::error::Error;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{AddError, Timer, TimerEntry};

pub(crate) const OUTCOME: [(u64, &str); 5] = [
    (100, "ada: session 1 resumed"),
    (300, "bob: session 2 expired"),
    (350, "bob: a new session"),
    (600, "ada: session 1 gives way to session 3"),
    (900, "ada: session 3 expired"),
];

#[derive(Debug)]
struct Session(u32);

/// The sessions of clients that are gone for the moment. They lie in the timer itself: there is no
/// map of keys that could name another one's timer.
struct Disconnected {
    sessions: KeyedTimer<&'static str, Session>,
    scene: Scene,
}

impl Disconnected {
    fn new(timer: &Timer, scene: &Scene) -> Self {
        let diary = scene.clone();
        let sessions = KeyedTimer::new(timer, move |client: &str, Session(number)| {
            diary.tell(format!("{client}: session {number} expired"));
        });
        Disconnected { sessions, scene: scene.clone() }
    }

    fn disconnect(&self, client: &'static str, session: Session) -> Result<(), AddError<Session>> {
        let number = session.0;
        let entry = TimerEntry::after(Duration::from_millis(300), session);
        if let Some(Session(former)) = self.sessions.schedule(client, entry)? {
            self.scene.tell(format!("{client}: session {former} gives way to session {number}"));
        }
        Ok(())
    }

    /// Returns the session, unless it has expired: never both.
    fn connect(&self, client: &'static str) -> Option<Session> {
        let session = self.sessions.cancel(&client);
        self.scene.tell(match &session {
            Some(Session(number)) => format!("{client}: session {number} resumed"),
            None => format!("{client}: a new session"),
        });
        session
    }
}

pub(crate) fn play(scene: &Scene) -> Result<(), Box<dyn Error>> {
    let timer = scene.start(Timer::builder())?;
    let disconnected = Disconnected::new(&timer, scene);
    for (client, number) in [("ada", 1), ("bob", 2)] {
        disconnected.disconnect(client, Session(number))?;
    }
    scene.wait_until(&timer, 100);
    let session = disconnected.connect("ada").ok_or("she should have 200 ms left")?;
    scene.wait_until(&timer, 350);
    disconnected.connect("bob");
    scene.wait_until(&timer, 500);
    disconnected.disconnect("ada", session)?;
    scene.wait_until(&timer, 600);
    disconnected.disconnect("ada", Session(3))?;
    scene.wait_until(&timer, 1000);
    Ok(())
}
