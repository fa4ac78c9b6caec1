//! Everything that ends: timers and what is built on them, in any order and on any thread.
//!
//! A storm makes, shuts down and drops some timers at once, with everything on them. It checks that
//! what nobody has ended still works, and that what has ended does nothing any more and leaves
//! nothing behind. Beside it are the ends that it meets too seldom: races that are held open, and
//! operations that are being checked.
//!
//! - `TICKWHEEL_ENDS_SECONDS`: for how long, with other rounds each time; the same few unless set.
//! - `TICKWHEEL_ENDS_SEED`: repeats the round with this seed.

mod checked;
#[path = "../common/idle.rs"]
mod idle;
mod pieces;
mod races;
mod site;
mod steps;
mod storm;
#[path = "../common/until.rs"]
mod until;
#[path = "../common/calls.rs"]
mod calls;
#[path = "../common/wakes.rs"]
mod wakes;

pub(crate) use idle::Idle;
use std::sync::mpsc::channel;
use std::time::Duration;
use tickwheel::{ManualClock, Timer};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Only a bug takes that long.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// A timer in virtual time, which nothing drives.
pub(crate) fn by_hand() -> Timer {
    Timer::builder().clock(ManualClock::new()).build().unwrap()
}

/// Does it on a thread of its own, which may hang.
pub(crate) fn within(code: impl FnOnce() + Send + 'static) {
    let (sender, has_ended) = channel();
    std::thread::spawn(move || {
        code();
        sender.send(()).unwrap();
    });
    has_ended.recv_timeout(HANG).expect("it panicked or hangs");
}
