//! What the demos share: figures, memory, a progress line, random numbers.

pub mod figures;
pub mod memory;
pub mod progress;
pub mod random;
