//! The timer entry: a task and its deadline.

use crate::engine::clock::When;
use crate::sync::Mutex;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// A task and its deadline, to be [added](crate::Timer::add) to a timer.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry};
///
/// let timer: Timer = Timer::builder().build()?;
/// timer.add(TimerEntry::after(Duration::from_millis(10), || println!("closure")))?;
///
/// // A service with millions of timers keeps its own small type instead, and allocates nothing.
/// let timer: Timer<u64> = Timer::builder().executor(|id| println!("request {id}")).build()?;
/// timer.add(TimerEntry::at(timer.now() + Duration::from_secs(30), 7_u64))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Timer::after`](crate::Timer::after) and [`Timer::at`](crate::Timer::at) make an entry and add
/// it. Make one yourself where a closure returns it, such as that of a
/// [`KeyedTimer`](crate::keyed::KeyedTimer), or to add it later.
///
/// If the compiler finds a `TimerEntry<{closure}>` instead of a `TimerEntry`, the closure returns a
/// value, or is not `Send`: `Timer::after` says which. If it finds a `TimerEntry<{async block}>`,
/// see [`IntoTask`].
#[derive(Debug, Clone)]
#[must_use = "an entry does nothing until it is added to a timer"]
pub struct TimerEntry<T = Task> {
    when: When,
    task: T,
}

impl<T> TimerEntry<T> {
    /// Creates an entry whose task expires at `when`: after a `Duration`, at an `Instant` of the
    /// timer's clock, or [never](When::Never).
    pub fn new(when: impl Into<When>, task: impl IntoTask<T>) -> Self {
        TimerEntry {
            when: when.into(),
            task: task.into_task(),
        }
    }

    /// Creates an entry whose task expires `delay` after it is added; zero means at once.
    ///
    /// Any delay up to [`Duration::MAX`] is valid. A deadline more than 584 years after the timer
    /// was built never expires.
    pub fn after(delay: Duration, task: impl IntoTask<T>) -> Self {
        Self::new(delay, task)
    }

    /// Creates an entry whose task expires at `deadline`, a time of the timer's clock, or at once
    /// if that has passed.
    ///
    /// A deadline before the timer was built counts everywhere as the moment at which it was built.
    ///
    /// Often cheaper than [`after`](Self::after) if you know the time already: the clock is not
    /// read if the deadline lies beyond the finest wheel, in a slot that is in use.
    pub fn at(deadline: Instant, task: impl IntoTask<T>) -> Self {
        Self::new(deadline, task)
    }

    /// Returns when the entry expires.
    #[must_use]
    pub fn when(&self) -> When {
        self.when
    }

    /// Returns the task.
    #[must_use]
    pub fn task(&self) -> &T {
        &self.task
    }

    /// Takes the task out.
    #[must_use = "the task is dropped otherwise"]
    pub fn into_task(self) -> T {
        self.task
    }
}

/// The default task of a [`Timer`](crate::Timer): a closure that runs once.
pub struct Task(Closure);

enum Closure {
    /// The lock is never taken: it makes the closure `Sync`.
    Once(Mutex<Box<dyn FnOnce() + Send>>),
    Shared(SharedClosure, u64),
    OnRunOrDrop(CallOnDrop),
}

/// A shared closure that is called with its number when this is dropped.
struct CallOnDrop(SharedClosure, u64);

impl Drop for CallOnDrop {
    #[inline]
    fn drop(&mut self) {
        (self.0)(self.1);
    }
}

// A task is consumed as it runs.
impl UnwindSafe for Task {}
impl RefUnwindSafe for Task {}

/// A closure that many tasks share, each with its own number; see [`Task::shared`].
pub type SharedClosure = Arc<dyn Fn(u64) + Send + Sync>;

impl Task {
    /// Creates a task that calls `closure`. Allocates.
    pub fn new(closure: impl FnOnce() + Send + 'static) -> Self {
        Task(Closure::Once(Mutex::new(Box::new(closure))))
    }

    /// Creates a task that calls `closure` with `number`: for tasks that differ only in a number.
    /// Allocates nothing.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// use tickwheel::{SharedClosure, Task, Timer, TimerEntry};
    ///
    /// let timer = Timer::builder().start()?;
    /// let expire: SharedClosure = Arc::new(|session| println!("session {session} is idle"));
    /// for session in 0..1000 {
    ///     let task = Task::shared(Arc::clone(&expire), session);
    ///     timer.add(TimerEntry::after(Duration::from_secs(30), task))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared(closure: SharedClosure, number: u64) -> Self {
        Task(Closure::Shared(closure, number))
    }

    /// Creates a shared task whose closure is called once: when the task is run, or dropped without
    /// being run.
    pub(crate) fn on_run_or_drop(closure: SharedClosure, number: u64) -> Self {
        Task(Closure::OnRunOrDrop(CallOnDrop(closure, number)))
    }

    /// Runs the closure on this thread.
    ///
    /// # Panics
    /// If the closure panics.
    pub fn run(self) {
        match self.0 {
            Closure::Once(closure) => closure.into_inner()(),
            Closure::Shared(closure, number) => closure(number),
            Closure::OnRunOrDrop(call) => drop(call),
        }
    }
}

/// Creates a task that wakes the waker. Allocates.
impl From<Waker> for Task {
    fn from(waker: Waker) -> Self {
        Task::new(move || waker.wake())
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// Converts what is added to a timer into its task: a `T` for a [`Timer<T>`](crate::Timer), and a
/// closure for the default [`Task`].
///
/// The closure takes no arguments and returns nothing. It is `Send` and `'static`, because it runs
/// later and perhaps on another thread. The trait is sealed: a `Timer<T>` takes every `T` as it is.
///
/// ```compile_fail,E0277
/// # use tickwheel::{IntoTask, Task};
/// struct Call(u32);
///
/// impl IntoTask<Task> for Call {
///     fn into_task(self) -> Task {
///         Task::new(move || println!("call {}", self.0))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a task of a `Timer<{T}>`",
    label = "not a `{T}`, nor a closure that a timer of closures takes",
    note = "a task of the default `Timer` is a closure `move || {{ ...; }}` without arguments that \
            returns nothing, and is `Send + 'static`",
    note = "a future is no task: await `timer.sleep(delay)` in async code, or let a closure spawn \
            it on your runtime",
    note = "a `Timer<T>` with its own type of task takes values of that type only; \
            `timer.closures()` shares its thread and takes closures",
    note = "the executor fixes the type of task: `Timer::builder().executor(|call: Call| ...)` \
            builds a `Timer<Call>`"
)]
pub trait IntoTask<T>: Sealed<T> {
    /// Converts this value into the task.
    fn into_task(self) -> T;
}

impl<T> IntoTask<T> for T {
    fn into_task(self) -> T {
        self
    }
}

impl<F: FnOnce() + Send + 'static> IntoTask<Task> for F {
    fn into_task(self) -> Task {
        Task::new(self)
    }
}

/// Seals a trait that converts into `X`: users cannot name this one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot implement this trait, which tickwheel has sealed",
    note = "convert your value first, for example by `Task::new` or a `From` of your own"
)]
pub trait Sealed<X> {}

impl<T> Sealed<T> for T {}
impl<F: FnOnce() + Send + 'static> Sealed<Task> for F {}
