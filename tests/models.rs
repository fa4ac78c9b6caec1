//! Schedule-exploring models of the shipped timer and purgatory: `.ci/models` runs them.
//!
//! ```text
//! RUSTFLAGS="--cfg tickwheel_model" CARGO_TARGET_DIR=target/model \
//!     cargo test --release --features __model --test models -- --nocapture
//! ```
//!
//! Each model is a small program of two to four threads, mostly on a manual clock. shuttle runs it
//! under `TICKWHEEL_SCHEDULES` schedules (10,000 unless set) drawn at random and as many of its PCT
//! scheduler, which finds what takes up to three well-placed preemptions. Then it runs all
//! schedules without preemptions, with one, with two, and so on, as long as those of one kind are
//! no more than `TICKWHEEL_EXHAUSTIVE` (2,000 unless set). A lost wake-up shows as a deadlock,
//! because no wait times out. shuttle assumes sequential consistency: weaker memory orders are not
//! explored here.
//!
//! To replay the schedule that a failure prints: `SHUTTLE_REPLAY='910102...'` and the model's name.
//! Random bits are not replayed if the schedule was an exhaustive one; but those are run in the
//! same order each time.
//!
//! The thread that opens a `thread::scope` only spawns in it: in shuttle 0.9.9 the last thread that
//! ends wakes it even where it waits for something else, and then it fails.
//!
//! Beside each model stands a bug that it was seen to catch ("Fails when ...").
#![cfg(tickwheel_model)]

#[path = "models/harness.rs"]
mod harness;
#[path = "models/limbo.rs"]
mod limbo;
#[path = "models/stand.rs"]
mod stand;
#[path = "models/world.rs"]
mod world;

#[path = "models/buckets.rs"]
mod buckets;
#[path = "models/drives.rs"]
mod drives;
#[path = "models/futures.rs"]
mod futures;
#[path = "models/handles.rs"]
mod handles;
#[path = "models/items.rs"]
mod items;
#[path = "models/keys.rs"]
mod keys;
#[path = "models/purgatory.rs"]
mod purgatory;
#[path = "models/series.rs"]
mod series;
#[path = "models/shutdown.rs"]
mod shutdown;
#[path = "models/standing.rs"]
mod standing;
