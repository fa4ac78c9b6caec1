//! What the demos share: figures, a ledger, memory, a progress line, random numbers.

pub mod figures;
pub mod ledger;
pub mod memory;
pub mod progress;
pub mod random;
