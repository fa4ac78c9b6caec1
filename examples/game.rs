//! A game's timers without an operating system: ten seconds at 60 frames a second, in WebAssembly.
//!
//! ```text
//! cargo run --example game
//! cargo build --example game --no-default-features --target wasm32-unknown-unknown
//! node -e 'WebAssembly.instantiate(fs.readFileSync(process.argv[1]))
//!     .then(({ instance }) => process.exit(instance.exports.main(0, 0)))' \
//!     target/wasm32-unknown-unknown/debug/examples/game.wasm
//! ```
//!
//! `Instant::now` panics there, and a `LocalTimer` never asks for the time: the loop counts frames.

use tickwheel::LocalTimer;

const SECOND: u64 = 60;

enum Event {
    Poison(usize),
    Respawn(usize),
}

fn main() {
    let mut timer = LocalTimer::new();
    let mut health = [10, 100];
    let mut deaths = 0;
    for player in 0..health.len() {
        timer.add(SECOND, Event::Poison(player));
    }
    let mut cure = Some(timer.add(7 * SECOND, Event::Respawn(1)));
    for frame in 0..=10 * SECOND {
        // The display calls once for each frame. What is handled here may add and cancel.
        while let Some(popped) = timer.pop(frame) {
            match popped.task {
                Event::Poison(player) if health[player] > 5 => {
                    health[player] -= 5;
                    timer.add(frame + SECOND, Event::Poison(player));
                }
                Event::Poison(player) => {
                    health[player] = 0;
                    deaths += 1;
                    timer.add(frame + 3 * SECOND, Event::Respawn(player));
                }
                Event::Respawn(player) => health[player] = 100,
            }
        }
        if frame == 6 * SECOND {
            let cancelled = cure.take().and_then(|cure| timer.cancel(cure));
            assert!(
                matches!(cancelled, Some(Event::Respawn(1))),
                "the cure was dropped"
            );
        }
    }
    println!(
        "after ten seconds: {health:?}, {deaths} died, {} timers left",
        timer.len()
    );
    assert_eq!((health, deaths, timer.len()), ([100, 50], 1, 1));
}
