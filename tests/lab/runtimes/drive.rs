//! A timer without a thread, driven by a future on a runtime with that runtime's sleep.

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};
use tickwheel::Timer;
use tokio::task::JoinHandle;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const TASKS: u32 = 500;

fn timer() -> Timer {
    Timer::builder()
        .build()
        .expect("the options are in their ranges")
}

/// Sleeps several times. Each time it is not woken early, and it is woken at all.
async fn naps(timer: Timer, number: u32) {
    for round in 0..3 {
        let start = Instant::now();
        let delay = (number * 37 + round * 101) % 20_000;
        let delay = Duration::from_micros(u64::from(delay));
        timer.sleep(delay).await.expect("the timer lives");
        assert!(start.elapsed() >= delay);
    }
}

/// Lets another thread add timers when the runtime has nothing to do until an hour has passed. They
/// add up to the sum.
fn added_by_another_thread(timer: &Timer) -> impl Future<Output = u32> + use<> {
    let (sender, received) = smol::channel::unbounded();
    let far = timer.sleep(HOUR);
    let timer = timer.clone();
    thread::spawn(move || {
        for (number, delay) in [30 * MS, 20 * MS, 10 * MS, MS, Duration::ZERO]
            .iter()
            .enumerate()
        {
            thread::sleep(MS); // So that the runtime sleeps, most often.
            let sender = sender.clone();
            let send = move || sender.try_send(number as u32).expect("somebody waits");
            timer.after(*delay, send).expect("the timer lives");
        }
    });
    async move {
        let mut sum = 0;
        while let Ok(number) = received.recv().await {
            sum += number; // Until the last sender is dropped.
        }
        drop(far);
        sum
    }
}

/// Drives the timer on tokio, with many sleeps. Returns what drives it.
async fn on_tokio(timer: &Timer) -> JoinHandle<()> {
    let drive = tokio::spawn(timer.drive(|next| tokio::time::sleep_until(next.into())));
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| tokio::spawn(naps(timer.clone(), number)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(added_by_another_thread(timer).await, 10);
    assert!(timer.is_empty());
    drive
}

#[test]
fn on_one_thread_of_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let timer = timer();
    runtime.block_on(async {
        let drive = on_tokio(&timer).await;
        timer.shutdown();
        drive.await.unwrap();
    });
}

#[test]
fn on_one_thread_of_smol() {
    let executor = smol::LocalExecutor::new();
    let timer = timer();
    smol::block_on(executor.run(async {
        let drive = executor.spawn(timer.drive(smol::Timer::at));
        let tasks: Vec<_> = (0..TASKS)
            .map(|number| executor.spawn(naps(timer.clone(), number)))
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(added_by_another_thread(&timer).await, 10);
        assert!(timer.is_empty());
        drop(timer); // The last clone: the future has none.
        drive.await;
    }));
}

/// What drives the timer goes from thread to thread.
#[test]
fn on_the_threads_of_tokio() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(3).enable_time().build().unwrap();
    runtime.block_on(on_tokio(&timer()));
}
