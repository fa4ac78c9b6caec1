//! Consumer groups: members share a topic's partitions, and notice when one of them is gone.

mod admin;
mod coordinator;
mod join;
mod member;
mod offset_requests;
mod offsets;
mod protocols;
mod requests;
mod state;

pub use coordinator::{Coordinator, Terms};
