#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// In reading order: what is registered, what is read from it, how Prometheus gets that.
mod metrics;
#[cfg(feature = "durable")]
mod durable;
mod figures;
mod lateness;
mod encode;

pub use figures::{Count, Figures, LevelFigures, PurgatoryFigures, TimerFigures};
pub use lateness::LatenessFigures;
pub use metrics::Metrics;
