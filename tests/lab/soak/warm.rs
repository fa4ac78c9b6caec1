//! What is warm allocates nothing, or hardly anything: adding, moving, cancelling and expiring,
//! once there have been as many timers before. The tasks are values of the caller's own type. Some
//! are always pending: what is empty gives its memory back.

#[path = "../../common/idle.rs"]
mod idle;

use allocation_counter::measure;
use idle::Idle;
use std::future::Future;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::task::{Context, Waker};
use std::time::Duration;
use tickwheel::future::Sleep;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::Purgatory;
use tickwheel::{Executor, ManualClock, Timer, TimerEntry, Worker};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const PENDING: u32 = 1_000;
/// Enough for each bucket of two levels to have held something, again and again.
const WARM_UP: u32 = 20_000;
const ROUNDS: u32 = 5_000;

const SWINGS: u32 = 16;
/// How keys are spread over shards is random, and with it whether a count swings at the edge of a
/// chunk in one of them. Up to 200 were seen. An allocation in each round would be far more.
const FEW: u64 = ROUNDS as u64 / 2;

/// Counts what the rounds allocate after the warm-up: each is a millisecond later.
fn allocations(clock: &ManualClock, mut round: impl FnMut(u32)) -> u64 {
    let counts = (0..WARM_UP + ROUNDS).map(|number| {
        // Not counted: a manual clock makes a list of those that it wakes.
        clock.advance(MS);
        measure(|| round(number)).count_total
    });
    counts.skip(WARM_UP as usize).sum()
}

fn timer(clock: &ManualClock) -> Timer {
    Timer::builder()
        .clock(clock.clone())
        .shards(2)
        .build()
        .expect("the options are valid")
}

#[test]
fn timers_and_turns_allocate_nothing() {
    let clock = ManualClock::new();
    let builder = Timer::builder()
        .clock(clock.clone())
        .shards(1)
        .wheel_size(16);
    let timer: Timer<u32> = builder.executor(|_| ()).build().expect("it is valid");
    for _ in 0..PENDING {
        timer.add(TimerEntry::after(HOUR, 0)).expect("no limit");
    }
    let count = allocations(&clock, |round| {
        for nth in 0..8 {
            let delay = MS * ((round + nth * 13) % 100);
            let timeout = timer.add(TimerEntry::after(delay, nth)).expect("no limit");
            match nth % 4 {
                0 => _ = timeout.cancel(),
                1 => _ = timeout.reschedule(delay / 2),
                _ => {}
            }
        }
        timer.advance_clock(Duration::ZERO);
    });
    assert_eq!(count, 0);
}

/// The edge of a chunk, wherever that is, costs no allocation each time. What the cancelled ones
/// leave in a bucket until it is swept may take a block.
#[test]
fn a_count_that_swings_hardly_allocates() {
    let timer: Timer<u32> = {
        let builder = Timer::builder().clock(ManualClock::new()).shards(1);
        builder.executor(|_| ()).build().expect("it is valid")
    };
    let add = || timer.add(TimerEntry::after(HOUR, 0)).expect("no limit");
    let swing = |swings: u32| {
        for _ in 0..swings {
            let timeouts = [(); 8].map(|()| add());
            timeouts
                .iter()
                .for_each(|timeout| assert!(timeout.cancel().is_cancelled()));
        }
    };
    for pending in 0..5_000 {
        swing(2);
        let count = measure(|| swing(SWINGS)).count_total;
        assert!(
            count < u64::from(SWINGS) / 2,
            "{count} with {pending} pending"
        );
        add();
    }
}

/// Returns the most allocations of a burst of timers beside others. All of the burst are cancelled
/// before the next one.
fn allocations_of_a_burst<T: Send + 'static>(make: fn() -> T, beside: u32, burst: usize) -> u64 {
    let timer: Timer<T> = {
        let builder = Timer::builder().clock(ManualClock::new()).shards(1);
        builder.executor(|_| ()).build().expect("it is valid")
    };
    let mut number = 0;
    // Many buckets, and each of them has many.
    let mut add = || {
        number += 7_919;
        timer
            .add(TimerEntry::after(HOUR + MS * (number % 10_000), make()))
            .expect("no limit")
    };
    for _ in 0..beside {
        add();
    }
    let mut pending = Vec::with_capacity(burst);
    let counts = (0..300).map(|_| {
        let count = measure(|| pending.extend((0..burst).map(|_| add()))).count_total;
        pending
            .drain(..)
            .for_each(|timeout| assert!(timeout.cancel().is_cancelled()));
        count
    });
    counts.skip(100).max().expect("there are some")
}

/// As the page of `Timer::add` says.
#[test]
fn a_burst_allocates_what_was_given_back_before() {
    for burst in [1, 2, 4, 8, 17, 33, 40, 64, 100, 300, 1_000] {
        let small = allocations_of_a_burst(|| 0_u64, 0, burst);
        let large = allocations_of_a_burst(|| [0_u64; 40], 0, burst);
        assert!(
            small <= 20 && large <= 20,
            "{small} and {large} for {burst} timers"
        );
    }
    for (beside, burst) in [(240, 17), (1_000, 17), (1_000, 40)] {
        let count = allocations_of_a_burst(|| 0_u64, beside, burst);
        assert!(count <= 2, "{count} for {burst} timers beside {beside}");
    }
}

#[test]
fn a_sleep_allocates_nothing() {
    let clock = ManualClock::new();
    let timer = timer(&clock);
    let mut woken = 0;
    let mut sleep = timer.sleep(MS);
    let count = allocations(&clock, |round| {
        let poll = |sleep: &mut Sleep| pin!(sleep).poll(&mut Context::from_waker(Waker::noop()));
        if poll(&mut sleep).is_ready() {
            woken += 1;
            sleep = timer.sleep(MS * (1 + round % 3));
            let _ = poll(&mut sleep);
        }
        // Dropped before it is ready.
        let _ = poll(&mut timer.sleep(MS * 5));
        timer.advance_clock(Duration::ZERO);
    });
    assert!(woken > ROUNDS / 4);
    assert_eq!(count, 0);
}

#[test]
fn keys_hardly_allocate() {
    let clock = ManualClock::new();
    let timer = timer(&clock);
    let expired = Arc::new(AtomicU64::new(0));
    let count_expired = Arc::clone(&expired);
    let keyed = KeyedTimer::new(&timer, move |_: u32, _: u32| {
        count_expired.fetch_add(1, Relaxed);
    });
    let count = allocations(&clock, |round| {
        if round == WARM_UP {
            expired.store(0, Relaxed);
        }
        for nth in 0..8 {
            let _ = keyed.add((round + nth) % 200, MS * (round % 50), nth);
            keyed.reschedule(&(round % 200), MS * 20);
        }
        keyed.cancel(&(round % 7));
        timer.advance_clock(Duration::ZERO);
    });
    // An expired key leaves at the flush with its value, in the box of a task.
    let boxes = expired.load(Relaxed);
    assert!(count < boxes + FEW, "{count} for {boxes} that have expired");
}

#[test]
fn operations_hardly_allocate() {
    let clock = ManualClock::new();
    let timer = timer(&clock);
    let purgatory = Purgatory::new(&timer);
    for key in 0..PENDING {
        assert!(
            purgatory
                .try_complete_else_watch(Idle, HOUR, &[key])
                .is_ok()
        );
    }
    let count = allocations(&clock, |round| {
        for nth in 0..8 {
            let keys = [(round + nth) % 100, 100 + nth];
            let watch = purgatory.try_complete_else_watch(Idle, MS * (1 + nth), &keys);
            if nth % 2 == 0 {
                let _ = watch
                    .expect("no limit")
                    .pending()
                    .map(|pending| pending.force_complete());
            }
        }
        timer.advance_clock(Duration::ZERO);
    });
    assert!(count < FEW, "{count}");
}

/// A service that hangs for long must not have to pay for what was refused meanwhile.
#[test]
fn what_a_full_worker_refuses_leaves_nothing_behind() {
    let (begun, begins) = channel();
    let (release, released) = channel::<()>();
    let worker = Worker::bounded("full", 1, move |_: u32| {
        begun.send(()).expect("somebody waits for it");
        let _ = released.recv();
    });
    let worker = worker.expect("threads can be started");
    worker.execute(0).expect("nothing is queued");
    begins.recv().expect("it runs");
    worker.execute(1).expect("there is one place");
    let refuse = || (0..1_000).for_each(|id| assert_eq!(worker.execute(id), Err(id)));
    assert_eq!(measure(refuse).bytes_current, 0);
    drop(release);
    // The second one begins as well, whether it is listened to or not.
    begins.recv().expect("it runs");
}

/// Endurance, briefly: `.ci/night soak` lets it run for an hour. The ticks are so short that the
/// timer's own time goes through 2^30 of them after a second.
#[test]
fn with_faults_on_the_real_clock_each_entry_ends_once() {
    let program = env!("CARGO_BIN_EXE_endurance");
    let options = ["--seconds", "3", "--tick-ns", "1", "--slots", "500"];
    let output = Command::new(program)
        .args(options)
        .output()
        .expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("clean: expired"),
        "{text}"
    );
}
