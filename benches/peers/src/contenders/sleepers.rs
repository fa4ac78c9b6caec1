//! Those who make sleeps.

use crate::sleeps::Sleeper;
use futures_timer::Delay;
use std::time::Duration;
use tickwheel::Timer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::coop::unconstrained;

/// tickwheel's sleeps, with the reaper running.
impl Sleeper for Timer {
    const THREAD: &'static str = "sleeps";

    fn new() -> Self {
        Timer::builder().name(Self::THREAD).start().expect("a thread")
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        Timer::sleep(self, delay)
    }
}

/// tokio's, in a runtime whose worker drives them.
pub struct TokioSleep(Runtime);

impl Sleeper for TokioSleep {
    const THREAD: &'static str = "tokio-sleeps";

    fn new() -> Self {
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name(Self::THREAD).enable_time();
        TokioSleep(builder.build().expect("a runtime"))
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        tokio::time::sleep(delay)
    }

    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.block_on(unconstrained(async { work() }))
    }
}

/// The crate pingora-timeout: one timer for all sleeps of a thread that end within the same 10 ms.
/// It is not taken out when they are dropped.
pub struct Pingora;

impl Sleeper for Pingora {
    const THREAD: &'static str = "Timer thread";

    fn new() -> Self {
        Pingora
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        pingora_timeout::fast_timeout::fast_sleep(delay)
    }
}

/// The crate futures-timer: a heap in a thread that is sent each new and each dropped sleep.
pub struct FuturesTimer;

impl Sleeper for FuturesTimer {
    const THREAD: &'static str = "futures-timer";

    fn new() -> Self {
        FuturesTimer
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        Delay::new(delay)
    }
}
