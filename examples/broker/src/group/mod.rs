//! Groups: the members of each, and how far it has come.

mod coordinator;
mod join;
mod member;
mod offsets;
mod requests;
mod state;

pub(crate) use coordinator::Coordinator;
