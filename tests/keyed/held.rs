//! Alarms that find their key's shard held for long. In real time: in virtual time they wait.

use crate::{HOUR, MS};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;
use tickwheel::keyed::{KeyedTimer, OccupiedEntry};
use tickwheel::{ManualClock, Task, Timer, TimerBuilder, TimerEntry};

/// A guard against hanging only.
const HANG: Duration = Duration::from_secs(20);

/// All keys have the same hash, so they lie in one shard.
#[derive(Default)]
struct OneShard;

impl Hasher for OneShard {
    fn write(&mut self, _: &[u8]) {}

    fn finish(&self) -> u64 {
        0
    }
}

/// Keyed timers whose alarms the test runs, and what has expired.
struct Held {
    timer: Timer,
    keyed: KeyedTimer<u32, u32, BuildHasherDefault<OneShard>>,
    alarms: Receiver<Task>,
    expired: Receiver<u32>,
}

impl Held {
    fn new(build: impl FnOnce(TimerBuilder<Task>) -> Timer) -> Self {
        let (sender, alarms) = channel();
        let executor = move |alarm| _ = sender.send(alarm);
        let timer = build(Timer::builder().executor(executor));
        let (sender, expired) = channel();
        let expire = move |key, _| sender.send(key).expect("the test lives");
        let keyed = KeyedTimer::with_hasher(&timer, Default::default(), expire);
        Held { timer, keyed, alarms, expired }
    }

    /// Creates a timer that the test drives, on which key 1 has expired. Its alarm is on its way.
    fn driven() -> Self {
        let held = Self::new(|builder| builder.max_pending(4).build().expect("in range"));
        held.schedule(1);
        assert_eq!(held.timer.advance_clock(HANG), 1);
        held
    }

    fn schedule(&self, key: u32) {
        let entry = TimerEntry::after(Duration::ZERO, key);
        assert_eq!(self.keyed.add(key, entry).expect("there is room"), None);
    }

    fn add(&self) -> bool {
        self.timer.after(HOUR, || ()).is_ok()
    }

    /// Runs the next alarm while a key is held.
    fn run_while_held(&self, key: u32) -> OccupiedEntry<'_, u32, u32> {
        let alarm = self.alarms.recv_timeout(HANG).expect("an alarm");
        let entry = self.keyed.find(&key).expect("it is there until its alarm has come");
        alarm.run();
        entry
    }

    fn run(&self) {
        self.alarms.recv_timeout(HANG).expect("an alarm").run();
    }
}

#[test]
fn an_alarm_that_waits_takes_no_permit_and_counts_nowhere() {
    let held = Held::driven();
    assert!(held.add() && held.add());
    let entry = held.run_while_held(1);
    assert!(held.add(), "three are pending");
    drop(entry);
    let stats = held.timer.stats();
    assert_eq!((held.timer.len(), stats.added, stats.expired), (4, 4, 0));
    assert!(!held.add(), "the key is there until its alarm has come");
    assert_eq!(held.timer.snapshot().levels.iter().map(|level| level.entries).sum::<usize>(), 3);
    held.timer.assert_invariants();
}

#[test]
fn an_alarm_that_comes_again_is_counted_once() {
    let held = Held::driven();
    for _ in 0..3 {
        drop(held.run_while_held(1));
        assert!(held.timer.next_expiration().is_some_and(|next| next <= held.timer.now()));
        assert_eq!(held.timer.advance_clock(10 * MS), 0, "it has expired before");
    }
    held.run();
    assert_eq!((held.expired.try_recv(), held.keyed.len()), (Ok(1), 0));
    held.timer.assert_invariants();
    let stats = held.timer.stats();
    assert_eq!((stats.added, stats.expired, held.timer.next_expiration()), (1, 1, None));
}

/// However many there are: more than a turn hands over under one lock.
#[test]
fn all_alarms_that_wait_come_again() {
    let held = Held::new(|builder| builder.build().expect("in range"));
    (0..300).for_each(|key| held.schedule(key));
    while held.timer.advance_clock(Duration::ZERO) > 0 {}
    let entry = held.keyed.find(&0);
    held.alarms.try_iter().for_each(Task::run);
    drop(entry);
    assert_eq!(held.expired.try_iter().count(), 0);
    assert_eq!(held.timer.advance_clock(Duration::ZERO), 0);
    held.alarms.try_iter().for_each(Task::run);
    assert_eq!((held.expired.try_iter().count(), held.keyed.len()), (300, 0));
}

/// With a reaper nobody has to call anything.
#[test]
fn a_key_expires_soon_after_it_is_let_go() {
    let held = Held::new(|builder| builder.start().expect("a thread can be started"));
    held.schedule(1);
    drop(held.run_while_held(1));
    held.run();
    assert_eq!((held.expired.try_recv(), held.keyed.len()), (Ok(1), 0));
}

/// An alarm that waits is not with the executor, so it ends with a shutdown. One that the executor
/// had before waits for whoever holds its key: it has nobody to come again for it.
#[test]
fn a_shutdown_returns_no_alarm_and_ends_those_that_wait() {
    let held = Held::driven();
    held.schedule(2);
    assert_eq!(held.timer.advance_clock(HANG), 1);
    assert!(held.add());
    drop(held.run_while_held(1));
    assert_eq!(held.timer.shutdown().len(), 1);
    assert_eq!(held.timer.advance_clock(MS), 0);
    let (ready, release) = (channel(), channel::<()>());
    let (alarm, keyed) = (held.alarms.recv_timeout(HANG).expect("an alarm"), &held.keyed);
    thread::scope(|scope| {
        scope.spawn(move || {
            let entry = keyed.find(&2);
            ready.0.send(entry.is_some()).expect("the test waits");
            assert!(release.1.recv_timeout(HANG).is_ok());
        });
        assert_eq!(ready.1.recv_timeout(HANG), Ok(true));
        let waits = scope.spawn(move || alarm.run());
        thread::sleep(20 * MS);
        assert!(!waits.is_finished() && held.expired.try_recv().is_err());
        release.0.send(()).expect("it waits");
    });
    assert_eq!(held.expired.try_iter().collect::<Vec<_>>(), [2]);
    assert!(held.alarms.try_recv().is_err(), "no turn hands the first one over again");
    assert_eq!((held.keyed.cancel(&1), held.timer.len()), (Some(1), 0));
}

/// Its number on the driver goes to the next one, which has nothing to do with the alarm.
#[test]
fn an_alarm_that_waits_goes_with_its_keyed_timer() {
    let held = Held::driven();
    drop(held.run_while_held(1));
    let Held { timer, keyed, alarms, .. } = held;
    drop(keyed);
    let (sender, expired) = channel();
    let next = KeyedTimer::new(&timer, move |key: u32, ()| sender.send(key).expect("it waits"));
    assert!(next.add(3, TimerEntry::after(Duration::ZERO, ())).is_ok());
    assert_eq!(timer.advance_clock(HANG), 1);
    alarms.try_iter().for_each(Task::run);
    assert_eq!((expired.try_iter().collect::<Vec<_>>(), timer.len()), (vec![3], 0));
    timer.assert_invariants();
}

type Kept<K> = KeyedTimer<K, Arc<u32>, BuildHasherDefault<OneShard>>;

/// Has `key` kept with its task, while an entry of `other` is held, which is let go of then. Others
/// are kept while nothing is held.
fn keep<K: Hash + Eq + Clone + Send + Sync + 'static>(
    (key, other): (K, K),
    task: Arc<u32>,
) -> (Timer, Kept<K>, Receiver<Task>) {
    let (sender, alarms) = channel();
    let executor = move |alarm: Task| _ = sender.send(alarm);
    let timer = Timer::builder().executor(executor).max_pending(4).build().expect("in range");
    let (expires, release, (held, is_held)) = (channel(), channel::<()>(), channel());
    let is_held = Mutex::new(is_held);
    let expired = move |key: K, task: Arc<u32>| {
        if expires.0.send(()).is_ok() {
            assert!(is_held.lock().unwrap().recv_timeout(HANG).is_ok());
        }
        Some((key, TimerEntry::after(HOUR, task)))
    };
    let keyed = Kept::with_hasher(&timer, Default::default(), expired);
    keyed.after(key, Duration::ZERO, task).unwrap();
    keyed.after(other.clone(), HOUR, Arc::new(0)).unwrap();
    assert_eq!(timer.advance_clock(HANG), 1);
    thread::scope(|scope| {
        let (keyed, other) = (&keyed, &other);
        scope.spawn(move || {
            expires.1.recv_timeout(HANG).expect("it expires");
            let entry = keyed.find(other);
            held.send(()).expect("it waits for this");
            release.1.recv_timeout(HANG).expect("nobody waited for this entry");
            drop(entry);
        });
        alarms.recv_timeout(HANG).expect("an alarm").run();
        release.0.send(()).expect("it still holds the shard");
    });
    (timer, keyed, alarms)
}

/// The next turn adds the key, unless something else happens before.
/// Seen to fail: a task of the timer tried again each millisecond. It counted each time, was
/// returned by `shutdown`, and brought keys back that `cancel_all` had not found.
#[test]
fn a_key_that_is_kept_waits_for_nobody_who_holds_its_shard() {
    type Meanwhile = fn(&Timer, &Kept<u32>);
    let add: Meanwhile = |_, keyed| assert!(keyed.after(1, HOUR, Arc::new(9)).unwrap().is_none());
    let end: Meanwhile = |timer, _| assert_eq!(timer.shutdown().len(), 0);
    let cancel: Meanwhile = |_, keyed| assert_eq!(keyed.cancel_all().len(), 2);
    let turn: Meanwhile = |timer, _| assert_eq!(timer.advance_clock(Duration::ZERO), 0);
    // Its task then, and how often `cancel_all` finds it after that.
    let cases: [(&[Meanwhile], Option<u32>, usize); 6] = [
        (&[], Some(6), 1),
        (&[add], Some(9), 1),
        (&[cancel], None, 0),
        (&[add, cancel], None, 0),
        (&[end], None, 1),
        (&[turn, end], None, 1),
    ];
    for case in cases.map(Some).into_iter().chain([None]) {
        let kept = Arc::new(6);
        let (timer, keyed, alarms) = keep((1, 2), Arc::clone(&kept));
        if let Some((meanwhile, expected, found)) = case {
            assert_eq!((keyed.get(&1), timer.stats().added), (None, 2));
            meanwhile.iter().for_each(|meanwhile| meanwhile(&timer, &keyed));
            turn(&timer, &keyed);
            alarms.try_iter().for_each(Task::run);
            assert_eq!(keyed.get(&1).as_deref().copied(), expected);
            assert!(timer.stats().added <= 3, "it is added once");
            keyed.assert_invariants();
            let left = keyed.cancel_all();
            assert_eq!(left.iter().filter(|(key, _)| *key == 1).count(), found);
        }
        drop(keyed);
        assert_eq!((Arc::strong_count(&kept), timer.len()), (1, 0));
        timer.assert_invariants();
    }
}

/// Seen to fail: the one that waited was added in its place, and also after a shutdown.
#[test]
fn a_key_that_is_kept_while_nothing_is_held_waits_behind_no_other() {
    for ends in [false, true] {
        let (timer, keyed, alarms) = keep((1, 2), Arc::new(6));
        keyed.after(3, Duration::ZERO, Arc::new(7)).unwrap();
        assert_eq!(timer.advance_clock(HANG), 1);
        let alarms: Vec<Task> = alarms.try_iter().collect();
        let [expires, late]: [Task; 2] = alarms.try_into().expect("of keys 3 and 1");
        if ends {
            assert_eq!(timer.shutdown().len(), 0);
        }
        expires.run();
        assert_eq!((keyed.contains(&1), keyed.contains(&3)), (false, !ends));
        late.run();
        assert_eq!(keyed.contains(&1), !ends);
        let mut left: Vec<_> = keyed.cancel_all().into_iter().map(|(key, _)| key).collect();
        left.sort();
        assert_eq!(left, if ends { vec![1, 2] } else { vec![1, 2, 3] });
    }
}

/// Cannot be compared, once it is told so.
#[derive(Clone)]
struct Picky(u32, Arc<AtomicBool>);

impl Hash for Picky {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for Picky {
    fn eq(&self, other: &Picky) -> bool {
        assert!(!self.1.load(SeqCst), "as it should");
        self.0 == other.0
    }
}

impl Eq for Picky {}

/// A key that is kept, and cannot be compared, costs only its own task.
/// Seen to fail: whoever used the keyed timer next panicked, and the last drop did.
#[test]
fn a_kept_key_that_panics_panics_in_its_own_alarm() {
    let (picky, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(6));
    let key = |number| Picky(number, Arc::clone(&picky));
    let (timer, keyed, alarms) = keep((key(1), key(2)), Arc::clone(&kept));
    picky.store(true, SeqCst);
    assert_eq!((keyed.len(), timer.advance_clock(Duration::ZERO)), (1, 0));
    let alarm = alarms.try_recv().expect("its own");
    assert!(catch_unwind(AssertUnwindSafe(|| alarm.run())).is_err());
    assert_eq!((keyed.cancel_all().len(), Arc::strong_count(&kept)), (1, 1));
    picky.store(false, SeqCst);
    let (_timer, keyed, _alarms) = keep((key(1), key(2)), Arc::clone(&kept));
    picky.store(true, SeqCst);
    assert_eq!(keyed.cancel_all().len(), 2);
    picky.store(false, SeqCst);
    let (timer, keyed, _alarms) = keep((key(1), key(2)), Arc::clone(&kept));
    picky.store(true, SeqCst);
    drop(keyed);
    assert_eq!((timer.len(), Arc::strong_count(&kept)), (0, 1));
}

/// Has one thread hold an entry, and another one wait for it in a turn, in virtual time.
/// Seen to fail: the turn's lock was held meanwhile, for which these calls waited as well.
#[test]
fn a_turn_that_waits_for_an_entry_keeps_nobody_else_waiting() {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().expect("in range");
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    keyed.after(1, MS, 1_u32).unwrap();
    let (held, is_held) = channel();
    let (release, released) = channel::<()>();
    thread::scope(|scope| {
        let keyed = &keyed;
        scope.spawn(move || {
            let entry = keyed.find(&1);
            held.send(()).expect("the test waits");
            assert!(released.recv_timeout(HANG).is_ok(), "a call waits for this entry");
            drop(entry);
        });
        is_held.recv_timeout(HANG).expect("it is held");
        clock.advance(MS);
        let turn = scope.spawn(|| timer.advance_clock(Duration::ZERO));
        thread::sleep(20 * MS);
        assert!(!turn.is_finished() && !timer.is_shutdown());
        assert!(timer.next_expiration().is_some_and(|next| next <= timer.now()));
        let listener = timer.listener();
        assert!(listener.next_expiration(Waker::noop()).is_some());
        drop(KeyedTimer::new(&timer, |_: u32, _: u64| ()));
        release.send(()).expect("it still holds the entry");
        assert_eq!(turn.join().expect("it does not panic"), 1);
    });
    assert!(keyed.is_empty());
}
