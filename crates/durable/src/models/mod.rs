//! Schedule-exploring models of nodes on one store: `.ci/models` runs them.
//!
//! ```text
//! RUSTFLAGS="--cfg tickwheel_model" CARGO_TARGET_DIR=target/model \
//!     cargo test --release -p tickwheel-durable --lib models -- --nocapture
//! ```
//!
//! The store is the one in memory, each of whose calls is one step: shuttle chooses what happens
//! before a call arrives and before its answer does. The nodes are made of the code that is
//! shipped: claimer, runner, acker, slots, window and loader. Each says what bug it was seen to
//! catch ("Fails when ...").

mod claims;
#[path = "../../../../tests/models/harness.rs"]
#[allow(dead_code, reason = "none of these models is a pair of calls")]
mod harness;
mod slots;
mod world;
