//! The worker, an executor with a thread of its own.

use crate::{MS, get, has_thread, until};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tickwheel::{ManualClock, Task, Timer, TimerEntry, Worker};

#[test]
fn a_worker_runs_tasks_in_order_on_its_own_thread() {
    let (sender, receiver) = channel();
    let handler = move |id: u32| {
        let own = std::thread::current().name() == Some("in-order");
        sender.send((id, own)).unwrap();
    };
    let worker = Worker::unbounded("in-order", handler).unwrap();
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .clock(clock.clone())
        .executor(worker)
        .build()
        .unwrap();
    for id in (0..1000).rev() {
        timer.add(TimerEntry::after(MS * id, id)).unwrap();
    }
    clock.advance(MS * 1000);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1000);
    for id in 0..1000 {
        assert_eq!(get(&receiver), (id, true));
    }
}

/// Returns a worker that takes two tasks besides its current one, which waits for `release`.
fn busy_worker(release: Receiver<()>, ran: Sender<u32>) -> Worker<u32> {
    let handler = move |id| {
        ran.send(id).unwrap();
        if id == 0 {
            get(&release);
        }
    };
    Worker::bounded("busy", 2, handler).unwrap()
}

#[test]
fn a_full_worker_refuses_and_the_task_goes_to_on_refused_or_is_dropped() {
    for handled in [true, false] {
        let (release, released) = channel();
        let (ran, runs) = channel();
        let refused = Arc::new(Mutex::new(Vec::new()));
        let clock = ManualClock::new();
        let worker = busy_worker(released, ran);
        let mut builder = Timer::builder().clock(clock.clone()).executor(worker);
        if handled {
            let refused = Arc::clone(&refused);
            builder = builder.on_refused(move |id| refused.lock().unwrap().push(id));
        }
        let timer = builder.build().unwrap();
        timer.add(TimerEntry::after(Duration::ZERO, 0)).unwrap();
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert_eq!(get(&runs), 0); // Its place in the queue is free, and the worker is busy.
        for id in 1..6 {
            let _ = timer.add(TimerEntry::after(MS, id)).unwrap();
        }
        clock.advance(MS);
        assert_eq!(timer.advance_clock(Duration::ZERO), 5);
        assert_eq!(timer.stats().refused, 3);
        let _ = timer.add(TimerEntry::after(Duration::ZERO, 6)).unwrap();
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        assert_eq!(timer.stats().refused, 4, "its queue is still full");
        assert_eq!(
            *refused.lock().unwrap(),
            if handled {
                vec![3, 4, 5, 6]
            } else {
                Vec::new()
            }
        );
        release.send(()).unwrap();
        assert_eq!((get(&runs), get(&runs)), (1, 2));
        drop(timer);
        assert!(runs.recv().is_err(), "nothing else ran");
    }
}

#[test]
fn a_worker_counts_panics_and_goes_on_and_finishes_its_queue_when_it_is_dropped() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&ran);
    let clock = ManualClock::new();
    let handler = move |id: u32| {
        std::thread::sleep(Duration::from_micros(50));
        assert!(
            id % 10 != 3,
            "every tenth panics, which is what the test is about"
        );
        sink.lock().unwrap().push(id);
    };
    let worker = Worker::unbounded("panics", handler).unwrap();
    let timer = Timer::builder()
        .clock(clock.clone())
        .executor(worker)
        .build()
        .unwrap();
    for id in 0..100 {
        timer.add(TimerEntry::after(MS * id, id)).unwrap();
    }
    clock.advance(50 * MS);
    timer.advance_clock(Duration::ZERO);
    until("the panics are counted", || timer.stats().panicked == 5);
    clock.advance(50 * MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 49);
    drop(timer);
    assert!(
        ran.lock()
            .unwrap()
            .iter()
            .copied()
            .eq((0..100).filter(|id| id % 10 != 3))
    );
}

#[test]
fn a_task_on_the_worker_may_drop_the_last_timer() {
    let (sender, receiver) = channel();
    let own: Arc<Mutex<Option<Timer>>> = Arc::default();
    let worker = Worker::unbounded("drops-last", Task::run).unwrap();
    let timer = Timer::builder()
        .name("driven")
        .executor(worker)
        .start()
        .unwrap();
    let last = Arc::clone(&own);
    let inner = timer.clone();
    *own.lock().unwrap() = Some(timer);
    let behind = sender.clone();
    let task = move || {
        drop(last.lock().unwrap().take());
        sender.send(1).unwrap();
    };
    let deadline = Instant::now() + 20 * MS;
    inner.add(TimerEntry::at(deadline, task)).unwrap();
    inner
        .add(TimerEntry::at(deadline, move || behind.send(2).unwrap()))
        .unwrap();
    drop(inner);
    assert_eq!(get(&receiver), 1);
    assert_eq!(get(&receiver), 2, "what was queued is still run");
    until("both threads end", || {
        !has_thread("driven") && !has_thread("drops-last")
    });
}
