//! Nodes on a store in memory, in virtual time.

mod alone;
mod rig;
mod together;
