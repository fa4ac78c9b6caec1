#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// In reading order: what is registered, what is read from it, how Prometheus gets that.
mod metrics;
mod figures;
mod encode;

pub use figures::{
    Count, Figures, LatenessFigures, LeaseFigures, LevelFigures, PurgatoryFigures, TimerFigures,
};
pub use metrics::Metrics;
