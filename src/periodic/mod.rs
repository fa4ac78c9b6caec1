//! Periodic timers: a task that runs repeatedly.

pub(crate) mod missed;

pub use crate::periodic::missed::MissedTick;

use crate::sync::Mutex;
use crate::timer::entry::{Task, TimerEntry, When};
use crate::timer::error::AddError;
use crate::timer::timeout::Timeout;
use crate::timer::{Timer, WeakTimer};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// The options of a periodic task, which [`start`](Self::start) starts on a timer.
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer};
/// use tickwheel::periodic::Periodic;
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let (sender, runs) = mpsc::channel();
/// let series = Periodic::every(Duration::from_secs(1)).start(&timer, move |run| {
///     sender.send(run.number()).unwrap();
///     if run.number() == 2 {
///         run.cancel();
///     }
/// })?;
/// for _ in 0..10 {
///     clock.advance(Duration::from_secs(1));
///     timer.advance_clock(Duration::ZERO);
/// }
/// assert_eq!(runs.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
/// assert!(series.is_cancelled());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "runs nothing until it is started"]
pub struct Periodic {
    period: Duration,
    first: Duration,
    jitter: Duration,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The next run is counted from when this one was due.
    Rate { missed_tick: MissedTick, overlaps: bool },
    /// The next run is counted from when this one ended.
    Delay,
}

impl Periodic {
    /// Runs the task every `period`, keeping the phase: the first run is due a period after the
    /// start, and each later one a period after the previous one was due, however long runs take.
    /// (With [`MissedTick::Delay`] it is due a period after the previous run began.)
    ///
    /// Runs do not overlap: a run that takes too long makes the next one late.
    /// [`missed_tick`](Self::missed_tick) sets what happens to missed runs. A period of zero counts
    /// as a nanosecond.
    pub fn every(period: Duration) -> Self {
        let kind = Kind::Rate { missed_tick: MissedTick::default(), overlaps: false };
        Self::new(period, kind)
    }

    /// Runs the task with a pause of `delay` between the end of a run and the next run; the first
    /// run is due after `delay`.
    pub fn with_delay(delay: Duration) -> Self {
        Self::new(delay, Kind::Delay)
    }

    fn new(period: Duration, kind: Kind) -> Self {
        let period = period.max(Duration::from_nanos(1));
        Periodic { period, first: period, jitter: Duration::ZERO, kind }
    }

    /// Sets when the first run is due, counted from the start; later runs are counted from there.
    /// Default: after one period or delay.
    pub fn first_after(mut self, delay: Duration) -> Self {
        self.first = delay;
        self
    }

    /// Sets what happens to missed runs. Default: they are [skipped](MissedTick::Skip). Has no
    /// effect [with a delay](Self::with_delay).
    pub fn missed_tick(mut self, policy: MissedTick) -> Self {
        if let Kind::Rate { missed_tick, .. } = &mut self.kind {
            *missed_tick = policy;
        }
        self
    }

    /// Lets a run begin when it is due even if the previous one has not ended, for executors with
    /// several threads. Has no effect [with a delay](Self::with_delay).
    pub fn overlapping(mut self) -> Self {
        if let Kind::Rate { overlaps, .. } = &mut self.kind {
            *overlaps = true;
        }
        self
    }

    /// Delays each run by a random time from zero to less than `jitter`, so that many series do not
    /// run at once. Default: zero. The phase is kept, and the jitter never counts as a missed tick;
    /// but with [`MissedTick::Delay`] the next run is counted from when this one began, jitter
    /// included.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Starts the series: `timer`'s executor runs `task`. A panic ends that run but not the series;
    /// the timer counts it (in [`Stats::panicked`](crate::Stats::panicked)) and reports it.
    ///
    /// The series does not keep the timer alive. It ends when it is cancelled, when the timer is
    /// shut down or dropped, when the timer is full as the next run is added, or when the executor
    /// refuses a run.
    ///
    /// # Errors
    /// [`AddError`] if the timer is full or was shut down.
    pub fn start<U: Send + 'static>(
        self,
        timer: &Timer<U>,
        task: impl Fn(&Run<'_>) + Send + Sync + 'static,
    ) -> Result<Series, AddError<Task>> {
        let timer = timer.closures();
        let due = timer.now().checked_add(self.first);
        let progress = Mutex::new(Progress { due, number: 0, timeout: None, cancelled: false });
        let random = RandomState::new();
        let series =
            Arc::new(SeriesState { periodic: self, random, timer: timer.downgrade(), progress });
        let runner = Arc::new(Runner { series: Arc::clone(&series), task });
        let mut progress = series.progress.lock();
        let (timeout, wakes) = timer.add_unwoken(runner.entry(due, 0))?;
        progress.timeout = Some(timeout);
        drop(progress);
        timer.wake(wakes);
        Ok(Series(series))
    }
}

/// The handle of a periodic task. Dropping it changes nothing.
#[derive(Clone)]
pub struct Series(Arc<SeriesState>);

/// One run of a periodic task, which is passed to the task.
pub struct Run<'a> {
    series: &'a SeriesState,
    due: Option<Instant>,
    number: u64,
}

/// The part that the handles of a series share with its task.
struct SeriesState {
    periodic: Periodic,
    random: RandomState,
    timer: WeakTimer,
    progress: Mutex<Progress>,
}

/// The timer's task. A [`Series`] does not hold it, so a handle keeps no closure alive.
struct Runner<F> {
    series: Arc<SeriesState>,
    task: F,
}

/// The part of a series that each run changes.
struct Progress {
    /// When the next run, or the one in progress, is due, without the jitter; `None` is never.
    due: Option<Instant>,
    number: u64,
    timeout: Option<Timeout>,
    cancelled: bool,
}

impl Series {
    /// Ends the series, and returns whether this call ended it. No further run begins; a run in
    /// progress is not interrupted.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Returns whether the series was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.progress.lock().cancelled
    }

    /// Returns how many runs have begun.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.0.progress.lock().number
    }
}

impl Run<'_> {
    /// Returns when this run was due, without the jitter.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the number of this run, counted from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Ends the series; this run is the last.
    pub fn cancel(&self) {
        self.series.cancel();
    }
}

impl SeriesState {
    fn cancel(&self) -> bool {
        let mut progress = self.progress.lock();
        let cancels = !std::mem::replace(&mut progress.cancelled, true);
        let timeout = progress.timeout.take();
        drop(progress);
        drop(timeout.map(|timeout| timeout.cancel()));
        cancels
    }
}

impl<F: Fn(&Run<'_>) + Send + Sync + 'static> Runner<F> {
    fn entry(self: &Arc<Self>, due: Option<Instant>, number: u64) -> TimerEntry {
        let task = Task::from(Waker::from(Arc::clone(self)));
        let at = due.and_then(|due| due.checked_add(self.jitter(number)));
        TimerEntry::new(When::at_or_never(at), task)
    }

    /// Returns by how much this run is delayed.
    fn jitter(&self, number: u64) -> Duration {
        let random = self.series.random.hash_one(number);
        Duration::from_nanos(match u64::try_from(self.series.periodic.jitter.as_nanos()) {
            Ok(0) => 0,
            Ok(jitter) => random % jitter,
            Err(_) => random,
        })
    }

    /// Adds the run after `run`, which began at `began`, to the timer, unless the series has ended.
    fn schedule(self: &Arc<Self>, run: &Run<'_>, began: Instant) {
        let Some(timer) = self.series.timer.upgrade() else { return };
        let Periodic { period, kind, jitter, .. } = self.series.periodic;
        let now = timer.now();
        let mut progress = self.series.progress.lock();
        if progress.cancelled {
            return;
        }
        progress.due = match kind {
            Kind::Rate { missed_tick, .. } => {
                // A run that is late by no more than the jitter has not missed its tick.
                let now = now.checked_sub(jitter).unwrap_or(now);
                run.due.and_then(|due| missed_tick.next(due, began, now, period))
            }
            Kind::Delay => now.checked_add(period),
        };
        let added = timer.add_unwoken(self.entry(progress.due, progress.number)).ok();
        let (timeout, wakes) = added.unzip();
        progress.timeout = timeout;
        drop(progress);
        wakes.into_iter().for_each(|wakes| timer.wake(wakes));
    }
}

impl<F: Fn(&Run<'_>) + Send + Sync + 'static> Wake for Runner<F> {
    fn wake(self: Arc<Self>) {
        let mut progress = self.series.progress.lock();
        if progress.cancelled {
            return;
        }
        let run = Run { series: &self.series, due: progress.due, number: progress.number };
        progress.number += 1;
        drop(progress);
        let overlaps = matches!(self.series.periodic.kind, Kind::Rate { overlaps: true, .. });
        // Without a timer there is no run after this one.
        let began = self.series.timer.upgrade().map_or_else(Instant::now, |timer| timer.now());
        if overlaps {
            self.schedule(&run, began);
        }
        self.series.timer.catch_panic(|| (self.task)(&run));
        if !overlaps {
            self.schedule(&run, began);
        }
    }
}

impl fmt::Debug for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Series").field("periodic", &self.0.periodic).finish_non_exhaustive()
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { due, number, .. } = self;
        f.debug_struct("Run").field("due", due).field("number", number).finish_non_exhaustive()
    }
}
