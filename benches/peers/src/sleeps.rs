//! Futures that sleep: S1, and what a million of them take while they wait.

use crate::live::Thread;
use crate::memory::allocated;
use crate::work::nanos_per;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that pingora-timeout leaves to its own timer is a quarter of an hour.
const DELAY: Duration = Duration::from_secs(600);
/// There is always one sleep that is due before, so that no other is the first.
const BEFORE: Duration = Duration::from_secs(300);
/// Within so long every driver has seen what was done, and sleeps.
const SETTLE: Duration = Duration::from_millis(200);

/// Who makes sleeps.
pub trait Sleeper {
    /// The name of the thread that wakes them.
    const THREAD: &'static str;

    fn new() -> Self;

    fn sleep(&self, delay: Duration) -> impl Future;

    /// Does all the work, where the contender wants it done.
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

/// Makes a sleep, polls it once and drops it, `count` times: nanoseconds for all three.
pub fn one<S: Sleeper>(count: u64) -> f64 {
    let sleeper = S::new();
    let waker = Waker::from(Arc::new(NeverWoken));
    sleeper.within(|| {
        let mut before = pin!(sleeper.sleep(BEFORE));
        poll(before.as_mut(), &waker);
        thread::sleep(SETTLE);
        let started = Instant::now();
        for _ in 0..count {
            poll(pin!(sleeper.sleep(black_box(DELAY))), &waker);
        }
        nanos_per(started, count)
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
        assert!(Arc::strong_count(&never_woken) as u64 > count, "each holds the waker");
        let thread = Thread::named(S::THREAD).expect("it runs");
        let before = (thread.wakeups(), thread.cpu_ms());
        thread::sleep(Duration::from_secs(seconds));
        let (wakeups, cpu_ms) = (thread.wakeups() - before.0, thread.cpu_ms() - before.1);
        Crowd { future_bytes, bytes, wakeups, cpu_ms }
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
