//! rayon: a pool of threads, with and without a limit to what waits for it.

use crate::{End, Fixture, Job, MS, ended, run, until};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use tickwheel::{Executor, TimerEntry};

/// Returns a pool, and how many panics it has seen. Without a handler a panic would end the
/// process.
fn pool() -> (ThreadPool, Arc<AtomicUsize>) {
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&panics);
    let count = move |_| _ = counted.fetch_add(1, Relaxed);
    let builder = ThreadPoolBuilder::new().num_threads(2).panic_handler(count);
    (builder.build().unwrap(), panics)
}

#[test]
fn spawned_tasks_run_once_and_the_pool_contains_and_reports_their_panics() {
    let (pool, count) = pool();
    let fixture = Fixture::new(move |job: Job| pool.spawn(|| job.run()));
    fixture.expire(0..500);
    ended(&fixture.book, 0..500, run);
    until("the handler has seen every panic", || count.load(Relaxed) == 50);
    assert_eq!(fixture.failures(), (0, 0), "the timer has handed them on, and sees nothing");
}

/// Takes at most `room` jobs that have not ended. One that panics gives its place back as well.
fn bounded(pool: ThreadPool, room: usize) -> impl Executor<Job> {
    let places = Arc::new(());
    move |job: Job| {
        // The executor's own, and one for each job. Only the timer's thread adds one.
        if Arc::strong_count(&places) > room {
            return Err(job);
        }
        let place = Arc::clone(&places);
        pool.spawn(move || {
            let _place = place;
            job.run();
        });
        Ok(())
    }
}

/// Lets the pool's two threads wait until the sender goes, or sends to each.
fn block(pool: &ThreadPool, release: Receiver<()>) {
    let release = Arc::new(Mutex::new(release));
    for _ in 0..2 {
        let release = Arc::clone(&release);
        pool.spawn(move || _ = release.lock().unwrap().recv());
    }
}

#[test]
fn a_pool_with_a_limit_refuses_what_does_not_fit_and_has_room_again_after_panics() {
    let (pool, _) = pool();
    let (release, released) = channel();
    block(&pool, released);
    let fixture = Fixture::new(bounded(pool, 4));
    fixture.expire(0..10); // The fourth, number 3, will panic.
    assert_eq!(fixture.failures(), (6, 0));
    drop(release);
    ended(&fixture.book, 0..10, |id| if id < 4 { run(id) } else { End::Refused });
    for id in 10..30 {
        until("there is room", || {
            let before = fixture.timer.stats().refused;
            let again = Job::new(id, &Arc::default());
            let _ = fixture.timer.add(TimerEntry::after(MS, again)).unwrap();
            fixture.clock.advance(MS);
            fixture.timer.advance_clock(MS);
            fixture.timer.stats().refused == before
        });
    }
}

#[test]
fn a_pool_that_goes_with_its_timer_runs_what_it_has() {
    let (pool, _) = pool();
    let (release, released) = channel();
    block(&pool, released);
    let fixture = Fixture::new(move |job: Job| pool.spawn(|| job.run()));
    fixture.expire(0..20);
    let _ = fixture.timer.add(TimerEntry::after(MS, Job::new(20, &fixture.book))).unwrap();
    let pending = fixture.timer.shutdown();
    assert!(pending.iter().map(|entry| entry.task().id).eq([20]), "what had not expired");
    drop(pending);
    let Fixture { timer, book, .. } = fixture;
    drop(timer); // And the pool with it, while its threads are busy: nobody waits for them.
    assert_eq!(*book.lock().unwrap(), [(20, End::Dropped)]);
    drop(release);
    ended(&book, 0..21, |id| if id == 20 { End::Dropped } else { run(id) });
}
