//! Periodic timers: a task that runs repeatedly.

use crate::engine::clock::{Clock, When};
use crate::engine::shard::Limit;
use crate::sync::HotMutex;
use crate::timer::Timer;
use crate::timer::entry::{SharedClosure, Task};
use crate::timer::error::AddError;
use crate::timer::tasks::Tasks;
use crate::timer::timeout::Timeout;
use std::fmt;
use std::mem;
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
    pub fn start<U: 'static>(
        self,
        timer: &Timer<U>,
        task: impl Fn(&Run<'_>) + Send + Sync + 'static,
    ) -> Result<Series, AddError<Task>> {
        let clock = timer.clock().clone();
        let first = self
            .first
            .unwrap_or_else(|| random_below(self.period, &clock));
        let due = clock.now().checked_add(first);
        let stage = Stage::Waiting { due, timeout: None };
        let progress = HotMutex::new(Progress {
            number: 0,
            entry: 0,
            stage,
            runs: None,
        });
        let tasks = Arc::downgrade(&timer.base.closures);
        let series = Arc::new(SeriesState {
            periodic: self,
            clock,
            tasks,
            progress,
        });
        let over = EndOnDrop(Arc::clone(&series));
        let runs: SharedClosure = Arc::new(move |_| over.0.run(&task));
        series.progress.lock().runs = Some(Arc::downgrade(&runs));
        series.add(&timer.base.closures)?;
        Ok(Series(series))
    }

    /// Returns when the run is due after the one that was due at `due` and began at `began`.
    fn after(&self, due: Option<Instant>, began: Instant, now: Instant) -> Option<Instant> {
        let Some(missed_tick) = self.missed_tick else {
            return now.checked_add(self.period);
        };
        // A run that is late by no more than the jitter has not missed its tick.
        let now = now.checked_sub(self.jitter).unwrap_or(now);
        missed_tick.next(due?, began, now, self.period)
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
                if missed.is_zero() {
                    Some(now)
                } else {
                    now.checked_add(period - missed)
                }
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

/// What the handles and the runs of a series share.
///
/// # Who decides
/// [`Progress`] is what was decided, under one lock. The timer and user code are called without
/// that lock: moving an entry wakes listeners, whose wakers may call the series or begin the run.
/// So the entry of the next run may lie elsewhere than was decided, until the thread that moves or
/// adds it has looked again. The numbers of these cases stand at the lines that deal with them:
///
/// 1. *Two threads move the entry.* T1 decides on 60, then T2 on 90. T2 moves the entry to 90, then
///    T1 to 60, where it would stay. So each thread looks again after its move: T1 finds 90, and
///    moves the entry there. A look follows the last move, whichever thread makes it. No thread
///    waits for another.
/// 2. *A call finds no handle.* T1 adds the entry for 30, and T2 decides on 60 before T1 has kept
///    the handle. T2 has nothing to move. So T1 compares 30 with what is decided, and moves the
///    entry.
/// 3. *The entry expires before it is moved.* The entry expires at 30, and its task waits in the
///    executor. T1 decides on 60, and finds nothing to move; the run would be early. So the task
///    compares 60 with the present when it begins, and adds the run again. In case 1 the entry may
///    expire at 60 likewise.
/// 4. *The run begins inside the move.* T1 decides on the present and moves the entry. A waker that
///    the move wakes begins the run, on T1. The run would be told the former deadline, and the next
///    one would be counted from it. So `due` is changed before the move.
/// 5. *A run overtakes its handle.* T1 adds an entry. Before T1 keeps the handle, the entry expires
///    on T2, the run ends, and T2 adds the next entry and keeps its handle. If T1 replaced it, no
///    `cancel` and no `reschedule` would reach the next run. So entries have numbers.
/// 6. *The series ends while an entry is added.* `cancel` finds no handle, and the entry would stay
///    in the timer. So the thread that has added it cancels it.
struct SeriesState {
    periodic: Periodic,
    clock: Clock,
    /// Where runs are added. Weak, because a run must not own the timer: the timer could end in a
    /// run.
    tasks: Weak<Tasks<Task>>,
    /// Hot: the reaper locks it for each run, and callers may move a series all the time.
    progress: HotMutex<Progress>,
}

struct Progress {
    /// How many runs have begun.
    number: u64,
    /// The number of the present entry (5). Not that of its run, which may get another entry (3).
    entry: u64,
    stage: Stage,
    /// The closure that all runs share, so that a run allocates nothing. Runs hold it strongly, so
    /// its end is that of the series; a [`Series`] keeps no closure alive.
    runs: Option<Weak<dyn Fn(u64) + Send + Sync>>,
}

/// A series waits and runs by turns until it ends. Exactly one entry belongs to a series that
/// waits, and none to one that runs.
///
/// | | waiting | running | ended |
/// |---|---|---|---|
/// | `reschedule`, `touch` | decides, and moves the entry | chooses | false |
/// | the task of the entry | runs if it is `due`, and is added again otherwise | | nothing |
/// | the end of a run | | waits for what was chosen, or follows the options | nothing |
/// | `cancel` | ends, and cancels the entry | ends | false |
///
/// A run that may overlap ends the stage `Running` before its task is called.
enum Stage {
    /// The next run has not begun: its entry is in the timer or in the executor, or on its way.
    Waiting {
        /// When the next run is due, without the jitter; `None` is never.
        due: Option<Instant>,
        /// `None` until the thread that adds the entry keeps the handle.
        timeout: Option<Timeout>,
    },
    Running {
        next: Next,
    },
    Ended(End),
}

/// When the next run is due; `None` is never.
#[derive(Clone, Copy)]
enum Next {
    /// As the options say, once this run has ended.
    ByOptions,
    /// As the options say, but not before this.
    NotBefore(Option<Instant>),
    At(Option<Instant>),
}

impl Next {
    fn extended(self, due: Option<Instant>) -> Next {
        match self {
            Next::ByOptions => Next::NotBefore(due),
            Next::NotBefore(former) => Next::NotBefore(later(former, due)),
            Next::At(former) => Next::At(later(former, due)),
        }
    }

    fn due(self, by_options: impl FnOnce() -> Option<Instant>) -> Option<Instant> {
        match self {
            Next::ByOptions => by_options(),
            Next::NotBefore(due) => later(by_options(), due),
            Next::At(due) => due,
        }
    }
}

/// `None` is never.
fn later(due: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    Some(due?.max(other?))
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
    /// whether the series goes on. A series that is moved at each sign of life runs only after a
    /// silence.
    ///
    /// Several threads may move a series at once: the last call counts. A run that waits in the
    /// executor has not begun, and is added to the timer again; a full timer [ends the
    /// series](Periodic::start) then. During a run, this sets when the run after it is due. The
    /// [jitter](Periodic::jitter) applies as to any other run.
    ///
    /// [`Run::reschedule`] does the same from inside a run.
    pub fn reschedule(&self, when: impl Into<When>) -> bool {
        self.0.decide(when.into(), |_, due| Next::At(due))
    }

    /// Moves the next run as [`reschedule`](Self::reschedule) does, but never earlier. Returns
    /// whether the series goes on.
    ///
    /// During a run, this sets a lower limit: the run after it is due then, or when it would have
    /// been due, whichever is later.
    pub fn touch(&self, when: impl Into<When>) -> bool {
        self.0.decide(when.into(), Next::extended)
    }

    /// Returns whether the series was cancelled; false if it has ended in another way.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0.progress.lock().stage, Stage::Ended(End::Cancelled))
    }

    /// Returns how many runs have begun.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.0.progress.lock().number
    }
}

impl Run<'_> {
    /// Returns when this run was due, without the jitter. `None` if the run was moved to
    /// [`When::Never`], and its task runs after a [`shutdown`](Timer::shutdown) all the same.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the number of this run, counted from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Moves the next run as [`Series::reschedule`] does: a task that tries again can choose its
    /// delays. A delay is counted from this call. Returns whether the series goes on.
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
    ///         number => _ = run.reschedule(Duration::from_secs(1 << number)),
    ///     }
    /// })?;
    /// clock.run_for(Duration::from_secs(1 + 127));
    /// assert_eq!(tries.runs(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule(&self, when: impl Into<When>) -> bool {
        self.series.decide(when.into(), |_, due| Next::At(due))
    }

    /// Ends the series as [`Series::cancel`] does: no further run begins.
    pub fn cancel(&self) {
        self.series.end(End::Cancelled);
    }
}

impl Progress {
    /// Begins to wait for a run. The caller adds its entry after that.
    fn wait_until(&mut self, due: Option<Instant>) {
        self.entry += 1;
        self.stage = Stage::Waiting { due, timeout: None };
    }
}

impl SeriesState {
    fn end(&self, end: End) -> bool {
        let mut progress = self.progress.lock();
        if let Stage::Ended(_) = progress.stage {
            return false;
        }
        let former = mem::replace(&mut progress.stage, Stage::Ended(end));
        drop(progress); // The task that is cancelled may be the last owner of the closure.
        if let Stage::Waiting {
            timeout: Some(timeout),
            ..
        } = former
        {
            drop(timeout.cancel());
        }
        true
    }

    /// Decides anew when the next run is due. Returns false if the series has ended.
    fn decide(&self, when: When, decision: impl FnOnce(Next, Option<Instant>) -> Next) -> bool {
        let due = self.clock.deadline_of(when);
        let mut progress = self.progress.lock();
        let (due, timeout) = match &mut progress.stage {
            Stage::Ended(_) => return false,
            Stage::Running { next } => {
                *next = decision(*next, due);
                return true;
            }
            Stage::Waiting {
                due: decided,
                timeout,
            } => {
                let former = *decided;
                *decided = decision(Next::At(former), due).due(|| former); // Before the move (4).
                if *decided == former {
                    return true; // The jitter stays as well.
                }
                (*decided, timeout.as_ref().map(Timeout::duplicate))
            }
        };
        drop(progress);
        // Without a handle, the thread that is adding the entry moves it (2).
        if let Some(timeout) = timeout {
            self.move_entry(&timeout, due);
        }
        true
    }

    /// Decides when the run after `run` is due, which began at `began`, and adds it to the timer,
    /// unless the series has ended.
    fn schedule(&self, run: &Run<'_>, began: Instant) {
        let now = self.clock.now();
        let mut progress = self.progress.lock();
        let Stage::Running { next } = progress.stage else {
            return;
        };
        let due = next.due(|| self.periodic.after(run.due, began, now));
        progress.wait_until(due);
        drop(progress);
        self.add_if_open();
    }

    /// Adds the next run, unless the series has ended. Returns false if the timer was shut down, or
    /// has gone.
    fn add_if_open(&self) -> bool {
        let Some(tasks) = self.tasks.upgrade() else {
            return false;
        };
        !matches!(self.add(&tasks), Err(AddError::Shutdown(_)))
    }

    /// Adds the next run, unless the series has ended.
    fn add(&self, tasks: &Tasks<Task>) -> Result<(), AddError<Task>> {
        let progress = self.progress.lock();
        let Stage::Waiting { due, .. } = progress.stage else {
            return Ok(());
        };
        let Some(runs) = progress.runs.as_ref().and_then(Weak::upgrade) else {
            return Ok(());
        };
        let number = progress.entry;
        drop(progress);
        let task = Task::shared(runs, number);
        let timeout = tasks.add(self.with_jitter(due), task, Limit::Keep)?;
        self.keep(timeout, due, number);
        Ok(())
    }

    /// Keeps the handle of the entry with this number, which was added for `due`.
    fn keep(&self, timeout: Timeout, due: Option<Instant>, number: u64) {
        let mut progress = self.progress.lock();
        if let Stage::Ended(_) = progress.stage {
            drop(progress);
            drop(timeout.cancel()); // (6)
            return;
        }
        if progress.entry != number {
            return; // Another entry has taken its place (5).
        }
        let Stage::Waiting {
            due: decided,
            timeout: kept,
        } = &mut progress.stage
        else {
            return;
        };
        let decided = *decided;
        *kept = Some(timeout.duplicate());
        drop(progress);
        if decided != due {
            self.move_entry(&timeout, decided); // (2)
        }
    }

    /// Moves an entry to `due`, and further if another deadline is decided on meanwhile.
    fn move_entry(&self, timeout: &Timeout, mut due: Option<Instant>) {
        // If the entry has left the timer, its task looks when it is due (3).
        while timeout.reschedule(self.with_jitter(due)) {
            let Stage::Waiting { due: decided, .. } = self.progress.lock().stage else {
                return;
            };
            if decided == due {
                return;
            }
            due = decided; // (1)
        }
    }

    fn with_jitter(&self, due: Option<Instant>) -> When {
        let jitter = random_below(self.periodic.jitter, &self.clock);
        When::at_or_never(due.and_then(|due| due.checked_add(jitter)))
    }

    fn run(&self, task: impl Fn(&Run<'_>)) {
        let began = self.clock.now();
        let Some(run) = self.begin(began) else { return };
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

    /// Begins the next run at `now`, unless the series has ended or the run is not due.
    fn begin(&self, now: Instant) -> Option<Run<'_>> {
        let mut progress = self.progress.lock();
        let Stage::Waiting { due, .. } = progress.stage else {
            return None;
        };
        if due.is_none_or(|due| now < due) {
            progress.wait_until(due); // (3)
            drop(progress);
            if self.add_if_open() {
                return None;
            }
            // The timer was shut down. Whoever runs a task that `shutdown` has returned may do so
            // before it is due.
            progress = self.progress.lock();
        }
        let Stage::Waiting { due, .. } = progress.stage else {
            return None;
        };
        let run = Run {
            series: self,
            due,
            number: progress.number,
        };
        progress.number += 1;
        let next = Next::ByOptions;
        progress.stage = Stage::Running { next };
        Some(run)
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
        f.debug_struct("Series")
            .field("periodic", &self.0.periodic)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { due, number, .. } = self;
        f.debug_struct("Run")
            .field("due", due)
            .field("number", number)
            .finish_non_exhaustive()
    }
}
