//! From godis' `timewheel.At(time, key, job)` and `Cancel(key)`: keys with a time to live.

use crate::scene::Scene;
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::{AddError, Task, Timer, TimerEntry};

/// The keys, and when each expires.
///
/// They stay locked while their jobs change: so that no two threads leave a key with another one's
/// deadline. The timer calls a job without a lock of its own, so the two can't block each other.
struct Database {
    keys: Arc<Mutex<HashMap<&'static str, Option<Instant>>>>,
    jobs: KeyedTimer<&'static str>,
    scene: Scene,
}

impl Database {
    /// Sets the deadline. A second one replaces the first, and one that has passed expires the key
    /// at once.
    fn expire_at(&self, key: &'static str, deadline: Instant) -> Result<(), AddError<Task>> {
        let mut keys = self.keys.lock().unwrap();
        let (all, scene) = (Arc::clone(&self.keys), self.scene.clone());
        let job = move || {
            // If the key was set anew as this job began, it has another deadline now, or none.
            let mut keys = all.lock().unwrap();
            if keys.get(key) == Some(&Some(deadline)) {
                keys.remove(key);
                scene.tell(&format!("{key}: gone"));
            }
        };
        self.jobs.schedule(key, TimerEntry::at(deadline, job))?;
        keys.insert(key, Some(deadline));
        Ok(())
    }

    fn persist(&self, key: &'static str) {
        let mut keys = self.keys.lock().unwrap();
        if self.jobs.cancel(&key).is_some() {
            keys.insert(key, None);
            self.scene.tell(&format!("{key}: persists"));
        }
    }
}

pub(crate) fn play(scene: &Scene) -> Result<&'static str, Box<dyn Error>> {
    let timer = scene.timer(Timer::builder())?;
    let jobs = KeyedTimer::new(&timer, |_, job: Task| job.run());
    let database = Database { keys: Arc::default(), jobs, scene: scene.clone() };
    let now = timer.now();
    for (key, ttl_ms) in [("otp", 300), ("token", 300), ("cart", 300), ("sid", 0)] {
        database.expire_at(key, now + Duration::from_millis(ttl_ms))?;
    }
    scene.wait_until(&timer, 200);
    database.persist("otp");
    database.expire_at("cart", now + Duration::from_millis(500))?;
    scene.wait_until(&timer, 600);
    scene.tell(&format!("{} key left", database.keys.lock().unwrap().len()));
    Ok("\
0 ms  sid: gone
200 ms  otp: persists
300 ms  token: gone
500 ms  cart: gone
600 ms  1 key left
")
}
