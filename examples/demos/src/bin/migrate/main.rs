//! Five jobs that services do with other timers, done with this one.
//!
//! ```text
//! cargo run -p demos --bin migrate                # In real time, to watch: 4 seconds.
//! cargo run -p demos --bin migrate -- --check     # In virtual time, at once.
//! ```
//!
//! Each module is a page of user code, as it is after it came from Netty, Kafka, tokio-util or
//! godis; what its lines were called there stands in `docs/GUIDE.md`, "Coming from". With `--check`
//! the exit status is 1 if anything happens that should not, or not at its millisecond.

mod delay_queue;
mod godis;
mod kafka_purgatory;
mod kafka_timer;
mod netty;
mod scene;

use clap::Parser;
use scene::Scene;
use std::error::Error;
use std::process::ExitCode;

/// Five jobs that services do with other timers, done with this one.
#[derive(Parser)]
struct Options {
    /// Plays in virtual time and compares what happens, and when, with what should.
    #[arg(long)]
    check: bool,
}

/// What should happen, and how many milliseconds after the start.
type Outcome = [(u64, &'static str)];

struct Scenario {
    title: &'static str,
    play: fn(&Scene) -> Result<(), Box<dyn Error>>,
    outcome: &'static Outcome,
}

const SCENARIOS: [Scenario; 5] = [
    Scenario {
        title: "Netty's HashedWheelTimer: calls that time out after 300 ms",
        play: netty::play,
        outcome: &netty::OUTCOME,
    },
    Scenario {
        title: "Kafka's Timer: members of a group, their sessions 300 ms long",
        play: kafka_timer::play,
        outcome: &kafka_timer::OUTCOME,
    },
    Scenario {
        title: "Kafka's purgatory: a produce waits for two replicas, 500 ms at most",
        play: kafka_purgatory::play,
        outcome: &kafka_purgatory::OUTCOME,
    },
    Scenario {
        title: "tokio-util's DelayQueue: sessions that outlive their connection by 300 ms",
        play: delay_queue::play,
        outcome: &delay_queue::OUTCOME,
    },
    Scenario {
        title: "godis' time wheel: keys with a time to live",
        play: godis::play,
        outcome: &godis::OUTCOME,
    },
];

fn main() -> ExitCode {
    let options = Options::parse();
    let mut is_right = true;
    for Scenario { title, play, outcome } in SCENARIOS {
        scene::print(&format!("\n{title}"));
        let scene = if options.check { Scene::in_virtual_time() } else { Scene::in_real_time() };
        if let Err(error) = play(&scene) {
            eprintln!("migrate: {error}");
            is_right = false;
        }
        // On a real clock nobody can promise the millisecond.
        if options.check && !scene.went_as(outcome) {
            eprintln!("migrate: this should be {outcome:#?}");
            is_right = false;
        }
    }
    ExitCode::from(u8::from(!is_right))
}
