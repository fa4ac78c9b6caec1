//! The builder: the options of a timer, checked once.

use crate::engine::clock::{Clock, SystemClock, Time};
use crate::engine::reaper::{Engine, Reaper};
use crate::engine::shard::TimerContext;
use crate::sync::parallelism;
use crate::timer::entry::Task;
use crate::timer::error::BuildError;
use crate::timer::executor::{Executor, Inline};
use crate::timer::sleep::Sleeps;
use crate::timer::tasks::{OnRefused, Tasks};
use crate::timer::{Base, Timer};
use crate::wheel::level::MAX_SIZE;
use crate::wheel::tick::TickLength;
use std::any::Any;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

const MAX_SHARDS: usize = 4096;

/// Builds a [`Timer`]; created by [`Timer::builder`].
///
/// Options are checked by [`build`](Self::build) and [`start`](Self::start), not by the setters.
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
pub struct TimerBuilder<T = Task> {
    options: Options,
    executor: Box<dyn Executor<T>>,
    on_refused: Option<OnRefused<T>>,
}

// A builder is consumed as it builds: no code sees it after a panic.
impl<T> UnwindSafe for TimerBuilder<T> {}
impl<T> RefUnwindSafe for TimerBuilder<T> {}

#[derive(Debug)]
struct Options {
    name: String,
    tick: Duration,
    wheel_size: usize,
    shards: Option<usize>,
    max_pending: Option<usize>,
    clock: Clock,
    warn_on_drop: bool,
    /// Whether an executor was set after an `on_refused`.
    lost_on_refused: bool,
}

impl Timer<Task> {
    /// Returns a builder with the default options: tasks are closures, and run on the thread that
    /// advances the timer. [`executor`](TimerBuilder::executor) changes both.
    pub fn builder() -> TimerBuilder<Task> {
        let options = Options {
            name: "tickwheel".to_owned(),
            tick: Duration::from_millis(1),
            wheel_size: 512,
            shards: None,
            max_pending: None,
            clock: SystemClock.into(),
            warn_on_drop: true,
            lost_on_refused: false,
        };
        TimerBuilder {
            options,
            executor: Box::new(Inline),
            on_refused: None,
        }
    }
}

impl<T: Send + 'static> TimerBuilder<T> {
    /// Names the timer in its [`Stats`](crate::Stats), its `Debug`, its `tracing` events, and its
    /// reaper thread. Any text without a NUL character. Default: "tickwheel".
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Sets the resolution of deadlines, from one nanosecond to 584 years. Timers expire less than
    /// a tick late. Default: one millisecond.
    ///
    /// A finer tick costs a wake-up for each due bucket, and more levels for far timers, but
    /// nothing while the timer is idle.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.options.tick = tick;
        self
    }

    /// Sets the number of slots of each wheel, from 1 to 2^20, rounded up to a power of two of at
    /// least 4. Default: 512.
    ///
    /// The level-0 wheel spans that many ticks, and each overflow wheel half that many times the
    /// wheel below it. More slots mean fewer levels to cascade, and more memory for each level and
    /// shard.
    pub fn wheel_size(mut self, wheel_size: usize) -> Self {
        self.options.wheel_size = wheel_size;
        self
    }

    /// Sets the number of shards, from 1 to 4096, rounded up to a power of two. Default: twice the
    /// number of hardware threads.
    ///
    /// On a [`ManualClock`](crate::ManualClock) the default is one, also for keyed timers and
    /// purgatories, so that every run is the same.
    ///
    /// Each shard has its own wheels and its own lock. Each thread uses two shards, and changes to
    /// the other one when it finds one taken. Threads seldom wait for each other while at most half
    /// as many threads use the timer as there are shards.
    pub fn shards(mut self, shards: usize) -> Self {
        self.options.shards = Some(shards);
        self
    }

    /// Limits the number of pending timers: [`Timer::add`] fails beyond it. Default: no limit.
    ///
    /// Timers that cannot be refused count as well, but may exceed the limit: entries that an
    /// executor or the closure of a keyed timer returns, and hyper's sleeps.
    ///
    /// A timer counts until it is cancelled or expires. A key of a
    /// [`KeyedTimer`](crate::keyed::KeyedTimer) counts until it is removed, an operation of a
    /// [`Purgatory`](crate::purgatory::Purgatory) until it ends, and a future while it waits. All
    /// adding threads share this count, so a limit costs them some speed.
    pub fn max_pending(mut self, max_pending: usize) -> Self {
        self.options.max_pending = Some(max_pending);
        self
    }

    /// Sets the clock that the timer reads. Default: [`SystemClock`].
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.options.clock = clock.into();
        self
    }

    /// Sets whether the drop of the [last clone](crate::Timer#the-last-clone) warns of the pending
    /// tasks that it drops. Default: true, because most such drops are mistakes.
    pub fn warn_on_drop(mut self, warn_on_drop: bool) -> Self {
        self.options.warn_on_drop = warn_on_drop;
        self
    }

    /// Sets where expired tasks run, and the type of the tasks. Default: [`Inline`], which runs
    /// closures on the thread that advances the timer.
    ///
    /// Tasks are passed by value on that thread's stack. A reaper has std's default of 2 MiB,
    /// unless `RUST_MIN_STACK` says otherwise. Put a task of more than some kilobytes into a `Box`.
    pub fn executor<U: Send + 'static>(mut self, executor: impl Executor<U>) -> TimerBuilder<U> {
        self.options.lost_on_refused |= self.on_refused.is_some();
        TimerBuilder {
            options: self.options,
            executor: Box::new(executor),
            on_refused: None,
        }
    }

    /// Sets what happens to an expired task that the executor refuses. Default: it is dropped with
    /// a warning. `on_refused(Task::run)` runs it on the thread that advances the timer. Refused
    /// tasks are counted in both cases.
    ///
    /// Call this after [`executor`](Self::executor): in the other order, [`build`](Self::build) and
    /// [`start`](Self::start) return [`BuildError::OnRefused`].
    pub fn on_refused(mut self, handler: impl Fn(T) + Send + Sync + 'static) -> Self {
        self.on_refused = Some(Box::new(handler));
        self
    }

    /// Builds a timer without a thread. Drive it with [`advance_clock`](Timer::advance_clock), or
    /// by a future with [`drive`](Timer::drive).
    ///
    /// # Errors
    /// [`BuildError`] if an option is out of its range, or if [`on_refused`](Self::on_refused) was
    /// called before [`executor`](Self::executor).
    pub fn build(self) -> Result<Timer<T>, BuildError> {
        self.make(false)
    }

    /// Builds a timer with its own reaper thread, which hands expired tasks to the executor.
    ///
    /// # Forks
    /// The child of a `fork` has no copy of the reaper. There, tasks are accepted, and expire only
    /// if you call `advance_clock`. [`Stats::forked`](crate::Stats::forked) is true there. See
    /// [what was made before a fork](crate::guide::runtimes#what-was-made-before-a-fork).
    ///
    /// # Errors
    /// [`BuildError`] if an option is out of its range, if [`on_refused`](Self::on_refused) was
    /// called before [`executor`](Self::executor), or if the thread can't be started.
    pub fn start(self) -> Result<Timer<T>, BuildError> {
        self.make(true)
    }

    fn make(self, with_reaper: bool) -> Result<Timer<T>, BuildError> {
        let Options {
            name,
            tick,
            wheel_size,
            shards,
            max_pending,
            clock,
            warn_on_drop,
            lost_on_refused,
        } = self.options;
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
        let shards = shards.unwrap_or(if clock.is_manual() {
            1 // Every run is the same.
        } else {
            // Each thread uses two: see `sync::home`.
            (2 * parallelism()).min(MAX_SHARDS)
        });
        if !(1..=MAX_SHARDS).contains(&shards) {
            return Err(BuildError::Shards);
        }
        let shards = shards.next_power_of_two();
        let time = Time::new(clock, TickLength::new(tick));
        let context = Arc::new(TimerContext::new(
            name.into(),
            time,
            max_pending,
            with_reaper,
        ));
        let engine = Arc::new(Engine::new(context));
        if let Some(clock) = engine.context.time.clock.as_manual() {
            let timer = Arc::downgrade(&engine);
            clock.add(timer);
        }
        let tasks = Tasks::register(&engine, shards, wheel_size, self.executor, self.on_refused);
        // A timer of closures is its own `closures`. Only a cast can ask whether `T` is `Task`.
        let own = (&tasks as &dyn Any)
            .downcast_ref::<Arc<Tasks<Task>>>()
            .cloned();
        let closures = own.unwrap_or_else(|| {
            Tasks::register(&engine, shards, wheel_size, Box::new(Inline), None)
        });
        let sleeps = Sleeps::register(&engine, shards, wheel_size);
        let reaper = with_reaper.then(|| Reaper::start(&engine)).transpose();
        let reaper = reaper.map_err(BuildError::Thread)?;
        Ok(Timer {
            base: Arc::new(Base {
                engine,
                reaper,
                warn_on_drop,
                closures,
                sleeps,
            }),
            tasks,
        })
    }
}

impl<T> fmt::Debug for TimerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}
