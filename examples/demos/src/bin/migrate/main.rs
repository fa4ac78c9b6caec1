//! Five jobs that services do with other timers, done with this one, in virtual time.
//!
//! ```text
//! cargo run -p demos --bin migrate
//! ```
//!
//! Each module is a page of user code, as it is after it came from Netty, Kafka, tokio-util or
//! godis; what its lines were called there stands in `docs/MIGRATING.md`. The exit status is 1 if
//! anything happens that should not, or not at its millisecond.

mod delay_queue;
mod godis;
mod kafka_purgatory;
mod kafka_timer;
mod netty;
mod scene;

use scene::Scene;
use std::error::Error;

/// Plays in a scene. Returns what should have happened in it, and when.
type Play = fn(&Scene) -> Result<&'static str, Box<dyn Error>>;

const PLAYS: [(&str, Play); 5] = [
    ("Netty's HashedWheelTimer: calls that time out after 300 ms, two at a time", netty::play),
    ("Kafka's Timer: members of a group, their sessions 300 ms long", kafka_timer::play),
    ("Kafka's purgatory: produces wait for two replicas, 500 ms at most", kafka_purgatory::play),
    ("tokio-util's DelayQueue: sessions outlive a connection by 300 ms", delay_queue::play),
    ("godis' time wheel: keys with a time to live", godis::play),
];

fn main() -> Result<(), Box<dyn Error>> {
    for (title, play) in PLAYS {
        let scene = Scene::default();
        let outcome = play(&scene)?;
        println!("{title}\n{}", scene.diary());
        if scene.diary() != outcome {
            return Err(format!("this should be\n{outcome}").into());
        }
    }
    Ok(())
}
