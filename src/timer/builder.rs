//! The builder: what can be chosen about a timer, checked once.

use crate::sync::parallelism;
use crate::timer::Timer;
use crate::timer::base::Base;
use crate::timer::clock::{Clock, SystemClock, Time, Wake};
use crate::timer::context::TimerContext;
use crate::timer::delay_queue::DelayQueue;
use crate::timer::dispatcher::{Dispatcher, OnRefused};
use crate::timer::driver::Driver;
use crate::timer::entry::Task;
use crate::timer::error::BuildError;
use crate::timer::executor::{Executor, Inline};
use crate::timer::limit::Limit;
use crate::timer::owner::MAX_SHARDS;
use crate::timer::reaper::Reaper;
use crate::timer::shards::Shards;
use crate::wheel::ticks::Ticks;
use crate::wheel::timing_wheel::{MAX_SIZE, round_size};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Builds a [`Timer`]: [`Timer::builder`].
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Timer;
///
/// let timer: Timer<u64> = Timer::builder()
///     .name("sessions")
///     .tick(Duration::from_millis(10))
///     .max_pending(1_000_000)
///     .executor(|session| println!("session {session} has expired"))
///     .start()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build` or `start`"]
pub struct TimerBuilder<T: Send + 'static = Task> {
    options: Options,
    executor: Box<dyn Executor<T>>,
    on_refused: Option<OnRefused<T>>,
}

/// What a timer is made of.
struct Parts<T: Send + 'static> {
    driver: Arc<Driver>,
    shards: Arc<Shards<T>>,
    layout: (usize, usize),
}

#[derive(Debug)]
struct Options {
    name: String,
    tick: Duration,
    wheel_size: usize,
    shards: Option<usize>,
    max_pending: Option<usize>,
    clock: Clock,
    /// Whether an `on_refused` was set, and then another executor.
    lost_on_refused: bool,
}

impl Timer<Task> {
    /// Starts to build a timer of closures that run on the thread that advances it; with
    /// [`executor`](TimerBuilder::executor), one of any tasks that run anywhere.
    pub fn builder() -> TimerBuilder<Task> {
        let options = Options {
            name: "tickwheel".to_owned(),
            tick: Duration::from_millis(1),
            wheel_size: 512,
            shards: None,
            max_pending: None,
            clock: SystemClock.into(),
            lost_on_refused: false,
        };
        TimerBuilder { options, executor: Box::new(Inline), on_refused: None }
    }
}

impl<T: Send + 'static> TimerBuilder<T> {
    /// The name of the reaper thread. "tickwheel" unless set; any text without a NUL character.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// How finely the timer tells deadlines apart: timers expire less than a tick late, never
    /// early. One millisecond unless set; from a nanosecond to 584 years.
    ///
    /// A finer tick costs nothing while the timer is idle: it does not tick, it sleeps until the
    /// next bucket. It costs a wake-up per bucket that is due, and more levels for far timers.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.options.tick = tick;
        self
    }

    /// How many slots each wheel has: 512 unless set, from 1 to 2^20; rounded up to a power of two,
    /// and to 4.
    ///
    /// The level-0 wheel spans that many ticks, each overflow wheel half as many times what the one
    /// below it spans. More slots mean fewer levels to cascade, and more memory per level and
    /// shard.
    pub fn wheel_size(mut self, wheel_size: usize) -> Self {
        self.options.wheel_size = wheel_size;
        self
    }

    /// Into how many parts with a lock each the timer is divided: from 1 to 4096, rounded up to a
    /// power of two. Twice the number of hardware threads unless set. With 1 all share one wheel.
    ///
    /// A thread adds to one of two shards that are its own, and changes over when other threads
    /// often come there to cancel. So no two threads that add meet, nor one that adds and one that
    /// cancels, as long as at most half as many threads use timers at a time as there are shards;
    /// of more threads some share their shards. A thread counts from its first call to a timer, or
    /// to a handle, until it ends.
    pub fn shards(mut self, shards: usize) -> Self {
        self.options.shards = Some(shards);
        self
    }

    /// How many timers may be pending at once; [`Timer::add`] fails beyond. No limit unless set.
    /// What cannot be refused counts, but goes above it: the one timer of all
    /// [`Leases`](crate::lease::Leases); with the feature `hyper`, hyper's sleeps.
    ///
    /// A timer counts until it is cancelled or expires; no longer when its task runs. A key of a
    /// [`KeyedTimer`](crate::keyed::KeyedTimer) counts until it is gone. The count is
    /// the one thing that all adding threads share, so a limit costs them some speed.
    pub fn max_pending(mut self, max_pending: usize) -> Self {
        self.options.max_pending = Some(max_pending);
        self
    }

    /// Where the timer takes the present from: [`SystemClock`] unless set.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.options.clock = clock.into();
        self
    }

    /// Where expired tasks run, and with that, what they are: in place unless set.
    pub fn executor<U: Send + 'static>(mut self, executor: impl Executor<U>) -> TimerBuilder<U> {
        self.options.lost_on_refused |= self.on_refused.is_some();
        TimerBuilder { options: self.options, executor: Box::new(executor), on_refused: None }
    }

    /// What to do with an expired task that the executor refuses. Unless set it is dropped, and
    /// that is reported. `on_refused(Task::run)` runs it on the thread that advances the timer.
    /// Refused tasks are counted in both cases. Set it after [`executor`](Self::executor):
    /// otherwise [`BuildError::OnRefused`].
    pub fn on_refused(mut self, handler: impl Fn(T) + Send + Sync + 'static) -> Self {
        self.on_refused = Some(Box::new(handler));
        self
    }

    /// Builds a timer that whoever wants to calls [`advance_clock`](Timer::advance_clock) on.
    ///
    /// # Errors
    /// [`BuildError`] if an option is out of its range.
    pub fn build(self) -> Result<Timer<T>, BuildError> {
        let Parts { driver, shards, layout } = self.parts()?;
        Ok(Timer::new(Arc::new(Base::new(driver, None, layout)), shards))
    }

    /// Builds a timer with a reaper thread of its own, which sleeps until the next bucket is due.
    ///
    /// # Errors
    /// [`BuildError`] if an option is out of its range, or the thread can't be started.
    pub fn start(self) -> Result<Timer<T>, BuildError> {
        let name = self.options.name.clone();
        let Parts { driver, shards, layout } = self.parts()?;
        let reaped = Arc::clone(&driver);
        let counted = Arc::clone(&driver.context);
        let failed = move || counted.count_panic();
        let reaper = Reaper::start(&name, move || reaped.reap(), failed);
        let reaper = reaper.map_err(BuildError::Thread)?;
        Ok(Timer::new(Arc::new(Base::new(driver, Some(reaper), layout)), shards))
    }

    fn parts(self) -> Result<Parts<T>, BuildError> {
        let Options { name, tick, wheel_size, shards, max_pending, clock, lost_on_refused } =
            self.options;
        if lost_on_refused {
            return Err(BuildError::OnRefused);
        }
        BuildError::check_name(&name)?;
        let tick = u64::try_from(tick.as_nanos()).map_err(|_| BuildError::Tick)?;
        if tick == 0 {
            return Err(BuildError::Tick);
        }
        if !(1..=MAX_SIZE).contains(&wheel_size) {
            return Err(BuildError::WheelSize);
        }
        let shards = shards.unwrap_or_else(|| 2 * parallelism().min(2048));
        if !(1..=MAX_SHARDS).contains(&shards) {
            return Err(BuildError::Shards);
        }
        let ticks = Ticks::new(tick);
        let delay_queue = Arc::new(DelayQueue::default());
        if let Some(clock) = clock.as_manual() {
            let sleeper: Weak<DelayQueue> = Arc::downgrade(&delay_queue);
            clock.add_sleeper(sleeper as Weak<dyn Wake>);
        }
        let time = Time::new(clock, ticks);
        let limit = max_pending.map(Limit::new);
        let driver = Arc::new(Driver::new(Arc::new(TimerContext::new(time, delay_queue, limit))));
        let layout = (shards.next_power_of_two(), round_size(wheel_size));
        let dispatcher = Dispatcher::new(self.executor, self.on_refused);
        let shards = driver.register(|first| {
            Arc::new(Shards::new(Arc::clone(&driver.context), dispatcher, layout, first))
        });
        Ok(Parts { driver, shards, layout })
    }
}

impl<T: Send + 'static> fmt::Debug for TimerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}
