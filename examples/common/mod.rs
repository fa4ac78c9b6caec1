//! What the examples share.

pub(crate) mod figures;
pub(crate) mod memory;
pub(crate) mod progress;
pub(crate) mod random;
