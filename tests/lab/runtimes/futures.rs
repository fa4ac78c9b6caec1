//! The same futures on runtimes that know nothing of the timer, and across their threads.

use std::future::Future;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tickwheel::future::TimedError;

/// Sleeps for some milliseconds; how long it took, and how long it should at least.
async fn nap(timer: Timer, number: u32) -> (Duration, Duration) {
    let (start, delay) = (Instant::now(), Duration::from_micros(u64::from(number * 37 % 20_000)));
    // One of three is cancelled half way and begins again, as `select!` would do.
    if number % 3 == 0 {
        let half = timer.timeout(delay / 2, timer.sleep(delay)).await;
        assert!(matches!(half, Err(TimedError::Elapsed) | Ok(Ok(()))), "{half:?}");
    }
    timer.sleep(delay).await.expect("there is room");
    (start.elapsed(), delay)
}

fn check(naps: impl IntoIterator<Item = (Duration, Duration)>) {
    let mut count = 0;
    for (took, delay) in naps {
        assert!(took >= delay, "{took:?} for {delay:?}");
        count += 1;
    }
    assert_eq!(count, 2000);
}

fn timer() -> Timer {
    Timer::builder().start().expect("a thread can be started")
}

fn naps(timer: &Timer) -> impl Iterator<Item = impl Future<Output = (Duration, Duration)> + use<>> {
    let timer = timer.clone();
    (0..2000).map(move |number| nap(timer.clone(), number))
}

#[test]
fn on_the_threads_of_tokio() {
    let timer = timer();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    check(runtime.block_on(async {
        let tasks: Vec<_> = naps(&timer).map(tokio::spawn).collect();
        let mut done = Vec::new();
        for task in tasks {
            done.push(task.await.unwrap());
        }
        done
    }));
    assert!(timer.is_empty(), "nothing is left");
}

#[test]
fn on_smol() {
    let timer = timer();
    check(smol::block_on(async {
        let tasks: Vec<_> = naps(&timer).map(smol::spawn).collect();
        let mut done = Vec::new();
        for task in tasks {
            done.push(task.await);
        }
        done
    }));
    assert!(timer.is_empty(), "nothing is left");
}

#[test]
fn an_interval_ticks_on_tokio_whichever_thread_polls_it() {
    let timer = timer();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let (start, period) = (Instant::now(), Duration::from_millis(2));
    let (mut interval, mut first) = (timer.interval(period), None);
    for n in 0..20 {
        // Each tick is awaited by another task.
        let task = runtime.spawn(async move {
            let due = interval.tick().await;
            (interval, due)
        });
        let (back, due) = runtime.block_on(task).unwrap();
        interval = back;
        let due = due.unwrap();
        let phase = due.duration_since(*first.get_or_insert(due));
        assert_eq!(phase.as_nanos() % period.as_nanos(), 0, "a multiple of the period");
        assert!(start.elapsed() >= period * n, "tick {n}");
    }
}
