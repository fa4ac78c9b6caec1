//! What `Debug` prints of each public type is a line or a few, however many timers there are: what
//! has one as a field can be printed, and so can what fails an assertion.

#[path = "common/idle.rs"]
mod idle;

use idle::Idle;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use tickwheel::future::{SleepError, TimedError};
use tickwheel::keyed::KeyedTimer;
use tickwheel::lease::{LeaseStore, LeaseTerms, Leases, Renewal};
use tickwheel::periodic::{Periodic, Run};
use tickwheel::purgatory::{FutureOperation, Purgatory};
use tickwheel::{
    AddError, Batch, BuildError, Clock, Executor, Inline, LocalTimer, ManualClock, SystemClock,
    Task, Timer, TimerEntry, Worker,
};

const MANY: u32 = 5_000;
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
/// A few lines. What prints each of its timers, or a number for each slot, prints far more.
const MOST: usize = 2_000;

/// A task of a user's own type.
type Own = [u32; 16];

/// What was printed, by whom.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Printed {
    fn print<T: Debug>(&self, what: &T) {
        let text = format!("{what:?}");
        self.0.lock().unwrap().push((std::any::type_name::<T>(), text));
    }

    /// Checks what was printed. Returns of how many values.
    fn check(&self) -> usize {
        let printed = self.0.lock().unwrap();
        for (name, text) in &*printed {
            assert!(text.len() <= MOST, "{name}: {} characters: {text:.400}", text.len());
        }
        printed.len()
    }
}

impl LeaseStore<u32> for Printed {
    fn renew(&self, batch: Vec<Renewal<u32>>) {
        self.print(&batch[0]);
    }

    fn lost(&self, _: u32) {}
}

impl Executor<Own> for Printed {
    fn execute(&self, _: Own) -> Result<(), Own> {
        Ok(())
    }

    fn execute_batch(&self, batch: &mut Batch<'_, Own>) {
        batch.next().into_iter().for_each(|task| batch.refuse(task));
        self.print(batch);
    }
}

fn timer(clock: &ManualClock) -> Timer {
    Timer::builder().shards(1).clock(clock.clone()).build().expect("the options are valid")
}

#[test]
fn a_local_timer_prints_a_line() {
    let printed = Printed::default();
    let mut timer = LocalTimer::starting_at(0, 1 << 12);
    let keys: Vec<_> = (0..MANY).map(|id| timer.add(u64::from(id) << (id % 20), id)).collect();
    printed.print(&timer);
    // What is left behind, and is still to be handed out.
    let panics = || timer.advance(1 << 20, |_| panic!("at the first"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    printed.print(&timer);
    printed.print(&keys[0]);
    assert_eq!(printed.check(), 3);
    assert!(format!("{timer:?}").contains(&timer.len().to_string()));
}

#[test]
fn a_timer_and_what_it_hands_out_print_little() {
    let (clock, printed) = (ManualClock::new(), Printed::default());
    let builder = Timer::builder().shards(1).wheel_size(1 << 12).clock(clock.clone());
    let builder = builder.executor(printed.clone());
    printed.print(&builder);
    let timer = builder.build().expect("the options are valid");
    let entry = |delay, id| TimerEntry::after(delay, [id; 16]);
    let add = |id: u32| timer.add(entry(MS * (1 << (id % 32)) + MS * id, id));
    let mut timeouts: Vec<_> = (0..MANY).map(|id| add(id).expect("there is no limit")).collect();
    printed.print(&timer);
    printed.print(&timer.downgrade());
    printed.print(&timeouts[0]);
    printed.print(&timeouts.remove(1).cancel());
    printed.print(&timeouts.remove(1).cancel_on_drop());
    printed.print(&timer.snapshot());
    printed.print(&timer.snapshot().levels[0]);
    // One batch.
    (0..100).for_each(|id| assert!(timer.add(entry(Duration::ZERO, id)).is_ok()));
    timer.advance_clock(Duration::ZERO);
    for bits in 0..40 {
        (0..10).for_each(|id| assert!(timer.add(entry(MS, id)).is_ok()));
        clock.advance(Duration::from_nanos(1 << bits));
    }
    printed.print(&timer.stats());
    printed.print(&timer.stats().lateness);
    assert!(!timer.shutdown().is_empty());
    printed.print(&timer.add(entry(MS, 1)).expect_err("it was shut down"));
    assert_eq!(printed.check(), 12, "with one batch");
}

#[test]
fn what_stands_on_a_timer_prints_little() {
    let (clock, printed) = (ManualClock::new(), Printed::default());
    let timer = timer(&clock);
    let keyed = KeyedTimer::new(&timer, |_: u32, ()| ());
    let purgatory = Purgatory::new(&timer);
    let leases = Leases::new(&timer, LeaseTerms::new(HOUR), printed.clone());
    for id in 0..MANY {
        assert!(keyed.schedule(id, TimerEntry::after(MS * (id + 1), ())).is_ok());
        assert!(purgatory.try_complete_else_watch(Idle, HOUR, &[id % 9, 10_000 + id]).is_ok());
    }
    let held: Vec<_> = (0..MANY).filter_map(|key| leases.hold(key).ok()).collect();
    printed.print(&keyed);
    printed.print(&keyed.entry(1));
    printed.print(&keyed.entry(MANY));
    printed.print(&purgatory);
    printed.print(&purgatory.stats());
    let watch = || purgatory.try_complete_else_watch(Idle, HOUR, &[3]).expect("there is no limit");
    printed.print(&watch());
    let pending = watch().pending().expect("it waits");
    printed.print(&pending);
    printed.print(&pending.cancel());
    printed.print(&watch().pending().expect("it waits").cancel_on_drop());
    printed.print(&leases);
    printed.print(&held[0]);
    printed.print(&leases.stats());
    let print = printed.clone();
    let series = Periodic::every(MS).start(&timer, move |run: &Run<'_>| print.print(run));
    printed.print(&series.expect("there is no limit"));
    clock.advance(HOUR / 2);
    timer.advance_clock(Duration::ZERO);
    assert_eq!(printed.check(), 13 + 1 + MANY as usize / 100, "with a run, and all renewals");
}

#[test]
fn futures_print_little() {
    let (clock, printed) = (ManualClock::new(), Printed::default());
    let timer = timer(&clock);
    let mut sleeps: Vec<_> = (0..MANY).map(|_| Box::pin(timer.sleep(HOUR))).collect();
    let context = &mut Context::from_waker(Waker::noop());
    assert!(sleeps.iter_mut().all(|sleep| sleep.as_mut().poll(context).is_pending()));
    printed.print(&sleeps[0]);
    printed.print(&timer.interval(MS));
    let purgatory: Purgatory<u32, FutureOperation> = Purgatory::new(&timer);
    let wait = || purgatory.wait(&[1], HOUR, || false).expect("there is no limit");
    let waits: Vec<_> = (0..MANY).map(|_| wait()).collect();
    printed.print(&waits[0]);
    printed.print(&purgatory.shutdown()[0]);
    assert_eq!(printed.check(), 4);
}

#[test]
fn options_clocks_answers_and_errors_print_little() {
    let (clock, printed) = (ManualClock::new(), Printed::default());
    let worker = Worker::unbounded("worker", |_: u32| ()).expect("threads can be started");
    (0..MANY).for_each(|id| assert!(worker.execute(id).is_ok()));
    printed.print(&worker);
    printed.print(&Inline);
    printed.print(&SystemClock);
    printed.print(&Clock::from(clock.clone()));
    printed.print(&clock);
    printed.print(&Periodic::every(MS));
    printed.print(&LeaseTerms::new(HOUR));
    printed.print(&TimerEntry::after(MS, Task::new(|| ())));
    printed.print(&AddError::Full(TimerEntry::after(MS, vec![0; MANY as usize])));
    printed.print(&BuildError::Tick);
    printed.print(&[TimedError::Elapsed, TimedError::Sleep(SleepError::Full)]);
    assert_eq!(printed.check(), 11);
}
