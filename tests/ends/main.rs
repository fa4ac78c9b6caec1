//! Everything that ends: timers and what is built on them, in any order and on any thread.
//!
//! A storm makes, shuts down and drops some timers at once, with everything on them. It checks that
//! what nobody has ended still works, and that what has ended does nothing any more and leaves
//! nothing behind.
//!
//! - `TICKWHEEL_ENDS_SECONDS`: for how long, with other rounds each time; the same few unless set.
//! - `TICKWHEEL_ENDS_SEED`: repeats the round with this seed.

#[path = "../common/random.rs"]
mod random;
mod site;
mod steps;
mod storm;
mod watchdog;

use std::time::Duration;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Only a bug takes that long.
pub(crate) const HANG: Duration = Duration::from_secs(20);
