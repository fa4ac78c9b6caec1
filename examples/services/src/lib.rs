//! The cores of the programs in `src/bin`, which tests run as well.

#![forbid(unsafe_code)]

pub mod echo;
pub mod heartbeat;
pub mod locks;
pub mod redis_server;
pub mod retry;
pub mod rpc;
pub mod timeline;
