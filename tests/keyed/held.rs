//! Keys whose shard another thread holds.

use crate::{HOUR, MS};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::task::Waker;
use std::thread;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{ManualClock, Task, Timer, TimerEntry};

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

/// The turn passes their shard over, and comes again.
#[test]
fn keys_expire_soon_after_their_shard_is_let_go() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .start()
        .expect("a thread can be started");
    let (sender, expired) = channel();
    let expire = move |key: u32, ()| sender.send(key).expect("the test lives");
    let keyed: KeyedTimer<_, _, BuildHasherDefault<OneShard>> =
        KeyedTimer::with_hasher(&timer, Default::default(), expire);
    keyed.add(0, HOUR, ()).unwrap();
    (1..=300).for_each(|key| assert!(keyed.add(key, MS, ()).is_ok()));
    let entry = keyed.find(&0);
    // Not before: what the reaper has taken out may expire while the shard is held.
    clock.advance(MS);
    thread::sleep(20 * MS);
    assert_eq!(expired.try_iter().count(), 0);
    drop(entry);
    (0..300).for_each(|_| assert!(expired.recv_timeout(HANG).is_ok()));
    assert_eq!(keyed.len(), 1);
}

/// A timer is printed by a thread that holds one of its keys: in a log line, say.
#[test]
fn a_timer_is_printed_under_an_entry() {
    let (done, printed) = channel();
    thread::spawn(move || {
        let timer = Timer::builder().name("held").build().expect("in range");
        let keyed = KeyedTimer::new(&timer, |_: u32, ()| ());
        keyed.add(1, HOUR, ()).expect("there is room");
        let _entry = keyed.find(&1);
        done.send(format!("{timer:?} {keyed:?}"))
            .expect("the test waits");
    });
    let printed = printed
        .recv_timeout(HANG)
        .expect("printing takes no lock of a shard");
    assert!(printed.contains("held"), "{printed}");
}

type Kept<K> = KeyedTimer<K, Arc<u32>, BuildHasherDefault<OneShard>>;

/// Returns a keyed timer whose closure keeps each key for another hour. The time of `key` was up,
/// and its task is there.
fn kept<K>(key: K, task: Arc<u32>) -> (Timer, Kept<K>, Receiver<Task>)
where
    K: Hash + Eq + Send + 'static,
{
    let (sender, tasks) = channel();
    let builder = Timer::builder().executor(move |task: Task| _ = sender.send(task));
    let timer = builder.build().expect("in range");
    let keep = |key: K, task: Arc<u32>| Some((key, TimerEntry::after(HOUR, task)));
    let keyed = Kept::with_hasher(&timer, Default::default(), keep);
    keyed.add(key, Duration::ZERO, task).unwrap();
    assert_eq!(timer.advance_clock(HANG), 1);
    (timer, keyed, tasks)
}

/// On the thread that runs the closure: it is an add like any other.
#[test]
fn a_key_that_is_kept_waits_for_who_holds_its_shard() {
    let (timer, keyed, tasks) = kept(1, Arc::new(6));
    let task = tasks.recv_timeout(HANG).expect("it expires");
    thread::scope(|scope| {
        let entry = keyed.entry(2);
        let runs = scope.spawn(|| task.run());
        thread::sleep(20 * MS);
        assert!(!runs.is_finished());
        drop(entry);
    });
    assert_eq!(
        (keyed.get(&1).as_deref(), timer.stats().added),
        (Some(&6), 2)
    );
    keyed.assert_invariants();
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
#[test]
fn a_kept_key_that_panics_panics_in_its_own_task() {
    let picky = Arc::new(AtomicBool::new(false));
    let task = Arc::new(6);
    let key = |number| Picky(number, Arc::clone(&picky));
    let (timer, keyed, tasks) = kept(key(1), Arc::clone(&task));
    keyed.add(key(2), HOUR, Arc::new(7)).unwrap();
    picky.store(true, SeqCst);
    let run = || tasks.recv_timeout(HANG).map(Task::run);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    picky.store(false, SeqCst);
    assert_eq!(
        (Arc::strong_count(&task), keyed.len(), timer.len()),
        (1, 1, 1)
    );
    keyed.assert_invariants();
}

/// Has one thread hold an entry, and another one wait for it in a turn, in virtual time.
/// Seen to fail: the turn's lock was held meanwhile, for which these calls waited as well.
#[test]
fn a_turn_that_waits_for_an_entry_keeps_nobody_else_waiting() {
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .build()
        .expect("in range");
    let keyed = KeyedTimer::new(&timer, |_: u32, _: u32| ());
    keyed.add(1, MS, 1_u32).unwrap();
    let (held, is_held) = channel();
    let (release, released) = channel::<()>();
    thread::scope(|scope| {
        let keyed = &keyed;
        scope.spawn(move || {
            let entry = keyed.find(&1);
            held.send(()).expect("the test waits");
            assert!(
                released.recv_timeout(HANG).is_ok(),
                "a call waits for this entry"
            );
            drop(entry);
        });
        is_held.recv_timeout(HANG).expect("it is held");
        clock.advance(MS);
        let turn = scope.spawn(|| timer.advance_clock(Duration::ZERO));
        thread::sleep(20 * MS);
        assert!(!turn.is_finished() && !timer.is_shutdown());
        assert!(
            timer
                .next_expiration()
                .is_some_and(|next| next <= timer.now())
        );
        let listener = timer.listener();
        assert!(listener.next_expiration(Waker::noop()).is_some());
        drop(KeyedTimer::new(&timer, |_: u32, _: u64| ()));
        release.send(()).expect("it still holds the entry");
        assert_eq!(turn.join().expect("it does not panic"), 1);
    });
    assert!(keyed.is_empty());
}
