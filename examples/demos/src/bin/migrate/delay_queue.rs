//! From tokio-util's `DelayQueue` with a map of its keys beside it: sessions that outlive their
//! connection. They lie in the timer itself: there is no map of keys that could name another one's
//! timer.

use crate::scene::Scene;
use std::error::Error;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{AddError, Timer, TimerEntry};

struct Session(u32);

pub(crate) fn play(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let (timer, diary): (Timer, _) = (scene.timer(Timer::builder())?, scene.clone());
    let gone = KeyedTimer::new(&timer, move |client: &str, Session(number)| {
        diary.tell(&format!("{client}: session {number} expired"));
    });
    let disconnect = |client, session| -> Result<(), AddError<Session>> {
        let entry = TimerEntry::after(Duration::from_millis(300), session);
        if let Some(Session(former)) = gone.schedule(client, entry)? {
            scene.tell(&format!("{client}: session {former} gives way"));
        }
        Ok(())
    };
    // Returns the session, unless it has expired: never both.
    let connect = |client| gone.cancel(&client);

    disconnect("ada", Session(1))?;
    disconnect("bob", Session(2))?;
    scene.wait_until(&timer, 100);
    let Session(number) = connect("ada").ok_or("she should have 200 ms left")?;
    scene.tell(&format!("ada: session {number} resumed"));
    scene.wait_until(&timer, 350);
    scene.tell(&format!("bob: is his session there? {}", connect("bob").is_some()));
    disconnect("ada", Session(number))?;
    scene.wait_until(&timer, 600);
    disconnect("ada", Session(3))?;
    scene.wait_until(&timer, 1000);
    Ok("\
100 ms  ada: session 1 resumed
300 ms  bob: session 2 expired
350 ms  bob: is his session there? false
600 ms  ada: session 1 gives way
900 ms  ada: session 3 expired
")
}
