//! The executor: where expired tasks run. `tasks.rs` hands batches to it.

use crate::engine::reaper::is_reaper;
use crate::engine::report::catch_panic;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{OwnThread, thread_local};
use crate::timer::entry::{Sealed, Task, TimerEntry};
use crate::timer::error::BuildError;
use std::cell::Cell;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, mpsc};
use std::vec::Drain;

/// Runs the expired tasks of a timer, or hands them on.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::Timer;
///
/// let timer = Timer::builder().executor(|id: u64| println!("request {id} timed out")).start()?;
/// timer.after(Duration::from_millis(1), 7_u64)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The thread that advances the timer, usually the reaper, calls the executor with no lock held.
/// The executor may add, cancel, reschedule and shut down. While it runs, nothing else expires on
/// that thread: hand long work to a [`Worker`], a pool or an async runtime.
///
/// These closures are executors:
/// - `Fn(T)` runs tasks in place or hands them on.
/// - `Fn(T) -> Result<(), T>` may refuse a task, by returning it in `Err`.
/// - `Fn(T) -> Option<TimerEntry<T>>` may repeat a task: the timer adds the returned entry.
///
/// | executor | refuses | a panicking task | when it ends |
/// |---|---|---|---|
/// | in place: [`Inline`], a closure | never | is counted by the timer | nothing is queued |
/// | [`Worker`] | when its queue is full | is counted by the timer | runs what is queued |
/// | channel into your loop | when full or closed | is up to the loop | drops what is queued |
/// | tokio's `spawn`, `spawn_blocking` | never | is in the `JoinHandle` | drops what is queued |
/// | rayon pool's `spawn` | never | calls its `panic_handler` | runs what is queued |
///
/// A task that was handed on has expired and belongs to the executor. The timer drops its executor
/// with its [last clone](crate::Timer#the-last-clone).
///
/// # Your own loop
/// ```
/// use std::sync::mpsc::{self, TrySendError};
/// use std::time::Duration;
/// use tickwheel::{Timer, TimerEntry};
///
/// // The channel refuses tasks when it is full, or its receiver is gone.
/// let (sender, expired) = mpsc::sync_channel(1024);
/// let timer: Timer<u64> = Timer::builder()
///     .executor(move |id| {
///         sender.try_send(id).map_err(|error| match error {
///             TrySendError::Full(id) | TrySendError::Disconnected(id) => id,
///         })
///     })
///     .on_refused(|id| println!("request {id} timed out, and the loop is behind"))
///     .start()?;
/// timer.add(TimerEntry::after(Duration::from_millis(1), 7_u64))?;
/// for id in &expired {
///     println!("request {id} timed out");
/// #   break;
/// } // Ends when the timer does.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// With `send` instead of `try_send`, the timer waits for the loop, and nothing else expires
/// meanwhile. The page [`guide::runtimes`](crate::guide::runtimes) has recipes for tokio, rayon and
/// hyper.
///
/// # Tasks that repeat
/// ```
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer, TimerEntry};
///
/// /// A request that is sent again, each time after twice as long.
/// struct Attempt(u32);
///
/// let clock = ManualClock::new();
/// let timer: Timer<Attempt> = Timer::builder()
///     .clock(clock.clone())
///     .executor(|Attempt(number)| {
///         let next = Duration::from_secs(1 << number);
///         (number < 3).then(|| TimerEntry::after(next, Attempt(number + 1)))
///     })
///     .build()?;
/// timer.after(Duration::ZERO, Attempt(0))?;
/// clock.run_for(Duration::from_secs(7)); // At 0, 1, 3 and 7 seconds.
/// assert_eq!((timer.stats().expired, timer.len()), (4, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// The returned entry is accepted even if the timer is full, and dropped after a shutdown. The
/// handle of the expired task does not cancel it.
///
/// # Another executor for some entries
/// A task can hand its work on by itself. It must then handle a refusal itself, and the timer does
/// not count that refusal or a panic of the work.
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
/// Many entries with the same destination can share a closure: [`Task::shared`]. If tasks are of
/// your own type, let the timer's executor `match` on the task.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an executor of tasks of type `{T}`",
    label = "neither an executor nor a closure that takes a `{T}`",
    note = "`Worker::bounded` and `Worker::unbounded` return a `Result`: add `?`"
)]
pub trait Executor<T>: Send + Sync + 'static {
    /// Runs `task` or hands it on. `Err` refuses it: the refusal is counted, and the task is passed
    /// to the builder's `on_refused`, or dropped with a warning.
    ///
    /// A panic is contained, counted as a panic of the task, and reported.
    fn execute(&self, task: T) -> Result<(), T>;

    /// Executes a batch of expired tasks, at most 128, by default one after another. Override this
    /// method if handing on many tasks at once is cheaper.
    ///
    /// Tasks that the method leaves in the batch count as refused. After a panic, the method is
    /// called again with the rest of the batch. If it took no task before the panic, the rest
    /// counts as refused.
    fn execute_batch(&self, batch: &mut Batch<'_, T>) {
        while let Some(task) = batch.next() {
            if let Err(task) = self.execute(task) {
                batch.refuse(task);
            }
        }
    }

    /// Returns the number of tasks that panicked after they were handed on, for
    /// [`Stats`](crate::Stats). Default: 0. A panic of this method counts as 0.
    fn panicked(&self) -> u64 {
        0
    }
}

/// An iterator over expired tasks, at most 128. Takes back refused tasks, and entries to be added.
pub struct Batch<'a, T> {
    pub(crate) tasks: Drain<'a, T>,
    pub(crate) refused: Vec<T>,
    pub(crate) added: Vec<TimerEntry<T>>,
}

impl<'a, T> Batch<'a, T> {
    pub(crate) fn new(tasks: Drain<'a, T>) -> Self {
        Batch {
            tasks,
            refused: Vec::new(),
            added: Vec::new(),
        }
    }

    /// Gives the timer an entry, usually with a task of the batch that repeats. The timer adds it
    /// after the batch, even if the timer is full. After a shutdown the timer drops the entry.
    pub fn add(&mut self, entry: TimerEntry<T>) {
        self.added.push(entry);
    }

    /// Returns a task to the timer as refused.
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

impl<T> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("left", &self.tasks.len())
            .field("refused", &self.refused.len())
            .finish_non_exhaustive()
    }
}

/// Converts what an executor's closure returns: nothing, a result that may refuse the task, or an
/// entry to be added. The trait is sealed.
///
/// A closure that only panics has to name its result: `|task| -> () { panic!() }`.
#[diagnostic::on_unimplemented(
    message = "an executor's closure returns nothing that a timer knows: `{Self}`",
    note = "it returns `()`, `Result<(), T>` or `Option<TimerEntry<T>>`; \
            a semicolon may be missing",
    note = "a closure that only panics names its result: `|task| -> () {{ panic!() }}`"
)]
pub trait IntoExecuteResult<T>: Sealed<ExecuteResult<T>> {
    /// Returns the task in `Err` if it was refused.
    fn into_result(self) -> Result<Option<TimerEntry<T>>, T>;
}

type ExecuteResult<T> = Result<Option<TimerEntry<T>>, T>;
impl<T> Sealed<ExecuteResult<T>> for () {}
impl<T> Sealed<ExecuteResult<T>> for Result<(), T> {}
impl<T> Sealed<ExecuteResult<T>> for Option<TimerEntry<T>> {}

impl<T> IntoExecuteResult<T> for () {
    fn into_result(self) -> Result<Option<TimerEntry<T>>, T> {
        Ok(None)
    }
}

impl<T> IntoExecuteResult<T> for Result<(), T> {
    fn into_result(self) -> Result<Option<TimerEntry<T>>, T> {
        self.map(|()| None)
    }
}

impl<T> IntoExecuteResult<T> for Option<TimerEntry<T>> {
    fn into_result(self) -> Result<Option<TimerEntry<T>>, T> {
        Ok(self)
    }
}

impl<T, R: IntoExecuteResult<T>, F: Fn(T) -> R + Send + Sync + 'static> Executor<T> for F {
    /// Refuses the task of an entry to be added: only a batch can take that.
    fn execute(&self, task: T) -> Result<(), T> {
        match self(task).into_result()? {
            None => Ok(()),
            // There is no batch that could add it.
            Some(entry) => Err(entry.into_task()),
        }
    }

    fn execute_batch(&self, batch: &mut Batch<'_, T>) {
        while let Some(task) = batch.next() {
            match self(task).into_result() {
                Ok(added) => batch.added.extend(added),
                Err(task) => batch.refuse(task),
            }
        }
    }
}

/// The default executor: runs closures in place, on the thread that advances the timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Executor<Task> for Inline {
    fn execute(&self, task: Task) -> Result<(), Task> {
        task.run();
        Ok(())
    }
}

/// An executor with one thread that runs tasks in the order in which they expired, as Kafka's timer
/// does.
///
/// A slow task delays other tasks but no expiry. A bounded worker refuses tasks when its queue is
/// full.
///
/// Dropping the worker, or the timer that owns it, blocks until the thread has run all queued
/// tasks. On the thread of a worker or a reaper it does not block: two that drop each other's
/// worker would deadlock. In the child of a `fork` it does not block either: the thread does not
/// exist there, and tasks stay in the queue.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Task, Timer, TimerEntry, Worker};
///
/// let timer = Timer::builder()
///     .executor(Worker::bounded("timeouts", 10_000, Task::run)?)
///     .on_refused(Task::run) // If the queue is full, run it here instead of dropping it.
///     .start()?;
/// timer.add(TimerEntry::after(Duration::from_millis(1), || println!("on the worker")))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Worker<T> {
    /// `None` once the thread must end.
    queue: Option<mpsc::Sender<Vec<T>>>,
    queued: Arc<AtomicUsize>,
    panicked: Arc<AtomicU64>,
    capacity: usize,
    thread: Option<OwnThread>,
}

// Its queue is whole whatever panics.
impl<T> UnwindSafe for Worker<T> {}
impl<T> RefUnwindSafe for Worker<T> {}

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a worker that queues any number of tasks and runs `handler` on each.
    ///
    /// # Errors
    /// [`BuildError::Thread`] if its thread, called `name`, can't be started; [`BuildError::Name`]
    /// if no thread can have that name.
    pub fn unbounded(
        name: &str,
        handler: impl FnMut(T) + Send + 'static,
    ) -> Result<Self, BuildError> {
        Self::bounded(name, usize::MAX, handler)
    }

    /// Starts a worker that queues at most `capacity` tasks, and refuses more.
    ///
    /// # Errors
    /// As for [`unbounded`](Self::unbounded).
    pub fn bounded(
        name: &str,
        capacity: usize,
        mut handler: impl FnMut(T) + Send + 'static,
    ) -> Result<Self, BuildError> {
        BuildError::check_name(name)?;
        let (queue, batches) = mpsc::channel::<Vec<T>>();
        let queued = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&queued);
        let panicked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&panicked);
        let run = move || {
            IS_WORKER.with(|is_worker| is_worker.set(true));
            for task in batches.into_iter().flatten() {
                // Before the task runs: there is room once it has left the queue. Relaxed, here and
                // where tasks are queued: the channel hands the tasks over, this only limits them.
                left.fetch_sub(1, Ordering::Relaxed);
                if catch_panic(|| handler(task)).is_none() {
                    counted.fetch_add(1, Ordering::Relaxed); // It publishes nothing.
                }
            }
            catch_panic(|| drop(handler)); // What it has captured may panic.
        };
        let thread = OwnThread::spawn(name, run).map_err(BuildError::Thread)?;
        Ok(Worker {
            queue: Some(queue),
            queued,
            panicked,
            capacity,
            thread: Some(thread),
        })
    }
}

impl<T: Send + 'static> Executor<T> for Worker<T> {
    fn execute(&self, task: T) -> Result<(), T> {
        let mut task = vec![task];
        let mut batch = Batch::new(task.drain(..));
        self.execute_batch(&mut batch);
        batch.refused.pop().map_or(Ok(()), Err)
    }

    /// Sends one message for the whole batch, which causes one wake-up.
    fn execute_batch(&self, batch: &mut Batch<'_, T>) {
        let wanted = batch.len();
        let mut fits = 0;
        let _ = self
            .queued
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
                fits = wanted.min(self.capacity.saturating_sub(queued));
                Some(queued + fits)
            });
        if let Some(queue) = self.queue.as_ref().filter(|_| fits != 0) {
            // Cannot fail: the thread contains every panic, and ends when the queue is dropped.
            let _ = queue.send(batch.by_ref().take(fits).collect());
        }
        batch.refused.extend(batch.tasks.by_ref());
    }

    fn panicked(&self) -> u64 {
        self.panicked.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        drop(self.queue.take());
        let waits = !is_reaper() && !IS_WORKER.with(Cell::get);
        if let Some(thread) = self.thread.take().filter(|_| waits) {
            thread.join();
        }
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.queued.load(Ordering::Relaxed);
        f.debug_struct("Worker")
            .field("queued", &queued)
            .field("capacity", &self.capacity)
            .finish()
    }
}
