//! Entries that name another executor than the timer's: by their task.

use crate::{Book, End, HANG, Job, MS, ended, run, until};
use std::sync::mpsc::{Receiver, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::{Executor, ManualClock, SharedClosure, Task, Timer, TimerEntry, Worker};

fn timer() -> (Timer, ManualClock) {
    let clock = ManualClock::new();
    (Timer::builder().clock(clock.clone()).build().unwrap(), clock)
}

/// Returns a worker with room for two tasks, which waits until the sender goes, or sends, once.
fn busy(release: Receiver<()>) -> Arc<Worker<Task>> {
    let worker = Worker::bounded("named", 2, Task::run).unwrap();
    let (begun, begins) = channel();
    let blocker = Task::new(move || {
        begun.send(()).unwrap();
        let _ = release.recv_timeout(HANG);
    });
    worker.execute(blocker).unwrap();
    begins.recv().unwrap(); // Both places are free.
    Arc::new(worker)
}

/// Returns a task that gives `job` to `worker`, and refuses it if that does.
fn on(worker: &Arc<Worker<Task>>, job: Job) -> impl FnOnce() + Send + 'static {
    let (worker, job) = (Arc::clone(worker), Arc::new(Mutex::new(Some(job))));
    move || {
        let own = Arc::clone(&job);
        let task = Task::new(move || own.lock().unwrap().take().unwrap().run());
        if worker.execute(task).is_err() {
            job.lock().unwrap().take().unwrap().refuse();
        }
    }
}

#[test]
fn an_entry_names_its_executor_and_the_others_stay_with_the_timers() {
    let ((timer, clock), book) = (timer(), Book::default());
    let (release, released) = channel();
    let worker = busy(released);
    for id in 0..2 {
        timer.add(TimerEntry::after(MS, on(&worker, Job::new(id, &book)))).unwrap();
    }
    for id in 10..20 {
        let job = Job::new(id, &book);
        timer.add(TimerEntry::after(MS, || job.run())).unwrap();
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 12);
    // In place, with one panic, while the worker is busy.
    ended(&book, 10..20, run);
    assert_eq!((timer.stats().refused, timer.stats().panicked), (0, 1));
    book.lock().unwrap().clear();
    drop(release);
    ended(&book, 0..2, run);
}

#[test]
fn the_refusal_of_a_named_executor_is_the_entrys_to_see_to() {
    let ((timer, clock), book) = (timer(), Book::default());
    let (release, released) = channel();
    let worker = busy(released);
    for id in 0..5 {
        let entry = TimerEntry::after(MS * (id + 1), on(&worker, Job::new(id, &book)));
        timer.add(entry).unwrap();
    }
    clock.advance(5 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 5);
    assert_eq!(timer.stats().refused, 0, "the timer's own executor refused nothing");
    drop(release);
    ended(&book, 0..5, |id| if id < 2 { End::Ran } else { End::Refused });
}

#[test]
fn a_panic_is_counted_by_who_ran_the_code() {
    let ((timer, clock), book) = (timer(), Book::default());
    let worker = Arc::new(Worker::unbounded("named", Task::run).unwrap());
    for id in 0..20 {
        timer.add(TimerEntry::after(MS, on(&worker, Job::new(id, &book)))).unwrap();
    }
    // This one panics before it has named anybody.
    timer.add(TimerEntry::after(MS, || panic!("which is what the test is about"))).unwrap();
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 21);
    assert_eq!(timer.stats().panicked, 1);
    ended(&book, 0..20, run);
    until("the worker counts its panics", || worker.panicked() == 2);
    assert_eq!(timer.stats().panicked, 1, "the named executor's are not the timer's");
}

#[test]
fn many_entries_share_one_name() {
    let ((timer, clock), book) = (timer(), Book::default());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).panic_handler(drop).build().unwrap();
    let booked = Arc::clone(&book);
    let on_pool: SharedClosure = Arc::new(move |number| {
        let job = Job::new(number as u32, &booked);
        pool.spawn(|| job.run());
    });
    for number in 0..100 {
        let task = Task::shared(Arc::clone(&on_pool), number);
        timer.add(TimerEntry::after(MS, task)).unwrap();
    }
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 100);
    ended(&book, 0..100, run);
}

/// Tasks of one's own type name their executor by what they are.
#[derive(Debug)]
enum Work {
    Here(Job),
    There(Job),
}

#[test]
fn a_timer_of_ones_own_tasks_sends_each_where_it_belongs_and_counts_refusals() {
    let (there, jobs) = sync_channel(2);
    let (clock, book) = (ManualClock::new(), Book::default());
    let executor = move |work| match work {
        Work::Here(job) => {
            job.run();
            Ok(())
        }
        Work::There(job) => there.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => Work::There(job),
        }),
    };
    let refuse = |work| match work {
        Work::Here(job) | Work::There(job) => job.refuse(),
    };
    let builder = Timer::builder().clock(clock.clone()).executor(executor).on_refused(refuse);
    let timer = builder.build().unwrap();
    for id in 0..10 {
        let job = Job::new(id, &book);
        let work = if id < 5 { Work::There(job) } else { Work::Here(job) };
        let _ = timer.add(TimerEntry::after(MS * (id + 1), work)).unwrap();
    }
    clock.advance(10 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 10);
    assert_eq!((timer.stats().refused, timer.stats().panicked), (3, 0));
    jobs.try_iter().for_each(|job| job.run());
    ended(&book, 0..10, |id| if (2..5).contains(&id) { End::Refused } else { End::Ran });
}
