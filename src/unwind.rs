//! What may be used on both sides of a `catch_unwind`, though the compiler cannot tell: the places
//! where a user's code is kept. The compiler concludes the same of all that is built of them.
//!
//! A structure that was in use at the moment of a panic may be left half changed. Those of this
//! crate never are. They lie behind locks, and tasks, operations, executors and stores are called,
//! dropped and given back with no lock held. The only user code that runs under a lock is a clock
//! of the user's, a key's own `Eq`, `Clone` and `Drop`, and, of a keyed timer, the closures that
//! look at a task in its place, the task's `Clone` in `get`, and whatever is done while an entry is
//! held. A panic there may cost an entry or a key its timer, but leaves nothing behind that would
//! make a later call fail.

use crate::engine::clock::Clock;
use crate::engine::report::Contained;
use crate::keyed::keys::Expiry;
use crate::purgatory::check::Common;
use crate::timer::builder::TimerBuilder;
use crate::timer::entry::Task;
use crate::timer::executor::Worker;
use std::panic::{RefUnwindSafe, UnwindSafe};

impl UnwindSafe for Clock {}
impl RefUnwindSafe for Clock {}
impl<K, T> UnwindSafe for Expiry<K, T> {}
impl<K, T> RefUnwindSafe for Expiry<K, T> {}
impl UnwindSafe for Common {}
impl RefUnwindSafe for Common {}
// A task is consumed as it runs.
impl UnwindSafe for Task {}
impl RefUnwindSafe for Task {}
impl<T> UnwindSafe for Contained<T> {}
impl<T> RefUnwindSafe for Contained<T> {}
impl<T> UnwindSafe for Worker<T> {}
impl<T> RefUnwindSafe for Worker<T> {}
// A builder is consumed as it builds: no code sees it after a panic in that.
impl<T: Send + 'static> UnwindSafe for TimerBuilder<T> {}
impl<T: Send + 'static> RefUnwindSafe for TimerBuilder<T> {}
