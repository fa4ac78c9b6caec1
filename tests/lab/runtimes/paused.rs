//! Timers that follow the clock of a runtime whose time is paused.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tickwheel::future::TimedError;
use tickwheel::keyed::KeyedTimer;
use tickwheel::periodic::Periodic;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::queue::KeyedQueue;
use tickwheel::{Clock, Timer};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, sleep_until};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn clock_of(runtime: Handle) -> Clock {
    Clock::reading(move || {
        let _inside = runtime.enter();
        Instant::now().into_std()
    })
}

/// How often what drives the timer has asked for a sleep.
type Sleeps = Arc<AtomicUsize>;

/// Runs a test on a paused runtime, with a timer that is driven there.
fn paused<F: Future<Output = ()>>(test: impl FnOnce(Timer, Sleeps) -> F) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let timer = Timer::builder()
            .clock(clock_of(Handle::current()))
            .build()
            .unwrap();
        let sleeps = Sleeps::default();
        let asked = Arc::clone(&sleeps);
        let drive = tokio::spawn(timer.drive(move |next| {
            asked.fetch_add(1, SeqCst);
            sleep_until(next.into())
        }));
        test(timer.clone(), sleeps).await;
        timer.shutdown();
        drive.await.unwrap();
    });
}

/// Returns what passed since, in whole milliseconds: that is how exact tokio's sleeps are.
fn ms_since(start: Instant) -> u128 {
    start.elapsed().as_millis()
}

#[test]
fn an_hour_passes_at_once() {
    paused(|timer, sleeps| async move {
        let start = Instant::now();
        timer.sleep(HOUR).await.unwrap();
        assert!((HOUR..=HOUR + 2 * MS).contains(&start.elapsed()));
        // Far timers are moved to finer wheels on the way.
        assert!(sleeps.load(SeqCst) <= 5, "{sleeps:?} sleeps");
    });
}

#[test]
fn a_limit_ends_what_takes_longer() {
    paused(|timer, _| async move {
        let start = Instant::now();
        let limited = timer.timeout(S, tokio::time::sleep(HOUR)).await;
        assert_eq!(
            (limited, ms_since(start)),
            (Err(TimedError::Elapsed), 1_000)
        );
        let limited = timer.timeout(HOUR, tokio::time::sleep(S)).await;
        assert_eq!((limited, ms_since(start)), (Ok(()), 2_000));
    });
}

#[test]
fn what_begins_after_an_idle_time_is_not_early() {
    paused(|timer, _| async move {
        tokio::time::sleep(30 * S).await;
        let start = Instant::now();
        timer.sleep(S).await.unwrap();
        assert_eq!(ms_since(start), 1_000);
    });
}

#[test]
fn a_clock_that_is_advanced_by_hand_is_followed() {
    paused(|timer, _| async move {
        let sleep = tokio::spawn(timer.sleep(10 * S));
        tokio::task::yield_now().await;
        tokio::time::advance(9 * S).await;
        assert!(!sleep.is_finished());
        tokio::time::advance(S + 2 * MS).await;
        sleep.await.unwrap().unwrap();
    });
}

#[test]
fn a_clock_that_is_resumed_is_followed() {
    paused(|timer, _| async move {
        timer.sleep(HOUR).await.unwrap();
        tokio::time::resume();
        let start = Instant::now();
        let real = std::time::Instant::now();
        timer.sleep(20 * MS).await.unwrap();
        assert!(start.elapsed() >= 20 * MS && real.elapsed() >= 20 * MS);
    });
}

/// A thread reads the clock of the runtime.
#[test]
fn a_thread_of_stds_adds_by_the_runtimes_clock() {
    paused(|timer, _| async move {
        tokio::time::sleep(HOUR).await;
        let (sender, expired) = tokio::sync::oneshot::channel();
        let own = timer.clone();
        let start = Instant::now();
        let adds = thread::spawn(move || {
            own.after(S, move || _ = sender.send(()))
                .expect("the timer lives");
        });
        expired.await.unwrap();
        adds.join().unwrap();
        assert_eq!(ms_since(start), 1_000);
    });
}

struct Fetch(Arc<Mutex<Vec<Instant>>>);

impl DelayedOperation for Fetch {
    fn try_complete(&mut self) -> bool {
        false
    }

    fn on_complete(&mut self) {
        self.0.lock().unwrap().push(Instant::now());
    }
}

#[test]
fn keys_operations_and_series_keep_its_time() {
    paused(|timer, _| async move {
        let start = Instant::now();
        let times = Arc::<Mutex<Vec<Instant>>>::default();
        let noted = Arc::clone(&times);
        let note = move || noted.lock().unwrap().push(Instant::now());
        let keyed = KeyedTimer::new(&timer, {
            let note = note.clone();
            move |_: u32, ()| note()
        });
        keyed.add(1, 10 * S, ()).unwrap();
        let purgatory = Purgatory::new(&timer);
        let fetch = Fetch(Arc::clone(&times));
        let _ = purgatory
            .try_complete_else_watch(fetch, 20 * S, &[1])
            .unwrap();
        let series = Periodic::every(25 * S)
            .start(&timer, move |_| note())
            .unwrap();
        tokio::time::sleep(51 * S).await;
        drop(series);
        let seconds = |at: &Instant| (*at - start).as_millis() / 1_000;
        let seen: Vec<_> = times.lock().unwrap().iter().map(seconds).collect();
        assert_eq!(seen, [10, 20, 25, 50]);
    });
}

#[test]
fn a_queue_keeps_its_time() {
    paused(|timer, _| async move {
        drop(timer);
        let clock = clock_of(Handle::current());
        let mut queue = KeyedQueue::new(clock, |at| sleep_until(at.into()));
        let start = Instant::now();
        queue.insert("b", 2 * HOUR, ());
        queue.insert("a", HOUR, ());
        let mut seen = Vec::new();
        while let Some(expired) = std::future::poll_fn(|context| queue.poll_expired(context)).await
        {
            seen.push((expired.key, ms_since(start)));
        }
        assert_eq!(seen, [("a", 3_600_000), ("b", 7_200_000)]);
    });
}
