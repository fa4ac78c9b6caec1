//! The locks and tasks of a node: std's and tokio's, and shuttle's in models.
//!
//! With `--cfg tickwheel_model` the code that is shipped runs under shuttle, which chooses at each
//! lock and each wait who goes on.

#[cfg(tickwheel_model)]
pub(crate) use shuttle::{
    future::spawn,
    sync::{Mutex, MutexGuard},
};
#[cfg(not(tickwheel_model))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(tickwheel_model))]
pub(crate) use tokio::spawn;
