//! Futures that sleep: S1, S2 and so on, and what a million of them take while they wait. Who takes
//! part in the works on keys and on sleeps, all of them on tokio's real clock; and the runner for
//! work that is tasks of tokio.

use crate::contenders::{
    Compio, FuturesTimer, KeyedTimer, MapAlone, Pingora, QueueAndMap, SleepingTasks, TokioSleep,
};
use crate::keyed::{Keyed, Runner};
use crate::live::Thread;
use crate::memory::allocated;
use crate::work::nanos_per;
use crate::{Bench, keyed};
use std::future::Future;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::{Arc, Barrier};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::runtime::{Builder, Runtime};

/// The longest that pingora-timeout leaves to its own timer is a quarter of an hour.
const DELAY: Duration = Duration::from_secs(600);
/// There is always one sleep that is due before, so that no other is the first.
const BEFORE: Duration = Duration::from_secs(300);
/// Within so long every driver has seen what was done, and sleeps.
const SETTLE: Duration = Duration::from_millis(200);

/// Who makes sleeps.
pub trait Sleeper: Send + Sync + 'static {
    /// The name of the thread that wakes them.
    const THREAD: &'static str;

    fn new() -> Self;

    fn sleep(&self, delay: Duration) -> impl Future;

    /// Does a thread's work, where the contender wants it done.
    fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

/// Nobody is ever woken here; how many there are of it tells how many sleeps hold it.
struct NeverWoken;

impl Wake for NeverWoken {
    fn wake(self: Arc<Self>) {
        panic!("nothing is due");
    }
}

fn poll<F: Future>(sleep: Pin<&mut F>, waker: &Waker) {
    assert!(sleep.poll(&mut Context::from_waker(waker)).is_pending());
}

/// Makes a sleep, polls it once and drops it, `count` times on each of so many threads, whose
/// wakers are their own. Returns nanoseconds for all three, per thread.
pub fn churn<S: Sleeper>(threads: u64, count: u64) -> f64 {
    let sleeper = S::new();
    let barrier = Barrier::new(threads as usize);
    let work = || {
        let waker = Waker::from(Arc::new(NeverWoken));
        let mut before = pin!(sleeper.sleep(BEFORE));
        poll(before.as_mut(), &waker);
        thread::sleep(SETTLE);
        barrier.wait();
        let started = Instant::now();
        for _ in 0..count {
            poll(pin!(sleeper.sleep(black_box(DELAY))), &waker);
        }
        nanos_per(started, count)
    };
    thread::scope(|scope| {
        let spawn = |_| scope.spawn(|| sleeper.within(work));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let each = running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        each.sum::<f64>() / threads as f64
    })
}

/// What many sleeps take while they wait.
pub struct Crowd {
    /// The future itself, and what each takes beside it.
    pub future_bytes: f64,
    pub bytes: f64,
    /// Of the thread that will wake them, and its processor time in milliseconds.
    pub wakeups: f64,
    pub cpu_ms: f64,
}

/// Has `count` sleeps wait at once, over a minute, for `seconds`.
pub fn crowd<S: Sleeper>(count: u64, seconds: u64) -> Crowd {
    let sleeper = S::new();
    let never_woken = Arc::new(NeverWoken);
    let waker = Waker::from(Arc::clone(&never_woken));
    sleeper.within(|| {
        let make = |n| sleeper.sleep(DELAY + Duration::from_millis(n * 60_000 / count));
        let (future_bytes, boxes) = boxes(make, count);
        let start = allocated();
        let mut sleeps = Vec::with_capacity(count as usize);
        for n in 0..count {
            let mut sleep = Box::pin(make(n));
            poll(sleep.as_mut(), &waker);
            sleeps.push(sleep);
        }
        thread::sleep(SETTLE);
        let bytes = (allocated() - start - boxes) / count as f64;
        assert!(
            Arc::strong_count(&never_woken) as u64 > count,
            "each holds the waker"
        );
        let thread = Thread::named(S::THREAD).expect("it runs");
        let before = (thread.wakeups(), thread.cpu_ms());
        thread::sleep(Duration::from_secs(seconds));
        let wakeups = thread.wakeups() - before.0;
        let cpu_ms = thread.cpu_ms() - before.1;
        Crowd {
            future_bytes,
            bytes,
            wakeups,
            cpu_ms,
        }
    })
}

/// Returns the size of a future that `make` would make, and `count` boxes of that size, in a
/// vector.
fn boxes<F>(_make: impl Fn(u64) -> F, count: u64) -> (f64, f64) {
    let before = allocated();
    let mut boxes = Vec::with_capacity(count as usize);
    boxes.extend((0..count).map(|_| Box::<F>::new_uninit()));
    let boxes: Vec<Box<MaybeUninit<F>>> = black_box(boxes);
    let after = allocated();
    drop(boxes);
    (size_of::<F>() as f64, after - before)
}

impl Bench {
    pub fn on_tokios_clock(&mut self) {
        self.keyed::<KeyedTimer>("tickwheel");
        #[cfg(feature = "queue")]
        self.keyed::<crate::contenders::OnSystemClock>("KeyedQueue");
        self.keyed::<QueueAndMap>("DelayQueue + map");
        self.keyed::<SleepingTasks>("tokio tasks + dashmap");
        self.keyed::<MapAlone>("dashmap alone");
        self.keyed_shared::<KeyedTimer>("tickwheel");
        self.keyed_shared::<SleepingTasks>("tokio tasks + dashmap");
        self.keyed_shared::<MapAlone>("dashmap alone");
        self.sleeps::<Timer>("tickwheel");
        self.sleeps::<TokioSleep<false>>("tokio sleep");
        #[cfg(tokio_unstable)]
        self.sleeps::<TokioSleep<true>>("tokio alternative");
        self.sleeps::<Compio>("compio");
        self.sleeps::<Pingora>("pingora-timeout");
        self.sleeps::<FuturesTimer>("futures-timer");
        self.tasks::<Timer>("tickwheel");
        self.tasks::<TokioSleep<false>>("tokio sleep");
        #[cfg(tokio_unstable)]
        self.tasks::<TokioSleep<true>>("tokio alternative");
    }

    fn keyed<K: Keyed>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        if self.wants("K1") {
            self.ns("K1", who, keyed::churn::<K>(keyed::KEYS, self.count()));
        }
        if self.wants("K_touch_1") {
            self.ns("K_touch_1", who, keyed::touch::<K>(self.count()));
        }
    }

    fn keyed_shared<K: Keyed + Clone>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        for threads in crate::thread_counts().skip(1) {
            let work = format!("K1_{threads}");
            if self.wants(&work) {
                let step = keyed::churn_shared::<K>(threads as usize, self.count());
                self.ns(&work, who, step);
            }
            let work = format!("K_touch_{threads}");
            if self.wants(&work) {
                let touch = keyed::touch_shared::<K>(threads as usize, self.count());
                self.ns(&work, who, touch);
            }
        }
    }

    fn sleeps<S: Sleeper>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        for threads in crate::thread_counts() {
            let work = format!("S{threads}");
            if self.wants(&work) {
                self.ns(&work, who, churn::<S>(threads, self.count()));
            }
        }
        if (self.wants("S_memory") || self.wants("S_idle")) && self.round == 1 {
            let seconds = if self.options.quick { 1 } else { 10 };
            let crowd = crowd::<S>(1_000_000, seconds);
            for (work, unit, value) in [
                ("S_memory", "bytes", crowd.bytes),
                ("S_memory_future", "bytes", crowd.future_bytes),
                ("S_idle", "wake-ups", crowd.wakeups),
                ("S_idle_cpu", "ms", crowd.cpu_ms),
            ] {
                self.sample(work, who, unit, value);
            }
        }
    }

    /// Returns how often keyed timers and sleeps do their work, and how many expire.
    pub fn count(&self) -> u64 {
        if self.options.quick {
            200_000
        } else {
            1_000_000
        }
    }
}

/// A runtime with a worker for each work.
pub struct Tokio(Runtime);

impl Runner for Tokio {
    fn new(threads: usize) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_time()
            .build();
        Tokio(runtime.expect("a runtime"))
    }

    fn run<W>(&self, works: Vec<W>) -> Vec<W::Output>
    where
        W: Future<Output: Send> + Send + 'static,
    {
        let running: Vec<_> = works.into_iter().map(|work| self.0.spawn(work)).collect();
        running
            .into_iter()
            .map(|task| self.0.block_on(task).expect("no panic"))
            .collect()
    }
}
