//! A user's generic struct that holds timers, keys, operations and their handles demands `'static`
//! of its types, and nothing else. So do its `Clone` and its `Debug`. What an operation needs is
//! demanded by the methods that make or call something.

#[path = "common/idle.rs"]
mod idle;

use idle::Idle;
use std::fmt;
use std::future;
use std::hash::Hash;
use std::time::Duration;
use tickwheel::keyed::{self, KeyedTimer};
use tickwheel::periodic::{Periodic, Series};
use tickwheel::purgatory::{
    CancelPendingOnDrop, DelayedOperation, Pending, Purgatory, Wait, Watch,
};
use tickwheel::queue::{self, KeyedQueue};
use tickwheel::{
    CancelOnDrop, LocalTimer, ManualClock, Timeout, Timer, TimerBuilder, TimerEntry, WeakTimer,
    When,
};

const S: Duration = Duration::from_secs(1);

struct Service<K: 'static, T: 'static, O: 'static> {
    timer: Timer<T>,
    weak: WeakTimer<T>,
    keyed: KeyedTimer<K, T>,
    purgatory: Purgatory<K, O>,
    series: Series,
}

struct Call<K: 'static, T: 'static, O: 'static> {
    timeout: Timeout<T>,
    guard: CancelOnDrop<T>,
    watch: Watch<K, O>,
    pending: Option<Pending<K, O>>,
}

/// Their drop cancels an operation, which keys have to find.
struct Guards<K: Eq + Clone + 'static, O: 'static> {
    pending: CancelPendingOnDrop<K, O>,
    wait: Wait<K>,
}

struct Own<K, T> {
    builder: TimerBuilder<T>,
    queue: KeyedQueue<K, T>,
    local: LocalTimer<T>,
}

struct Entries<'a, K, T> {
    keyed: keyed::Entry<'a, K, T>,
    queued: queue::Entry<'a, K, T>,
}

/// Sent to other threads only by the timer that `new` gets: nothing else asks for `Send`.
impl<K: Hash + Eq + Clone, T, O: DelayedOperation> Service<K, T, O> {
    fn new(timer: Timer<T>) -> Self
    where
        K: Send,
        T: Send,
    {
        Service {
            weak: timer.downgrade(),
            keyed: KeyedTimer::new(&timer, |_, _| ()),
            purgatory: Purgatory::new(&timer),
            series: Periodic::every(S).start(&timer, |_| ()).expect("room"),
            timer,
        }
    }

    fn call(&self, key: K, operation: O, mut task: impl FnMut() -> T) -> Call<K, T, O> {
        let guarded = self.timer.add(TimerEntry::after(S, task()));
        let keys = [key.clone()];
        let watch = self.purgatory.try_complete_else_watch(operation, S, &keys);
        self.keyed.add(key, S, task()).expect("room");
        Call {
            timeout: self.timer.after(S, task()).expect("room"),
            guard: guarded.expect("room").cancel_on_drop(),
            watch: watch.expect("room"),
            pending: None,
        }
    }
}

impl<K, T, O> Clone for Service<K, T, O> {
    fn clone(&self) -> Self {
        Service {
            timer: self.timer.clone(),
            weak: self.weak.clone(),
            keyed: self.keyed.clone(),
            purgatory: self.purgatory.clone(),
            series: self.series.clone(),
        }
    }
}

impl<K, T, O> fmt::Debug for Service<K, T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Service {
            timer,
            weak,
            keyed,
            purgatory,
            series,
        } = self;
        write!(f, "{timer:?} {weak:?} {keyed:?} {purgatory:?} {series:?}")
    }
}

impl<K, T, O> fmt::Debug for Call<K, T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call {
            timeout,
            guard,
            watch,
            pending,
        } = self;
        write!(f, "{timeout:?} {guard:?} {watch:?} {pending:?}")
    }
}

impl<K: Eq + Clone, O> fmt::Debug for Guards<K, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guards { pending, wait } = self;
        write!(f, "{pending:?} {wait:?}")
    }
}

impl<K, T> fmt::Debug for Own<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Own {
            builder,
            queue,
            local,
        } = self;
        write!(f, "{builder:?} {queue:?} {local:?}")
    }
}

impl<K, T> fmt::Debug for Entries<'_, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entries { keyed, queued } = self;
        write!(f, "{keyed:?} {queued:?}")
    }
}

/// No task is `Clone`, `Debug` or anything else.
struct Plain;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key;

#[test]
fn a_generic_struct_demands_static_alone() {
    let builder = || Timer::builder().clock(ManualClock::new());
    let timer = builder().executor(|_: Plain| ()).build().unwrap();
    let service = Service::new(timer);
    let mut call = service.clone().call(Key, Idle, || Plain);
    assert_eq!(format!("{:?}", call.watch), "Pending(Pending { .. })");
    call.pending = Some(match call.watch {
        Watch::Pending(pending) => pending,
        Watch::Completed => panic!("nothing completes it"),
    });
    call.watch = Watch::Completed;
    let printed = format!("{service:?} {call:?}");
    assert!(printed.ends_with("Completed Some(Pending { .. })"));
    // A series, a key, an operation and two timers.
    assert_eq!(service.timer.len(), 5);
    drop(call.guard);
    assert!(call.timeout.cancel().is_cancelled());
    let waits = Purgatory::new(&service.timer);
    let guards = Guards {
        pending: call.pending.unwrap().cancel_on_drop(),
        wait: waits.wait(|| false, S, &[Key]).expect("room"),
    };
    let printed = "CancelPendingOnDrop(Pending { .. }) Wait { .. }";
    assert_eq!(format!("{guards:?}"), printed);
    drop(guards);
    assert!(service.purgatory.is_empty() && waits.is_empty());
    assert!(service.weak.upgrade().is_some() && service.series.cancel());

    let mut own = Own {
        builder: builder().executor(|_: Plain| ()),
        queue: KeyedQueue::new(ManualClock::new(), |_| future::pending::<()>()),
        local: LocalTimer::default(),
    };
    own.local.add(1, Plain);
    assert!(format!("{own:?}").starts_with("Options"));
    let entries = Entries {
        keyed: service.keyed.entry(Key),
        queued: own.queue.entry(Key),
    };
    let printed = format!("{entries:?}");
    assert!(printed.starts_with("Occupied(OccupiedEntry { deadline: Some"));
    assert!(printed.ends_with("Vacant(VacantEntry { .. })"));
    drop(entries);
    service.keyed.cancel(&Key);
    own.queue.insert(Key, When::Never, Plain);
    let entries = Entries {
        keyed: service.keyed.entry(Key),
        queued: own.queue.entry(Key),
    };
    let occupied = "Occupied(OccupiedEntry { deadline: None, .. })";
    let expected = format!("Vacant(VacantEntry {{ .. }}) {occupied}");
    assert_eq!(format!("{entries:?}"), expected);
}
