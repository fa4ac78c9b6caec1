//! The executor: where expired tasks run.

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread;
use crate::timer::entry::Task;
use crate::timer::error::BuildError;
use crate::timer::report::catch_panic;
use std::fmt;
use std::sync::{Arc, mpsc};

/// Runs the tasks of a timer when they have expired, or hands them to somebody who does.
///
/// Called by the thread that advances the timer, the reaper for example, with no lock held. So it
/// may add, cancel, reschedule and shut down; but while it runs, nothing else expires. What takes
/// long belongs on a thread of its own: [`Worker`], a pool, an async runtime.
///
/// Every `Fn(T)` is an executor that runs tasks in place, or hands them on. A
/// `Fn(T) -> Result<(), T>` is one that may refuse: the task comes back in `Err`.
///
/// | executor | refuses | a task's panic | ends |
/// |---|---|---|---|
/// | in place: [`Inline`], a closure | never | is counted by the timer | with the timer |
/// | [`Worker`] | what does not fit | is counted by the timer | when it has run what it has |
/// | channel into your loop | what does not fit | is the loop's | at once: what it has is dropped |
/// | tokio's `spawn`, `spawn_blocking` | never | is in the `JoinHandle` | at once, likewise |
/// | rayon pool's `spawn` | never | is its `panic_handler`'s | when it has run what it has |
///
/// What was handed on has expired, and is the executor's: [`shutdown`](crate::Timer::shutdown)
/// returns what had not expired. The timer drops its executor when its last clone is dropped.
///
/// # Your own loop
/// ```
/// use std::sync::mpsc::{self, TrySendError};
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry};
///
/// // Full, or without its receiver, the channel refuses.
/// let (sender, expired) = mpsc::sync_channel(1024);
/// let timer: Timer<u64> = Timer::builder()
///     .executor(move |id| {
///         sender.try_send(id).map_err(|error| match error {
///             TrySendError::Full(id) | TrySendError::Disconnected(id) => id,
///         })
///     })
///     .on_refused(|id| println!("request {id} has timed out, and the loop is behind"))
///     .start()?;
/// timer.add(TimerEntry::after(Duration::from_millis(1), 7_u64))?;
/// for id in &expired {
///     println!("request {id} has timed out");
/// #   break;
/// } // Ends with the timer.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// With `send` in place of `try_send` the timer waits for the loop, and nothing else expires
/// meanwhile. The page [`guide::runtimes`](crate::guide::runtimes) has
/// recipes for tokio, rayon and hyper.
///
/// # Another executor for some entries
/// A task can hand its work on itself. That costs the other entries nothing. It sees to a refusal
/// itself as well; the timer counts none, and no panic of what was handed on.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tickwheel::{Executor, Task, Timer, TimerEntry, Worker};
///
/// let timer = Timer::builder().start()?; // Most tasks are quick, and run in place.
/// let reports = Arc::new(Worker::bounded("reports", 100, Task::run)?);
/// let named = Arc::clone(&reports);
/// timer.add(TimerEntry::after(Duration::from_millis(1), move || {
///     if let Err(report) = named.execute(Task::new(|| println!("a long report"))) {
///         report.run(); // It is full: here.
///     }
/// }))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Many entries that name the same one share a closure: [`Task::shared`]. Where tasks are of your
/// own type, let the timer's executor look at each, and send it where it belongs:
///
/// ```
/// use std::sync::mpsc::{self, TrySendError};
/// use tickwheel::Timer;
///
/// enum Work {
///     Ping(u64),
///     Report(u64),
/// }
///
/// let (sender, reports) = mpsc::sync_channel(100);
/// let timer: Timer<Work> = Timer::builder()
///     .executor(move |work| match work {
///         Work::Ping(peer) => {
///             println!("ping {peer}");
///             Ok(())
///         }
///         Work::Report(_) => sender.try_send(work).map_err(|error| match error {
///             TrySendError::Full(work) | TrySendError::Disconnected(work) => work,
///         }),
///     })
///     .start()?;
/// # drop((timer, reports));
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
pub trait Executor<T>: Send + Sync + 'static {
    /// Runs `task` or hands it on. `Err` refuses it: then it is counted, and given to the builder's
    /// `on_refused`, or dropped and reported.
    ///
    /// A panic is contained, counted as a panic of the task, and reported.
    fn execute(&self, task: T) -> Result<(), T>;

    /// The same for all the tasks that expired together. Override it where handing on many at once
    /// is cheaper.
    fn execute_batch(&self, batch: &mut Batch<'_, T>) {
        while let Some(task) = batch.next() {
            if let Err(task) = self.execute(task) {
                batch.refuse(task);
            }
        }
    }

    /// Tasks that panicked after they were handed on, for [`Stats`](crate::Stats).
    fn panicked(&self) -> u64 {
        0
    }
}

/// Tasks that expired together: an iterator that hands them out, and takes refused ones back.
#[derive(Debug)]
pub struct Batch<'a, T> {
    pub(crate) tasks: std::vec::Drain<'a, T>,
    pub(crate) refused: Vec<T>,
}

impl<T> Batch<'_, T> {
    /// Gives back a task that the executor does not take.
    pub fn refuse(&mut self, task: T) {
        self.refused.push(task);
    }
}

impl<T> Iterator for Batch<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.tasks.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.tasks.size_hint()
    }
}

impl<T> ExactSizeIterator for Batch<'_, T> {}

/// What a closure that executes tasks returns: nothing, or a result that may refuse.
pub trait IntoExecuteResult<T> {
    /// `Err` with the task if it was refused.
    fn into_result(self) -> Result<(), T>;
}

impl<T> IntoExecuteResult<T> for () {
    fn into_result(self) -> Result<(), T> {
        Ok(())
    }
}

impl<T> IntoExecuteResult<T> for Result<(), T> {
    fn into_result(self) -> Result<(), T> {
        self
    }
}

impl<T, R: IntoExecuteResult<T>, F: Fn(T) -> R + Send + Sync + 'static> Executor<T> for F {
    fn execute(&self, task: T) -> Result<(), T> {
        self(task).into_result()
    }
}

/// Runs closures in place, on the thread that advances the timer. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Executor<Task> for Inline {
    fn execute(&self, task: Task) -> Result<(), Task> {
        task.run();
        Ok(())
    }
}

/// One thread that runs the tasks in the order in which they expired, as Kafka's timer does.
///
/// The reaper hands tasks on without waiting, so a slow task delays other tasks and no expiry. A
/// bounded worker refuses what does not fit. When the timer that owns it goes, the worker finishes
/// what is queued, and then its thread ends; whoever drops it waits for that, unless it is the
/// worker's own thread.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Task, Timer, TimerEntry, Worker};
///
/// let timer = Timer::builder()
///     .executor(Worker::bounded("timeouts", 10_000, Task::run)?)
///     .on_refused(Task::run) // Full: run in place. Without this line: drop and report.
///     .start()?;
/// timer.add(TimerEntry::after(Duration::from_millis(1), || println!("on the worker")))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker<T> {
    /// `None` once the thread is to end.
    queue: Option<mpsc::Sender<Vec<T>>>,
    shared: Arc<Shared>,
    capacity: usize,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queued: AtomicUsize,
    panicked: AtomicU64,
}

impl<T: Send + 'static> Worker<T> {
    /// A worker that queues any number of tasks and runs `handler` on each.
    ///
    /// # Errors
    /// [`BuildError::Thread`] if its thread, called `name`, can't be started; [`BuildError::Name`]
    /// if no thread can be called so.
    pub fn unbounded(
        name: &str,
        handler: impl FnMut(T) + Send + 'static,
    ) -> Result<Self, BuildError> {
        Self::bounded(name, usize::MAX, handler)
    }

    /// A worker that queues at most `capacity` tasks, and refuses more.
    ///
    /// # Errors
    /// [`BuildError::Thread`] if its thread, called `name`, can't be started; [`BuildError::Name`]
    /// if no thread can be called so.
    pub fn bounded(
        name: &str,
        capacity: usize,
        mut handler: impl FnMut(T) + Send + 'static,
    ) -> Result<Self, BuildError> {
        BuildError::check_name(name)?;
        let (queue, batches) = mpsc::channel::<Vec<T>>();
        let shared = Arc::new(Shared::default());
        let counts = Arc::clone(&shared);
        let run = move || {
            for task in batches.into_iter().flatten() {
                // Before the task runs: its place is free as soon as it has left the queue.
                counts.queued.fetch_sub(1, Ordering::Relaxed);
                if catch_panic(|| handler(task)).is_none() {
                    counts.panicked.fetch_add(1, Ordering::Relaxed);
                }
            }
            catch_panic(|| drop(handler)); // What it has captured may panic.
        };
        let builder = thread::Builder::new().name(name.to_owned());
        let thread = Some(builder.spawn(run).map_err(BuildError::Thread)?);
        Ok(Worker { queue: Some(queue), shared, capacity, thread })
    }
}

impl<T: Send + 'static> Executor<T> for Worker<T> {
    fn execute(&self, task: T) -> Result<(), T> {
        let mut task = vec![task];
        let mut batch = Batch { tasks: task.drain(..), refused: Vec::new() };
        self.execute_batch(&mut batch);
        batch.refused.pop().map_or(Ok(()), Err)
    }

    /// One message for the whole batch, and one wake-up.
    fn execute_batch(&self, batch: &mut Batch<'_, T>) {
        let wanted = batch.len();
        let mut fits = 0;
        let _ = self.shared.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
            fits = wanted.min(self.capacity.saturating_sub(queued));
            Some(queued + fits)
        });
        if let Some(queue) = self.queue.as_ref().filter(|_| fits > 0) {
            let tasks = batch.by_ref().take(fits).collect();
            if let Err(mpsc::SendError(tasks)) = queue.send(tasks) {
                self.shared.queued.fetch_sub(fits, Ordering::Relaxed);
                batch.refused.extend(tasks);
            }
        }
        batch.refused.extend(batch.tasks.by_ref());
    }

    fn panicked(&self) -> u64 {
        self.shared.panicked.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        drop(self.queue.take());
        let own = |thread: &thread::JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            let _ = thread.join(); // It contains every panic of the handler and its drop.
        }
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.shared.queued.load(Ordering::Relaxed);
        f.debug_struct("Worker").field("queued", &queued).field("capacity", &self.capacity).finish()
    }
}
