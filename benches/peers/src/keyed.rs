//! Timers by key, at most one for each: K1 and K_touch, on real clocks.

use crate::work::{Random, measured, nanos_per};
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::When;

/// Keys that have a timer, all the time, in the peers' benchmark.
pub const KEYS: u64 = 100_000;
/// So many steps come between two rests.
pub const BATCH: usize = 32;

/// Timers by key. One value is used by one thread; those that several threads can use are cloned.
pub trait Keyed: Send + 'static {
    type Deadline: Copy + Send + Sync;
    type Runner: Runner;

    /// Creates it; called, like all else, where the work runs.
    fn new() -> Self;

    fn deadline(&self, after: Duration) -> Self::Deadline;

    /// Schedules a key's task, replacing the one that it has. Returns whether it had none.
    fn schedule(&mut self, key: u64, deadline: Self::Deadline, task: u64) -> bool;

    /// Moves a key's task to a later deadline. Returns whether there was one.
    fn touch(&mut self, key: u64, deadline: Self::Deadline) -> bool;

    /// Takes a key's task back.
    fn cancel(&mut self, key: u64) -> Option<u64>;

    /// Returns how many timers are pending.
    fn len(&self) -> usize;

    /// Lets the tasks run that those calls have spawned and aborted, if they do.
    fn rest(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// Adds a key. Revisions that have no keyed queue take an entry.
pub fn add_key<T: Send>(
    keyed: &tickwheel::keyed::KeyedTimer<u64, T>,
    key: u64,
    when: impl Into<When>,
    task: T,
) -> Option<T> {
    #[cfg(feature = "queue")]
    let former = keyed.add(key, when, task);
    #[cfg(not(feature = "queue"))]
    let former = keyed.add(key, tickwheel::TimerEntry::new(when, task));
    former.expect("there is no limit")
}

fn task_of(key: u64) -> u64 {
    3 * key + 1
}

/// Returns a random deadline at least an hour away.
fn soonest<K: Keyed>(keyed: &K, random: &mut Random) -> K::Deadline {
    keyed.deadline(Duration::from_secs(3_600) + Duration::from_millis(random.below(1_800_000)))
}

/// Returns the `n`th of the `of` deadlines to which keys are moved, each later than all before it.
fn later<K: Keyed>(keyed: &K, n: u64, of: u64) -> K::Deadline {
    keyed.deadline(Duration::from_secs(5_400) + Duration::from_millis(n * 1_800_000 / of))
}

async fn filled<K: Keyed>(keys: u64) -> K {
    let mut keyed = K::new();
    let mut random = Random::new();
    for key in 0..keys {
        let deadline = soonest(&keyed, &mut random);
        assert!(keyed.schedule(key, deadline, task_of(key)));
        if key % BATCH as u64 == 0 {
            keyed.rest().await;
        }
    }
    keyed
}

/// Schedules a new key, touches a random one, and cancels the oldest, `steps` times, with so many
/// keys. Returns nanoseconds per step, of three calls.
pub fn churn<K: Keyed>(keys: u64, steps: u64) -> f64 {
    K::Runner::new(1).run(vec![churn_alone::<K>(keys, steps)])[0]
}

/// For each step the oldest key, the one to touch, the new one's deadline, the touched one's.
type Step<K> = (u64, u64, <K as Keyed>::Deadline, <K as Keyed>::Deadline);

fn plan<K: Keyed>(keyed: &K, keys: u64, steps: u64) -> Vec<Step<K>> {
    let mut random = Random::new();
    let step = |oldest| {
        let touched = oldest + 1 + random.below(keys);
        (
            oldest,
            touched,
            soonest(keyed, &mut random),
            later(keyed, oldest, steps),
        )
    };
    (0..steps).map(step).collect()
}

async fn churn_alone<K: Keyed>(keys: u64, steps: u64) -> f64 {
    let mut keyed = filled::<K>(keys).await;
    let all = plan(&keyed, keys, steps);
    let mut done = 0;
    let mut sum = 0;
    let started = Instant::now();
    for batch in all.chunks(BATCH) {
        measured(|| {
            for &(oldest, touched, deadline, later) in batch {
                let new = oldest + keys;
                done += u64::from(keyed.schedule(new, deadline, task_of(new)));
                done += u64::from(keyed.touch(touched, later));
                sum += keyed.cancel(oldest).expect("it is there");
            }
        });
        keyed.rest().await;
    }
    let step = nanos_per(started, steps);
    assert_eq!(keyed.len() as u64, keys, "as many timers as keys");
    assert_eq!(
        done,
        2 * steps,
        "each new key was absent, each touched one was there"
    );
    assert_eq!(
        sum,
        (0..steps).map(task_of).sum::<u64>(),
        "each was given its own task back"
    );
    step
}

/// Takes so many of those steps from each of so many threads. Each thread cancels keys that another
/// one has added. Returns nanoseconds per step and thread.
pub fn churn_shared<K: Keyed + Clone>(threads: usize, steps: u64) -> f64 {
    let runner = K::Runner::new(threads);
    let keyed = runner.run(vec![filled::<K>(KEYS)]).remove(0);
    let barrier = Arc::new(Barrier::new(threads));
    let all = plan(&keyed, KEYS, threads as u64 * steps);
    let churn = |thread| {
        let own = all.iter().copied().skip(thread).step_by(threads);
        churn_one(keyed.clone(), own.collect(), Arc::clone(&barrier))
    };
    let each = runner.run((0..threads).map(churn).collect());
    each.iter().sum::<f64>() / threads as f64
}

async fn churn_one<K: Keyed>(mut keyed: K, all: Vec<Step<K>>, barrier: Arc<Barrier>) -> f64 {
    let mut done = 0;
    barrier.wait();
    let started = Instant::now();
    for batch in all.chunks(BATCH) {
        for &(oldest, touched, deadline, later) in batch {
            let new = KEYS + (oldest ^ 1);
            done += usize::from(keyed.schedule(new, deadline, task_of(new)));
            done += usize::from(keyed.touch(touched, later));
            done += usize::from(keyed.cancel(oldest).is_some());
        }
        keyed.rest().await;
    }
    let step = nanos_per(started, all.len() as u64);
    // A few keys are not there yet if the other thread has fallen behind.
    assert!(done > 2 * all.len(), "most keys were there");
    step
}

/// Moves `moves` of 100 k keys, at random, to later deadlines. Returns nanoseconds per move.
pub fn touch<K: Keyed>(moves: u64) -> f64 {
    touch_each::<K>(1, moves, |keyed| vec![keyed])
}

/// Does the same from so many threads. Returns nanoseconds per move and thread.
pub fn touch_shared<K: Keyed + Clone>(threads: usize, moves: u64) -> f64 {
    touch_each::<K>(threads, moves, |keyed| vec![keyed; threads])
}

fn touch_each<K: Keyed>(threads: usize, moves: u64, clones: impl Fn(K) -> Vec<K>) -> f64 {
    let runner = K::Runner::new(threads);
    let keyed = runner.run(vec![filled::<K>(KEYS)]).remove(0);
    let barrier = Arc::new(Barrier::new(threads));
    let touch = |(seed, keyed)| touch_one(keyed, seed, moves, Arc::clone(&barrier));
    let each = runner.run((1..).zip(clones(keyed)).map(touch).collect());
    each.iter().sum::<f64>() / threads as f64
}

async fn touch_one<K: Keyed>(mut keyed: K, seed: u64, moves: u64, barrier: Arc<Barrier>) -> f64 {
    let mut random = Random::new();
    (0..seed).for_each(|_| _ = random.below(2));
    let all: Vec<_> = (0..moves)
        .map(|n| (random.below(KEYS), later(&keyed, n, moves)))
        .collect();
    let mut touched = 0;
    barrier.wait();
    let started = Instant::now();
    for batch in all.chunks(BATCH) {
        for &(key, deadline) in batch {
            touched += u64::from(keyed.touch(key, deadline));
        }
        keyed.rest().await;
    }
    let touch = nanos_per(started, moves);
    assert_eq!(touched, moves, "every key was there");
    touch
}

pub trait Runner {
    fn new(threads: usize) -> Self;

    /// Runs each on a thread of its own, all at once, as many as there are threads.
    fn run<W>(&self, works: Vec<W>) -> Vec<W::Output>
    where
        W: Future<Output: Send> + Send + 'static;
}

/// For work that never waits.
pub struct Threads;

impl Runner for Threads {
    fn new(_threads: usize) -> Self {
        Threads
    }

    fn run<W>(&self, works: Vec<W>) -> Vec<W::Output>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let poll = |work: W| match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the work waits"),
        };
        let running: Vec<_> = works
            .into_iter()
            .map(|work| thread::spawn(move || poll(work)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    }
}
