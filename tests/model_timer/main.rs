//! The whole `Timer`, on a `ManualClock` and through its public face, against a model that anybody
//! can check by reading: a list of all timers ever added (`model.rs`).
//!
//! Random operations (`ops.rs`), biased to the edges of slots, levels and ticks, run on both; after
//! every step everything that can be seen of the timer is compared.

#[path = "../common/delta.rs"]
mod delta;
mod model;
mod ops;
#[cfg(test)]
#[path = "../common/quick.rs"]
mod quick;
#[path = "../common/times.rs"]
mod times;

use model::Timer as Expected;
use ops::Op;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::{AddError, Cancel, ManualClock, Timeout, Timer, TimerEntry, When};
use times::{Config, How, Moment, NEVER, Span};

/// Both, side by side. Timer `n` has the payload `n`.
struct Run {
    config: Config,
    real: Timer<u32>,
    clock: ManualClock,
    /// When the timer was built: the model counts from here.
    origin: Instant,
    now: Moment,
    fired: Arc<Mutex<Vec<u32>>>,
    /// `None`: it was given to a guard, and that was dropped.
    handles: Vec<Option<Timeout<u32>>>,
    expected: Vec<Expected>,
    rescheduled: u64,
}

impl Run {
    fn new(config: Config) -> Self {
        let clock = ManualClock::seeded(config.seed);
        let fired = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&fired);
        let builder = config
            .builder(&clock)
            .executor(move |id: u32| sink.lock().unwrap().push(id));
        let real = builder.build().expect("the options are in their ranges");
        let origin = clock.now();
        let now = Moment::new(0, config.tick);
        let handles = Vec::new();
        let expected = Vec::new();
        Run {
            config,
            real,
            clock,
            origin,
            now,
            fired,
            handles,
            expected,
            rescheduled: 0,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Add(span, how, thread) => self.add(span, how, thread),
            Op::Cancel(nth) => self.on(nth, Self::cancel),
            Op::Reschedule(nth, span, how) => self.on(nth, |run, id| {
                run.move_to(id, span, how, false);
            }),
            Op::Touch(nth, span, how) => self.on(nth, |run, id| run.move_to(id, span, how, true)),
            Op::Guard(nth, disarm) => self.on(nth, |run, id| run.guard(id, disarm)),
            Op::Step(span) => self.set_clock(self.moment(span)),
            Op::Advance => self.advance(),
            Op::StepAndAdvance(span) => {
                self.set_clock(self.moment(span));
                self.advance();
            }
            Op::Follow => {
                if let Some(next) = self.real.next_expiration() {
                    self.set_clock(nanos(next.saturating_duration_since(self.origin)));
                    self.advance();
                }
            }
        }
        self.compare();
    }

    /// Returns the nanoseconds since the timer was built.
    fn moment(&self, span: Span) -> u64 {
        let pending = self.expected.iter().filter(|timer| timer.is_pending());
        let like: Vec<u64> = pending.map(|timer| timer.deadline).collect();
        span.resolve(self.now.nanos, &self.config, &like)
    }

    fn when(&self, moment: u64, how: How) -> (When, u64) {
        how.when(moment, self.now.nanos, self.origin)
    }

    /// Calls `what` with the nth timer of all, gone ones included.
    fn on(&mut self, nth: usize, what: impl FnOnce(&mut Self, usize)) {
        let len = self.expected.len();
        if len > 0 {
            what(self, len - 1 - nth % len);
        }
    }

    fn add(&mut self, span: Span, how: How, thread: bool) {
        let (when, deadline) = self.when(self.moment(span), how);
        let id = self.expected.len() as u32;
        let entry = TimerEntry::new(when, id);
        let full = self.config.max_pending == Some(self.pending());
        let real = &self.real;
        let added = if thread {
            // Another thread adds to another shard.
            std::thread::scope(|scope| scope.spawn(|| real.add(entry)).join().unwrap())
        } else {
            real.add(entry)
        };
        match added {
            Ok(timeout) => {
                assert!(!full, "more than max_pending");
                self.handles.push(Some(timeout));
                self.expected.push(Expected::new(deadline, &self.now));
            }
            Err(AddError::Full(entry)) => {
                let entry = entry.into_inner();
                assert!(full, "refused, and there is room");
                assert_eq!((entry.when(), entry.into_task()), (when, id));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn cancel(&mut self, id: usize) {
        let Some(timeout) = &self.handles[id] else {
            return;
        };
        let expected = self.expected[id].cancel(id as u32);
        assert_eq!(timeout.cancel(), expected, "cancel of {id}");
    }

    fn guard(&mut self, id: usize, disarm: bool) {
        let Some(timeout) = self.handles[id].take() else {
            return;
        };
        let guard = timeout.cancel_on_drop();
        assert_eq!(guard.is_pending(), self.expected[id].is_pending());
        if disarm {
            self.handles[id] = Some(guard.disarm());
        } else {
            drop(guard);
            let _: Cancel<u32> = self.expected[id].cancel(id as u32);
        }
    }

    fn move_to(&mut self, id: usize, span: Span, how: How, extend: bool) {
        let (when, deadline) = self.when(self.moment(span), how);
        let Some(timeout) = &self.handles[id] else {
            return;
        };
        let was_pending = if extend {
            timeout.touch(when)
        } else {
            timeout.reschedule(when)
        };
        assert_eq!(was_pending, self.expected[id].is_pending(), "move of {id}");
        let moved = self.expected[id].move_to(deadline, extend, &self.now);
        self.rescheduled += u64::from(moved);
    }

    fn set_clock(&mut self, now: u64) {
        let step = now.saturating_sub(self.now.nanos);
        self.clock.advance(Duration::from_nanos(step));
        let now = nanos(self.clock.now() - self.origin);
        self.now = Moment::new(now, self.config.tick);
    }

    fn advance(&mut self) {
        let count = self.real.advance_clock(Duration::from_secs(3600));
        let fired = std::mem::take(&mut *self.fired.lock().unwrap());
        assert_eq!(count, fired.len());
        model::check_order(&self.expected, &fired, &self.now);
        model::expire(&mut self.expected, &fired, &self.now);
    }

    fn pending(&self) -> usize {
        self.expected
            .iter()
            .filter(|timer| timer.is_pending())
            .count()
    }

    fn compare(&self) {
        assert_eq!(self.real.len(), self.pending());
        assert_eq!(self.real.is_empty(), self.pending() == 0);
        assert_eq!(
            *self.fired.lock().unwrap(),
            [],
            "a task ran outside of advance_clock"
        );
        self.compare_handles();
        self.compare_stats();
        if self.config.wheel_size <= 64 || self.expected.len() % 8 == 0 {
            self.real.assert_invariants();
        }
        // What the clock does not reach is not waited for, unless it was moved there.
        let end = (NEVER - 1 - self.config.before) / self.config.tick;
        let comes = |timer: &&Expected| self.now.tick_of(timer.deadline) <= end;
        let first = self
            .expected
            .iter()
            .filter(|timer| timer.is_pending())
            .filter(comes);
        let first = first
            .map(|timer| {
                self.now
                    .tick_of(timer.deadline)
                    .saturating_mul(self.config.tick)
            })
            .min();
        let next = self.real.next_expiration().map(|next| {
            let next = nanos(next - self.origin);
            assert!(next >= nanos(self.clock.now() - self.origin), "in the past");
            Moment::new(next, self.config.tick).nanos
        });
        match (next, first) {
            (Some(next), Some(first)) => assert!(next <= first.max(self.now.nanos), "{next}"),
            (Some(_), None) => assert!(self.pending() > 0),
            (None, first) => assert_eq!(first, None),
        }
    }

    fn compare_handles(&self) {
        for (id, (handle, timer)) in self.handles.iter().zip(&self.expected).enumerate() {
            let Some(handle) = handle else { continue };
            let state = (
                handle.is_pending(),
                handle.is_expired(),
                handle.is_cancelled(),
            );
            assert_eq!(state, timer.state(), "pending, expired, cancelled of {id}");
            let deadline = Some(timer.deadline).filter(|at| timer.is_pending() && *at < NEVER);
            let deadline = deadline.map(|nanos| self.origin + Duration::from_nanos(nanos));
            assert_eq!(handle.deadline(), deadline, "deadline of {id}");
        }
    }

    fn compare_stats(&self) {
        let stats = self.real.stats();
        let [cancelled, expired, returned] = model::count(&self.expected);
        assert_eq!(stats.added, self.expected.len() as u64);
        assert_eq!((stats.cancelled, stats.expired), (cancelled, expired));
        assert_eq!((stats.pending, stats.returned), (self.pending(), returned));
        assert_eq!(
            stats.added,
            stats.pending as u64 + cancelled + expired + returned
        );
        assert_eq!(stats.rescheduled, self.rescheduled);
        assert_eq!((stats.refused, stats.panicked, stats.wakeups), (0, 0, 0));
        assert_eq!(stats.lateness.count(), expired);
    }

    fn shut_down(mut self) {
        let returned: Vec<_> = self.real.shutdown().into_iter().collect();
        let times = |entry: &TimerEntry<u32>| match entry.when() {
            When::At(deadline) => nanos(deadline - self.origin),
            When::Never => NEVER,
            When::After(_) => panic!("a returned entry knows its deadline"),
        };
        assert!(returned.is_sorted_by_key(times), "ordered by deadline");
        for entry in &returned {
            let timer = &mut self.expected[*entry.task() as usize];
            assert_eq!(times(entry), timer.deadline);
            timer.give_back();
        }
        assert_eq!(self.pending(), 0, "all that was pending came back");
        self.compare();
        let late = self.real.add(TimerEntry::after(Duration::ZERO, 7_u32));
        let entry = match late {
            Err(AddError::Shutdown(entry)) => entry.into_inner(),
            // It has no room at all.
            Err(AddError::Full(entry)) if self.config.max_pending == Some(0) => entry.into_inner(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (entry.when(), entry.into_task()),
            (When::After(Duration::ZERO), 7)
        );
        assert_eq!(self.real.shutdown().len(), 0);
        self.advance();
        self.compare();
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("within 584 years")
}

/// Does all this to a timer and to the model: also what `tests/lab/fuzz/` does.
pub(crate) fn property(config: Config, ops: Vec<Op>) {
    let mut run = Run::new(config);
    ops.into_iter().for_each(|op| run.apply(op));
    run.shut_down();
}

#[test]
fn the_timer_does_what_the_model_says_after_every_step() {
    quick::check(property as fn(Config, Vec<Op>), 3000, 80);
}
