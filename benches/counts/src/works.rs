//! The works that are counted: those of the peers' benchmark, with nothing that differs from run to
//! run. Clocks are manual, no reaper runs, and keys are hashed with a fixed seed.

use crate::keyed::{self, Keyed, Threads};
use crate::operations;
use crate::ours::Tickwheel;
use crate::work::{self, Contender, Random, measured};
use clap::ValueEnum;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::Purgatory;
use tickwheel::{ManualClock, Timer};

const LIVE: u64 = 100_000;
const FEW: u64 = 10_000;
const MANY: u64 = 1_000_000;
/// Works that take as many instructions beside many others as beside few.
pub const GROWTH: [[&str; 2]; 2] = [["W2_10k", "W2_1M"], ["K1_10k", "K1_1M"]];

const LAST_MS: u64 = 15_000;
/// Of a sleep.
const DELAY: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Work {
    /// Add one.
    W1,
    /// Add one and cancel the oldest.
    W2,
    /// The same beside so many.
    W2_10k,
    W2_1M,
    /// Add one and cancel it again.
    W2n,
    /// Expire what W1 adds.
    W3,
    /// Schedule a key, touch one, cancel the oldest.
    K1,
    /// The same beside so many.
    K1_10k,
    K1_1M,
    /// Expire keys, spread as W1's timers are, with a handler that counts.
    K3,
    /// Watch an operation on two keys, and complete it by a trigger.
    P1,
    /// The same on as many keys as there: they do not stay in the cache either.
    P1k,
    /// Make a sleep, poll it once, and drop it.
    S1,
    /// The same with tokio's, in a task.
    #[cfg(feature = "tokio")]
    S1Tokio,
}

impl Work {
    pub fn name(self) -> String {
        self.to_possible_value()
            .expect("none is skipped")
            .get_name()
            .to_owned()
    }

    /// Returns how often the work is done: less often than in the peers' benchmark, because a model
    /// of a cache takes its time. The page of the benchmarks says what this changes.
    pub fn count(self) -> u64 {
        match self {
            // More than there are timers: only then is there something to be swept.
            Work::W2_1M | Work::K1_1M => 1_500_000,
            Work::W2 | Work::W2n => 500_000,
            Work::W1 | Work::W3 | Work::K3 => 250_000,
            Work::W2_10k | Work::K1_10k | Work::K1 | Work::P1 | Work::P1k | Work::S1 => 200_000,
            #[cfg(feature = "tokio")]
            Work::S1Tokio => 200_000,
        }
    }

    /// Returns a pattern of the function that is counted.
    pub fn counted(self) -> &'static str {
        match self {
            Work::W3 => "*Tickwheel*expire_all*",
            _ => "*work*measured*",
        }
    }

    pub fn run(self) {
        let count = self.count();
        match self {
            // As many in each millisecond as there.
            Work::W1 | Work::W3 => _ = work::add_and_expire::<Tickwheel>(count, LAST_MS),
            Work::W2 => _ = work::churn::<Tickwheel>(LIVE, count, false),
            Work::W2_10k => _ = work::churn::<Tickwheel>(FEW, count, false),
            Work::W2_1M => _ = work::churn::<Tickwheel>(MANY, count, false),
            Work::W2n => cancel_newest(count),
            Work::K1 => _ = keyed::churn::<FixedKeys>(LIVE, count),
            Work::K1_10k => _ = keyed::churn::<FixedKeys>(FEW, count),
            Work::K1_1M => _ = keyed::churn::<FixedKeys>(MANY, count),
            Work::K3 => expire_keys(count),
            // As many operations per key as there.
            Work::P1 => _ = operations::end_to_end(&purgatory(), 1, count, count / 100),
            Work::P1k => _ = operations::end_to_end(&purgatory(), 1, count, 10_000),
            Work::S1 => sleep(count),
            #[cfg(feature = "tokio")]
            Work::S1Tokio => sleep_on_tokio(count),
        }
    }
}

/// Runs W2 with the newest timer as the victim.
fn cancel_newest(pairs: u64) {
    let mut contender = Tickwheel::new();
    let mut random = Random::new();
    let mut far = |contender: &Tickwheel| contender.deadline(30_000 + random.below(30_000));
    let deadlines: Vec<_> = (0..LIVE + pairs).map(|_| far(&contender)).collect();
    let (live, new) = deadlines.split_at(LIVE as usize);
    let handles: Vec<_> = live
        .iter()
        .map(|&deadline| contender.add(deadline, 0))
        .collect();
    measured(|| {
        for &deadline in new {
            let handle = contender.add(deadline, 0);
            assert!(contender.cancel(handle));
        }
    });
    assert!(handles.into_iter().all(|handle| contender.cancel(handle)));
}

/// Schedules keys over so long, and expires them in steps of 1 ms, which is what is counted.
fn expire_keys(count: u64) {
    let (timer, clock) = timer();
    let expired = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&expired);
    let keyed = KeyedTimer::with_hasher(&timer, Fixed::default(), move |_: u64, task: u64| {
        counter.fetch_add(task, Ordering::Relaxed);
    });
    let mut random = Random::new();
    let start = clock.now();
    for key in 0..count {
        let deadline = start + Duration::from_millis(1 + random.below(LAST_MS));
        assert!(keyed.add(key, deadline, 1).is_ok());
    }
    measured(|| {
        for _ in 0..LAST_MS {
            clock.advance(Duration::from_millis(1));
            timer.advance_clock(Duration::ZERO);
        }
    });
    assert_eq!(
        expired.load(Ordering::Relaxed),
        count,
        "each has expired once"
    );
}

/// Does S1 of the peers' benchmark, where one other sleep waits, too.
fn sleep(count: u64) {
    let timer = timer().0;
    let mut context = Context::from_waker(Waker::noop());
    let mut before = pin!(timer.sleep(DELAY / 2));
    assert!(before.as_mut().poll(&mut context).is_pending());
    measured(|| {
        for _ in 0..count {
            assert!(
                pin!(timer.sleep(black_box(DELAY)))
                    .poll(&mut context)
                    .is_pending()
            );
        }
    });
}

#[cfg(feature = "tokio")]
fn sleep_on_tokio(count: u64) {
    use std::future::poll_fn;
    use std::task::Poll;

    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_time();
    #[cfg(tokio_unstable)]
    builder.enable_alt_timer();
    let runtime = builder.build().expect("a runtime");
    let sleeps = poll_fn(move |context| {
        let mut before = pin!(tokio::time::sleep(DELAY / 2));
        assert!(before.as_mut().poll(context).is_pending());
        measured(|| {
            for _ in 0..count {
                assert!(
                    pin!(tokio::time::sleep(black_box(DELAY)))
                        .poll(context)
                        .is_pending()
                );
            }
        });
        Poll::Ready(())
    });
    let task = runtime.spawn(tokio::task::coop::unconstrained(sleeps));
    runtime.block_on(task).expect("no panic");
}

/// The default hasher of keys, with the same seeds in each run.
type Fixed = BuildHasherDefault<DefaultHasher>;

fn timer() -> (Timer, ManualClock) {
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).shards(4);
    let timer = builder.build().expect("the options are valid");
    (timer, clock)
}

fn purgatory() -> Purgatory<u64, operations::Operation, Fixed> {
    Purgatory::with_hasher(&timer().0, Fixed::default())
}

struct FixedKeys {
    timer: Timer,
    keyed: KeyedTimer<u64, u64, Fixed>,
    start: Instant,
}

impl Keyed for FixedKeys {
    type Deadline = Instant;
    type Runner = Threads;

    fn new() -> Self {
        let (timer, clock) = timer();
        let keyed = KeyedTimer::with_hasher(&timer, Fixed::default(), |_, _| ());
        FixedKeys {
            timer,
            keyed,
            start: clock.now(),
        }
    }

    fn deadline(&self, after: Duration) -> Instant {
        self.start + after
    }

    fn schedule(&mut self, key: u64, deadline: Instant, task: u64) -> bool {
        let former = self.keyed.add(key, deadline, task);
        former.expect("there is no limit").is_none()
    }

    fn touch(&mut self, key: u64, deadline: Instant) -> bool {
        self.keyed.touch(&key, deadline)
    }

    fn cancel(&mut self, key: u64) -> Option<u64> {
        self.keyed.cancel(&key)
    }

    fn len(&self) -> usize {
        self.timer.len()
    }
}
