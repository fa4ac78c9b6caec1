//! Sleeps: tickwheel's, those of tokio's two timers, and others.

use crate::sleeps::Sleeper;
use crate::tasks::TaskSleeper;
use futures_timer::Delay;
use std::future::Future;
use std::time::Duration;
use tickwheel::Timer;
use tokio::runtime::{Builder, Runtime};
use tokio::task::coop::unconstrained;

/// tickwheel's sleeps, with the reaper running.
impl Sleeper for Timer {
    const THREAD: &'static str = "sleeps";

    fn new() -> Self {
        Timer::builder()
            .name(Self::THREAD)
            .start()
            .expect("a thread")
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        Timer::sleep(self, delay)
    }
}

impl TaskSleeper for Timer {
    fn task_sleep(&self, delay: Duration) -> impl Future<Output: Send> + Send + 'static {
        Timer::sleep(self, delay)
    }

    fn runtime(workers: usize) -> Runtime {
        TokioSleep::<false>::runtime(workers)
    }
}

/// tokio's, in a runtime whose worker drives them; or those of its alternative timer.
pub struct TokioSleep<const ALTERNATIVE: bool>(Runtime);

impl<const ALTERNATIVE: bool> Sleeper for TokioSleep<ALTERNATIVE> {
    const THREAD: &'static str = "tokio-sleeps";

    fn new() -> Self {
        TokioSleep(Self::runtime(1))
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        tokio::time::sleep(delay)
    }

    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.block_on(unconstrained(async { work() }))
    }
}

impl<const ALTERNATIVE: bool> TaskSleeper for TokioSleep<ALTERNATIVE> {
    fn task_sleep(&self, delay: Duration) -> impl Future<Output: Send> + Send + 'static {
        tokio::time::sleep(delay)
    }

    fn runtime(workers: usize) -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(workers)
            .thread_name(Self::THREAD)
            .enable_time();
        #[cfg(tokio_unstable)]
        if ALTERNATIVE {
            builder.enable_alt_timer();
        }
        builder.build().expect("a runtime")
    }
}

/// compio's, in a runtime of the thread that sleeps.
pub struct Compio;

impl Sleeper for Compio {
    const THREAD: &'static str = "tickwheel-peers";

    fn new() -> Self {
        Compio
    }

    fn sleep(&self, delay: Duration) -> impl Future {
        compio::time::sleep(delay)
    }

    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        compio::runtime::Runtime::new()
            .expect("a runtime")
            .block_on(async { work() })
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
