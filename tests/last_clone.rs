//! What becomes of pending tasks when the last clone of their timer is dropped, and who holds one.

#[path = "common/idle.rs"]
mod idle;
#[cfg(feature = "tracing")]
#[path = "common/warnings.rs"]
mod warnings;

use idle::Idle;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{FutureOperation, Purgatory};
use tickwheel::{Cancel, ManualClock, Timer, TimerEntry};

const HOUR: Duration = Duration::from_secs(3600);

/// Does it, and returns the numbers in what it warns of.
#[cfg(feature = "tracing")]
fn warned_of(code: impl FnOnce()) -> Option<Vec<Vec<u64>>> {
    let warnings = warnings::Warnings::default();
    tracing::subscriber::with_default(warnings.listener(), code);
    Some(warnings.take())
}

/// Returns the reported counts; `None` if nothing is reported.
#[cfg(not(feature = "tracing"))]
fn warned_of(code: impl FnOnce()) -> Option<Vec<Vec<u64>>> {
    code();
    None
}

/// Drops it, and checks which numbers of tasks that warns of.
fn drop_warns_of<T>(dropped: T, tasks: &[u64]) {
    let expected: Vec<Vec<u64>> = tasks.iter().map(|tasks| vec![*tasks]).collect();
    let warned = warned_of(|| drop(dropped));
    assert!(warned.is_none_or(|warned| warned == expected));
}

fn by_hand() -> Timer {
    Timer::builder().clock(ManualClock::new()).build().unwrap()
}

fn nothing() {}

#[test]
fn pending_tasks_are_dropped_with_the_last_clone_and_reported_once_with_their_number() {
    for started in [false, true] {
        let builder = Timer::builder().clock(ManualClock::new()).shards(4);
        let builder = builder.executor(|_: Arc<()>| ());
        let timer = if started {
            builder.start()
        } else {
            builder.build()
        }
        .unwrap();
        let task = Arc::new(());
        let add = || {
            timer
                .add(TimerEntry::after(HOUR, Arc::clone(&task)))
                .unwrap()
        };
        let mut handles: Vec<_> = (0..300).map(|_| add()).collect();
        std::thread::scope(|scope| handles.push(scope.spawn(add).join().unwrap()));
        let cancelled = add();
        assert!(cancelled.cancel().is_cancelled());
        drop_warns_of(timer.clone(), &[]);
        drop_warns_of(timer, &[301]);
        assert_eq!(Arc::strong_count(&task), 1);
        for handle in handles {
            assert!(handle.is_expired() && !handle.is_pending() && !handle.is_cancelled());
            assert_eq!(
                (handle.cancel(), handle.deadline()),
                (Cancel::Expired, None)
            );
        }
        assert_eq!(cancelled.cancel(), Cancel::AlreadyCancelled);
    }
}

/// Seen to fail: those stayed that were pending in other chunks of a slab.
#[test]
fn a_pending_task_whose_drop_panics_keeps_no_other_one_from_being_dropped() {
    struct Brittle {
        panics: bool,
        _alive: Arc<()>,
    }
    impl Drop for Brittle {
        fn drop(&mut self) {
            assert!(!self.panics, "contained");
        }
    }
    let builder = Timer::builder()
        .clock(ManualClock::new())
        .executor(|_: Brittle| ());
    let timer = builder.build().unwrap();
    let task = Arc::new(());
    let add = |number| {
        let task = Brittle {
            panics: number == 500,
            _alive: Arc::clone(&task),
        };
        timer.after(HOUR, task).unwrap()
    };
    let handles: Vec<_> = (0..1000).map(add).collect();
    drop_warns_of(timer, &[1000]);
    assert_eq!(Arc::strong_count(&task), 1);
    assert!(handles.iter().all(|handle| handle.is_expired()));
}

#[test]
fn a_timer_that_holds_nothing_is_dropped_without_a_word() {
    let timer = by_hand();
    drop_warns_of(timer, &[]);
    let timer = by_hand();
    assert!(
        timer
            .add(TimerEntry::after(HOUR, nothing))
            .unwrap()
            .cancel()
            .is_cancelled()
    );
    drop_warns_of(timer, &[]);
    let timer = by_hand();
    timer.add(TimerEntry::after(HOUR, nothing)).unwrap();
    let returned = timer.shutdown();
    drop_warns_of(timer, &[]);
    assert_eq!(returned.len(), 1);
    let timer = by_hand();
    timer
        .add(TimerEntry::after(Duration::ZERO, nothing))
        .unwrap();
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    drop_warns_of(timer, &[]);
}

#[test]
fn a_drop_that_is_meant_is_not_reported() {
    let task = Arc::new(());
    for warns in [false, true] {
        let builder = Timer::builder().warn_on_drop(warns);
        // Set before the executor, which changes the builder's type.
        let timer = builder.executor(|_: Arc<()>| ()).build().unwrap();
        timer.after(HOUR, Arc::clone(&task)).unwrap();
        timer.closures().after(HOUR, nothing).unwrap();
        let expected: &[u64] = if warns { &[2] } else { &[] };
        drop_warns_of(timer, expected);
        assert_eq!(Arc::strong_count(&task), 1);
    }
}

/// Returns whether the value that is made of a timer keeps it alive. When it is dropped, the timer
/// ends, without a task.
fn keeps<T>(make: impl FnOnce(&Timer) -> T) -> bool {
    let timer = by_hand();
    let weak = timer.downgrade();
    let made = make(&timer);
    drop(timer);
    let keeps = weak.upgrade().is_some();
    drop_warns_of(made, &[]);
    assert!(weak.upgrade().is_none());
    keeps
}

#[test]
fn keyed_timers_and_purgatories_keep_their_timer() {
    assert!(keeps(|timer| {
        let keyed: KeyedTimer<u32, u32> = KeyedTimer::new(timer, |_, _| ());
        keyed.add(1, HOUR, 1_u32).unwrap();
        keyed
    }));
    assert!(keeps(|timer| {
        let purgatory = Purgatory::new(timer);
        let _pending = purgatory.try_complete_else_watch(Idle, HOUR, &[1]).unwrap();
        purgatory
    }));
}

#[test]
fn futures_do_not_keep_their_timer() {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(!keeps(|timer| {
        let mut sleep = timer.sleep(HOUR);
        assert!(
            std::pin::Pin::new(&mut sleep)
                .poll(&mut context)
                .is_pending()
        );
        sleep
    }));
    assert!(!keeps(|timer| {
        let mut interval = timer.interval(HOUR);
        assert!(interval.poll_tick(&mut context).is_ready());
        assert!(interval.poll_tick(&mut context).is_pending());
        interval
    }));
    assert!(!keeps(|timer| {
        let mut timed = Box::pin(timer.timeout(HOUR, std::future::pending::<()>()));
        assert!(timed.as_mut().poll(&mut context).is_pending());
        timed
    }));
}

#[test]
fn handles_do_not_keep_their_timer() {
    assert!(!keeps(|timer| timer.downgrade()));
    assert!(!keeps(|timer| {
        Purgatory::new(timer)
            .try_complete_else_watch(Idle, HOUR, &[1])
            .unwrap()
    }));
    assert!(!keeps(|timer| {
        let waits: Purgatory<u32, FutureOperation> = Purgatory::new(timer);
        waits.wait(|| false, HOUR, &[1]).unwrap()
    }));
    // These leave a task in the timer, with which it ends.
    let timer = by_hand();
    let weak = timer.downgrade();
    let timeout = timer.add(TimerEntry::after(HOUR, nothing)).unwrap();
    let guard = timer
        .add(TimerEntry::after(HOUR, nothing))
        .unwrap()
        .cancel_on_drop();
    let series = Periodic::every(HOUR).start(&timer, |_| ()).unwrap();
    drop_warns_of(timer, &[3]);
    assert!(weak.upgrade().is_none());
    assert!(timeout.is_expired() && guard.is_expired());
    assert!(
        !series.cancel() && !series.is_cancelled(),
        "nobody has cancelled it"
    );
}

/// A task that is called for a timer to which it refers weakly does not keep the timer alive.
#[test]
fn a_series_may_drop_the_last_clone_of_its_timer_in_a_run() {
    let timer = Timer::builder().start().unwrap();
    let weak = timer.downgrade();
    let last = Arc::new(Mutex::new(None));
    let (sender, has_gone) = channel();
    let taken = Arc::clone(&last);
    let _series = Periodic::every(Duration::from_millis(1)).start(&timer, move |_| {
        let timer: Option<Timer> = taken.lock().unwrap().take();
        if timer.map(drop).is_some() {
            sender.send(weak.upgrade().is_none()).unwrap();
        }
    });
    *last.lock().unwrap() = Some(timer);
    assert_eq!(has_gone.recv_timeout(Duration::from_secs(20)), Ok(true));
}
