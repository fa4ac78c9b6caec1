//! Periodic timers: a task that runs repeatedly.

use crate::engine::clock::{Clock, When};
use crate::engine::shard::Limit;
use crate::sync::Mutex;
use crate::timer::Timer;
use crate::timer::entry::{SharedClosure, Task};
use crate::timer::error::AddError;
use crate::timer::tasks::Tasks;
use crate::timer::timeout::Timeout;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The options of a periodic task, which [`start`](Self::start) starts on a timer.
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{ManualClock, Timer, periodic::Periodic};
///
/// let clock = ManualClock::new();
/// let timer = Timer::builder().clock(clock.clone()).build()?;
/// let reports = Periodic::every(Duration::from_secs(1));
/// let series = reports.start(&timer, |run| if run.number() == 2 { run.cancel() })?;
/// clock.run_for(Duration::from_secs(10));
/// assert!(series.is_cancelled());
/// # assert_eq!(timer.stats().expired, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "runs nothing until it is started"]
pub struct Periodic {
    period: Duration,
    /// `None`: a random part of the period.
    first: Option<Duration>,
    jitter: Duration,
    /// `None` with a delay: the next run is counted from the end of this one.
    missed_tick: Option<MissedTick>,
    overlaps: bool,
}

impl Periodic {
    /// Runs the task every `period`, keeping the phase. The first run is due a period after the
    /// start. Each later run is due a period after the previous one was due, however long runs
    /// take; [`MissedTick::Delay`] is the exception. Runs do not overlap unless
    /// [`overlapping`](Self::overlapping) is set. A period of zero counts as a nanosecond.
    pub fn every(period: Duration) -> Self {
        Self::new(period, Some(MissedTick::default()))
    }

    /// Runs the task with a pause of `delay` between the end of a run and the next run. The first
    /// run is due after `delay`; zero counts as a nanosecond.
    pub fn with_delay(delay: Duration) -> Self {
        Self::new(delay, None)
    }

    fn new(period: Duration, missed_tick: Option<MissedTick>) -> Self {
        let period = period.max(Duration::from_nanos(1));
        Periodic {
            period,
            first: Some(period),
            jitter: Duration::ZERO,
            missed_tick,
            overlaps: false,
        }
    }

    /// Sets when the first run is due, counted from the start; later runs are counted from the
    /// first. Default: after one period or delay.
    pub fn first_after(mut self, delay: Duration) -> Self {
        self.first = Some(delay);
        self
    }

    /// Starts at a random time within the first period or delay, which spreads many series that
    /// start at once.
    pub fn random_phase(mut self) -> Self {
        self.first = None;
        self
    }

    /// Sets what happens to missed runs. Default: [`MissedTick::Skip`]. Has no effect [with a
    /// delay](Self::with_delay).
    pub fn missed_tick(mut self, policy: MissedTick) -> Self {
        self.missed_tick = self.missed_tick.and(Some(policy));
        self
    }

    /// Lets a run begin when it is due even if the previous run has not ended, for executors with
    /// several threads. Has no effect [with a delay](Self::with_delay).
    pub fn overlapping(mut self) -> Self {
        self.overlaps = self.missed_tick.is_some();
        self
    }

    /// Delays each run by a random time from zero to less than `jitter`, so that many series do not
    /// run at once. Default: zero. The phase is kept, and the jitter never counts as a missed tick.
    /// With [`MissedTick::Delay`] each jitter also delays all later runs. On a
    /// [`ManualClock`](crate::ManualClock), the clock's seed decides the jitter.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Starts the series: `timer`'s executor runs `task`. A panic ends that run but not the series;
    /// the timer reports it and counts it in [`Stats::panicked`](crate::Stats::panicked).
    ///
    /// The series does not keep the timer alive, unless its closure owns the timer, or a keyed
    /// timer or purgatory on it. Give the closure a [`WeakTimer`](crate::WeakTimer) instead.
    ///
    /// # How a series ends
    /// A run in progress is the last one if the series ends:
    ///
    /// - by a call to `cancel`;
    /// - because the timer is full when the next run is added;
    /// - because a run is dropped instead of run, for example by an executor that refuses it;
    /// - with the last clone of the timer, or a [`shutdown`](Timer::shutdown). A `shutdown` returns
    ///   the pending run, unless the timer has its own type of task. The series then ends when that
    ///   run is dropped or has run.
    ///
    /// # Errors
    /// [`AddError`] if the timer is full or was shut down.
    pub fn start<U: Send + 'static>(
        self,
        timer: &Timer<U>,
        task: impl Fn(&Run<'_>) + Send + Sync + 'static,
    ) -> Result<Series, AddError<Task>> {
        let clock = timer.base.engine.context.time.clock.clone();
        let first = self.first.unwrap_or_else(|| random_below(self.period, &clock));
        let due = clock.now().checked_add(first);
        let progress = Mutex::new(Progress { due, ..Progress::default() });
        let tasks = Arc::downgrade(&timer.base.closures);
        let series = Arc::new(SeriesState { periodic: self, clock, tasks, progress });
        let over = EndOnDrop(Arc::clone(&series));
        let runs: SharedClosure = Arc::new(move |_| over.0.run(&task));
        series.progress.lock().runs = Some(Arc::downgrade(&runs));
        series.add(due, 0)?;
        Ok(Series(series))
    }
}

/// What a periodic timer does about runs whose time has passed: a run took too long, nothing drove
/// the timer, or the machine slept. `Burst` and `Skip` keep the phase, `Delay` does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissedTick {
    /// Runs them all, one right after another, until the series has caught up.
    Burst,
    /// Skips them, and continues with the next run that is due now or later. Each run stays a
    /// multiple of the period after the first run, or after the last [chosen](Run::reschedule) one.
    #[default]
    Skip,
    /// Counts the period from the beginning of each run, so runs are never closer together than a
    /// period. A late run, also by its jitter, makes all later runs late by as much. No run is
    /// missed or skipped.
    Delay,
}

impl MissedTick {
    /// Returns the run after the one that was due at `due` and began at `began`. The period is not
    /// zero.
    pub(crate) fn next(
        self,
        due: Instant,
        began: Instant,
        now: Instant,
        period: Duration,
    ) -> Option<Instant> {
        let next = due.checked_add(period)?;
        match self {
            MissedTick::Delay => began.max(due).checked_add(period),
            MissedTick::Burst => Some(next),
            MissedTick::Skip if next >= now => Some(next),
            MissedTick::Skip => {
                let late = now.saturating_duration_since(due).as_nanos();
                let missed = Duration::from_nanos((late % period.as_nanos()).try_into().ok()?);
                if missed.is_zero() { Some(now) } else { now.checked_add(period - missed) }
            }
        }
    }
}

/// The handle of a periodic task. Dropping it changes nothing. Keep it as long as you like: it
/// keeps neither the timer alive nor the task of a series that has ended.
#[derive(Clone)]
pub struct Series(Arc<SeriesState>);

/// One run of a periodic task, which the task receives.
pub struct Run<'a> {
    series: &'a SeriesState,
    due: Option<Instant>,
    number: u64,
}

struct SeriesState {
    periodic: Periodic,
    clock: Clock,
    /// Where runs are added. Weak, because a run must not own the timer: the timer could end in a
    /// run.
    tasks: Weak<Tasks<Task>>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// When the next run, or the one in progress, is due, without the jitter; `None` is never.
    due: Option<Instant>,
    number: u64,
    /// The next deadline that the run in progress has chosen.
    chosen: Option<Option<Instant>>,
    /// The closure that all runs share, so that a run allocates nothing. Runs hold it strongly, so
    /// its end is that of the series; a [`Series`] keeps no closure alive.
    runs: Option<Weak<dyn Fn(u64) + Send + Sync>>,
    timeout: Option<Timeout>,
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Cancelled,
    /// No run was pending or in progress any more.
    Over,
}

impl Series {
    /// Ends the series. Returns whether this call did so; false if the series had
    /// [ended](Periodic::start). No further run begins; a run in progress is not interrupted.
    pub fn cancel(&self) -> bool {
        self.0.end(End::Cancelled)
    }

    /// Moves the next run, earlier or later; later periods are counted from that run. Returns
    /// whether the series goes on. During a run, this sets when the run after it is due. A series
    /// that is reset at each sign of life runs only after a silence.
    pub fn reset(&self, when: impl Into<When>) -> bool {
        let due = self.0.clock.deadline_of(when.into());
        let mut progress = self.0.progress.lock();
        if progress.end.is_some() {
            return false;
        }
        let (timeout, number) = (progress.timeout.take(), progress.number);
        drop(progress); // Moving it may wake listeners.
        match timeout.filter(|timeout| timeout.reschedule(When::at_or_never(due))) {
            Some(timeout) => self.0.keep(timeout, Some(due), number),
            None => self.0.progress.lock().chosen = Some(due),
        }
        true
    }

    /// Returns whether the series was cancelled; false if it has ended in another way.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.progress.lock().end == Some(End::Cancelled)
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

    /// Sets when the next run is due, instead of the series' options: a task that tries again can
    /// choose its delays. The last call counts. A delay is counted from this call, plus the jitter;
    /// later periods are counted from that run. Has no effect if runs
    /// [overlap](Periodic::overlapping).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::periodic::Periodic;
    /// use tickwheel::{ManualClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build()?;
    /// let tries = Periodic::with_delay(Duration::from_secs(1)).start(&timer, |run| {
    ///     match run.number() {
    ///         7 => run.cancel(), // It has worked.
    ///         number => run.reschedule(Duration::from_secs(1 << number)),
    ///     }
    /// })?;
    /// clock.run_for(Duration::from_secs(1 + 127));
    /// assert_eq!(tries.runs(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule(&self, when: impl Into<When>) {
        let due = self.series.clock.deadline_of(when.into());
        if !self.series.periodic.overlaps {
            self.series.progress.lock().chosen = Some(due);
        }
    }

    /// Ends the series; this run is the last.
    pub fn cancel(&self) {
        self.series.end(End::Cancelled);
    }
}

impl SeriesState {
    fn end(&self, end: End) -> bool {
        let mut progress = self.progress.lock();
        let ends = progress.end.is_none();
        progress.end.get_or_insert(end);
        let timeout = progress.timeout.take();
        drop(progress);
        drop(timeout.map(|timeout| timeout.cancel()));
        ends
    }

    /// Adds the run after `run`, which began at `began`, to the timer, unless the series has ended.
    fn schedule(&self, run: &Run<'_>, began: Instant) {
        let Periodic { period, missed_tick, jitter, .. } = self.periodic;
        let now = self.clock.now();
        let mut progress = self.progress.lock();
        if progress.end.is_some() {
            return;
        }
        progress.due = match (progress.chosen.take(), missed_tick) {
            (Some(chosen), _) => chosen,
            (None, Some(missed_tick)) => {
                // A run that is late by no more than the jitter has not missed its tick.
                let now = now.checked_sub(jitter).unwrap_or(now);
                run.due.and_then(|due| missed_tick.next(due, began, now, period))
            }
            (None, None) => now.checked_add(period),
        };
        let (due, number) = (progress.due, progress.number);
        drop(progress);
        let _ = self.add(due, number);
    }

    /// Adds the run with this number to the timer, if the timer is still there. Holds no lock
    /// meanwhile: the series may end, or the run may begin and a later run leave its own handle.
    fn add(&self, due: Option<Instant>, number: u64) -> Result<(), AddError<Task>> {
        let Some(tasks) = self.tasks.upgrade() else { return Ok(()) };
        let runs = self.progress.lock().runs.as_ref().and_then(Weak::upgrade);
        let Some(runs) = runs else { return Ok(()) };
        let jitter = random_below(self.periodic.jitter, &self.clock);
        let at = due.and_then(|due| due.checked_add(jitter));
        let task = Task::shared(runs, number);
        let timeout = tasks.add(When::at_or_never(at), task, Limit::Keep)?;
        self.keep(timeout, None, number);
        Ok(())
    }

    /// Keeps the handle of the run with this number, and its deadline if it was moved.
    fn keep(&self, timeout: Timeout, moved: Option<Option<Instant>>, number: u64) {
        let mut progress = self.progress.lock();
        if progress.end.is_some() {
            drop(progress);
            drop(timeout.cancel());
        } else if progress.number == number {
            progress.due = moved.unwrap_or(progress.due);
            progress.timeout = Some(timeout);
        }
    }

    fn run(&self, task: impl Fn(&Run<'_>)) {
        let mut progress = self.progress.lock();
        if progress.end.is_some() {
            return;
        }
        let run = Run { series: self, due: progress.due, number: progress.number };
        progress.number += 1;
        drop(progress);
        let began = self.clock.now();
        if self.periodic.overlaps {
            self.schedule(&run, began);
            return task(&run);
        }
        let ran = catch_unwind(AssertUnwindSafe(|| task(&run)));
        self.schedule(&run, began); // Also after a panic, which is the executor's to handle.
        if let Err(panic) = ran {
            resume_unwind(panic);
        }
    }
}

/// Ends a series when its closure is dropped.
struct EndOnDrop(Arc<SeriesState>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(End::Over);
    }
}

/// Returns a random duration below `most`; zero if `most` is zero.
fn random_below(most: Duration, clock: &Clock) -> Duration {
    Duration::from_nanos(match u64::try_from(most.as_nanos()) {
        Ok(0) => 0,
        Ok(most) => clock.random() % most,
        Err(_) => clock.random(),
    })
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
