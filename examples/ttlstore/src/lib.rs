//! A server for Redis' clients whose keys vanish on time: they lie, with their values and
//! deadlines, in a [`tickwheel::keyed::KeyedTimer`].

// In reading order: the keys and their deadlines, the commands, the wire.
pub mod deadline;
pub mod store;
pub mod slot;
pub mod tally;
mod watches;
pub mod memory;
pub mod events;
pub mod seat;
pub mod shared;
pub mod command;
pub mod glob;
pub mod client;
pub mod transaction;
mod line;
pub mod request;
pub mod reply;
pub mod session;
pub mod server;
pub mod metrics;
