//! Consumer groups: members share a topic's partitions, and notice when one of them is gone.

mod coordinator;
mod join;
mod member;
mod offsets;
mod requests;
mod state;

pub use coordinator::{Coordinator, Terms};
