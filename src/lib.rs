//! x
#![forbid(unsafe_code)]
#![warn(missing_docs)]
mod bucket;
mod builder;
mod cell;
mod clock;
mod delay_queue;
mod driver;
mod entry;
mod error;
mod executor;
mod gate;
mod limit;
mod local;
mod reaper;
mod report;
mod shard;
mod slab;
mod stats;
mod sync;
mod timeout;
mod timer;
mod wheel;
mod wheels;

pub use builder::TimerBuilder;
pub use clock::{Clock, ManualClock, SystemClock};
pub use entry::{IntoTask, Task, TimerEntry, When};
pub use error::{AddError, BuildError};
pub use executor::{Batch, Executor, Inline, Outcome, Worker};
pub use local::{LocalTimer, TimerKey};
pub use stats::{Lateness, LevelSnapshot, Snapshot, Stats};
pub use timeout::{Cancel, CancelOnDrop, Timeout};
pub use timer::Timer;
