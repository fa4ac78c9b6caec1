//! The errors, which return what was not accepted.

use crate::engine::shard::Refusal;
use crate::timer::entry::TimerEntry;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The error of [`Timer::add`](crate::Timer::add). Contains the rejected entry.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{AddError, Timer, TimerEntry};
///
/// let timer: Timer<u32> = Timer::builder().executor(|_| ()).max_pending(1).build()?;
/// let _first = timer.add(TimerEntry::after(Duration::from_secs(1), 1))?;
/// match timer.add(TimerEntry::after(Duration::from_secs(1), 2)) {
///     Err(AddError::Full(entry)) => assert_eq!(entry.into_inner().into_task(), 2),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A collection that wraps its caller's values can return the error with the value unwrapped:
///
/// ```
/// # use std::time::Duration;
/// # use tickwheel::{AddError, Timer, TimerEntry};
/// # struct Slot<V> {
/// #     value: V,
/// # }
/// fn unwrapped<V>(error: AddError<Slot<V>>) -> AddError<V> {
///     let value = |entry: TimerEntry<Slot<V>>| {
///         TimerEntry::new(entry.when(), entry.into_task().value)
///     };
///     match error {
///         AddError::Full(entry) => AddError::Full(value(entry.into_inner()).into()),
///         other => AddError::Shutdown(value(other.into_entry()).into()),
///     }
/// }
/// # let timer: Timer<Slot<u32>> = Timer::builder().executor(|_| ()).max_pending(0).build()?;
/// # let add = || timer.after(Duration::from_secs(1), Slot { value: 7 }).map_err(unwrapped);
/// # let full = add().unwrap_err();
/// # assert!(matches!(full, AddError::Full(_)));
/// # assert_eq!(full.into_task(), 7);
/// # timer.shutdown();
/// # assert!(matches!(add(), Err(AddError::Shutdown(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
pub enum AddError<T> {
    /// [`max_pending`](crate::TimerBuilder::max_pending) timers are pending.
    Full(Rejected<TimerEntry<T>>),
    /// The timer was shut down.
    Shutdown(Rejected<TimerEntry<T>>),
}

impl<T> AddError<T> {
    #[cold]
    pub(crate) fn of(refusal: Refusal, entry: TimerEntry<T>) -> Self {
        match refusal {
            Refusal::Full => AddError::Full(entry.into()),
            Refusal::Closed => AddError::Shutdown(entry.into()),
        }
    }

    /// Returns the rejected entry.
    #[must_use = "the task is dropped otherwise"]
    pub fn into_entry(self) -> TimerEntry<T> {
        match self {
            AddError::Full(entry) | AddError::Shutdown(entry) => entry.into_inner(),
        }
    }

    /// Returns the rejected task.
    #[must_use = "the task is dropped otherwise"]
    pub fn into_task(self) -> T {
        self.into_entry().into_task()
    }
}

/// The entry's task need not be `Debug`.
impl<T> fmt::Debug for AddError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddError({self})")
    }
}

impl<T> fmt::Display for AddError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddError::Full(_) => "the timer is full",
            AddError::Shutdown(_) => "the timer was shut down",
        })
    }
}

impl<T> Error for AddError<T> {}

/// The content that an error hands back.
///
/// It is `Sync` whenever its content is `Send`, so that `?` turns the error of any task into a
/// `Box<dyn Error + Send + Sync>`.
///
/// ```
/// use std::{cell::Cell, error::Error, time::Duration};
/// use tickwheel::Timer;
///
/// type Job = Cell<u32>; // `Send`, but not `Sync`.
///
/// fn later(timer: &Timer<Job>, job: Job) -> Result<(), Box<dyn Error + Send + Sync>> {
///     timer.after(Duration::from_secs(30), job)?;
///     Ok(())
/// }
/// # later(&Timer::builder().executor(|_: Job| ()).build()?, Cell::new(1))?;
/// # Ok::<(), Box<dyn Error + Send + Sync>>(())
/// ```
pub struct Rejected<V>(
    /// Never locked: it makes this `Sync`.
    Mutex<V>,
);

impl<V> Rejected<V> {
    /// Takes the content out.
    #[must_use = "it is dropped otherwise"]
    pub fn into_inner(self) -> V {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> From<V> for Rejected<V> {
    fn from(content: V) -> Self {
        Rejected(Mutex::new(content))
    }
}

/// The content need not be `Debug`.
impl<V> fmt::Debug for Rejected<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").finish_non_exhaustive()
    }
}

/// The error of a [`TimerBuilder`](crate::TimerBuilder), or of a [`Worker`](crate::Worker) that did
/// not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick is zero, or longer than 584 years.
    Tick,
    /// The wheel size is zero, or greater than 2^20.
    WheelSize,
    /// The number of shards is zero, or greater than 4096.
    Shards,
    /// `on_refused` was set before `executor`, and would not apply to that executor's tasks.
    OnRefused,
    /// The name contains a NUL character.
    Name,
    /// The operating system did not start the thread.
    Thread(io::Error),
}

impl BuildError {
    /// Checks the name of a thread: `std` panics on a NUL.
    pub(crate) fn check_name(name: &str) -> Result<(), BuildError> {
        if name.contains('\0') {
            Err(BuildError::Name)
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Tick => f.write_str("the tick must be from 1 ns to 584 years"),
            BuildError::WheelSize => f.write_str("the wheel size must be from 1 to 2^20 slots"),
            BuildError::Shards => f.write_str("the number of shards must be from 1 to 4096"),
            BuildError::OnRefused => f.write_str("on_refused must be set after the executor"),
            BuildError::Name => f.write_str("a thread's name must not hold a NUL character"),
            BuildError::Thread(error) => write!(f, "the thread could not be started: {error}"),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BuildError::Thread(error) => Some(error),
            _ => None,
        }
    }
}

/// Keeps the operating system's error of [`BuildError::Thread`]; any other becomes
/// [`InvalidInput`](std::io::ErrorKind::InvalidInput) with this error inside.
///
/// ```
/// use std::io;
/// use tickwheel::Timer;
///
/// fn serve() -> io::Result<()> {
///     let timer = Timer::builder().start()?;
///     timer.shutdown();
///     Ok(())
/// }
/// # serve()?;
/// let error = io::Error::from(Timer::builder().shards(0).build().unwrap_err());
/// assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
/// # let thread = tickwheel::BuildError::Thread(io::ErrorKind::OutOfMemory.into());
/// # assert_eq!(io::Error::from(thread).kind(), io::ErrorKind::OutOfMemory);
/// # io::Result::Ok(())
/// ```
impl From<BuildError> for io::Error {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Thread(error) => error,
            error => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

/// The error of a future that could not wait for its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SleepError {
    /// `max_pending` timers are pending.
    Full,
    /// The timer was shut down.
    Shutdown,
}

impl SleepError {
    pub(crate) fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => SleepError::Full,
            Refusal::Closed => SleepError::Shutdown,
        }
    }
}

impl fmt::Display for SleepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SleepError::Full => "the timer is full",
            SleepError::Shutdown => "the timer was shut down",
        })
    }
}

impl Error for SleepError {}
