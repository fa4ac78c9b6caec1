//! The executor: where expired tasks run.

use crate::entry::Task;
use crate::error::BuildError;
use crate::report::contain;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread;
use std::fmt;
use std::sync::{Arc, mpsc};

/// Runs the tasks of a timer when they have expired, or hands them to somebody who does.
///
/// Called by the thread that advances the timer, the reaper for example, with no lock held. So it
/// may add, cancel, reschedule and shut down; but while it runs, nothing else expires. What takes
/// long belongs on a thread of its own: [`Worker`], a pool, an async runtime.
///
/// Every `Fn(T)` is an executor that runs tasks in place. A `Fn(T) -> Result<(), T>` is one that
/// may refuse: the task comes back in `Err`.
///
/// ```
/// use std::sync::mpsc;
/// use tickwheel::Timer;
///
/// // Into a channel that the caller's own loop reads; full or closed, it refuses.
/// let (sender, receiver) = mpsc::sync_channel(1024);
/// let timer: Timer<u64> = Timer::builder()
///     .executor(move |id| {
///         sender.try_send(id).map_err(|error| match error {
///             mpsc::TrySendError::Full(id) | mpsc::TrySendError::Disconnected(id) => id,
///         })
///     })
///     .build()?;
/// # drop((timer, receiver));
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
pub trait Outcome<T> {
    /// `Err` with the task if it was refused.
    fn into_result(self) -> Result<(), T>;
}

impl<T> Outcome<T> for () {
    fn into_result(self) -> Result<(), T> {
        Ok(())
    }
}

impl<T> Outcome<T> for Result<(), T> {
    fn into_result(self) -> Result<(), T> {
        self
    }
}

impl<T, R: Outcome<T>, F: Fn(T) -> R + Send + Sync + 'static> Executor<T> for F {
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
    /// [`BuildError::Thread`] if its thread, called `name`, can't be started.
    pub fn unbounded(
        name: &str,
        handler: impl FnMut(T) + Send + 'static,
    ) -> Result<Self, BuildError> {
        Self::bounded(name, usize::MAX, handler)
    }

    /// A worker that queues at most `capacity` tasks, and refuses more.
    ///
    /// # Errors
    /// [`BuildError::Thread`] if its thread, called `name`, can't be started.
    pub fn bounded(
        name: &str,
        capacity: usize,
        mut handler: impl FnMut(T) + Send + 'static,
    ) -> Result<Self, BuildError> {
        let (queue, batches) = mpsc::channel::<Vec<T>>();
        let shared = Arc::new(Shared::default());
        let counts = Arc::clone(&shared);
        let run = move || {
            for task in batches.into_iter().flatten() {
                // Before the task runs: its place is free as soon as it has left the queue.
                counts.queued.fetch_sub(1, Ordering::Relaxed);
                if contain(|| handler(task)).is_none() {
                    counts.panicked.fetch_add(1, Ordering::Relaxed);
                }
            }
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
            let _ = thread.join(); // It contains every panic of the handler.
        }
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.shared.queued.load(Ordering::Relaxed);
        f.debug_struct("Worker").field("queued", &queued).field("capacity", &self.capacity).finish()
    }
}
