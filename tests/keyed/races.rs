//! Keys on real threads: every task that was scheduled ends exactly once.

use crate::MS;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Timer, TimerEntry};

#[test]
fn every_task_ends_once_whether_it_is_replaced_or_cancelled_or_expires() {
    const THREADS: u32 = 4;
    const TASKS: u32 = 5_000;
    let timer = Timer::builder().tick(Duration::from_micros(50)).start().unwrap();
    let expired = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&expired);
    let keyed = KeyedTimer::new(&timer, move |_: u32, task: u32| sink.lock().unwrap().push(task));
    let (ended, ends) = mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (keyed, ended) = (&keyed, ended.clone());
            scope.spawn(move || {
                for n in 0..TASKS {
                    let task = thread * TASKS + n;
                    let key = task.wrapping_mul(2_654_435_761) >> 29;
                    // Some of them due at once, so that they meet the reaper.
                    let entry = TimerEntry::after(MS * (n % 4) / 8, task);
                    let replaced = keyed.schedule(key, entry).unwrap();
                    replaced.into_iter().for_each(|task| ended.send(task).unwrap());
                    match n % 5 {
                        0 => keyed.cancel(&key).into_iter().for_each(|it| ended.send(it).unwrap()),
                        1 => drop(keyed.touch(&key, MS)),
                        2 => drop(keyed.reschedule(&key, MS / 10)),
                        _ => {}
                    }
                }
            });
        }
    });
    drop(ended);
    let mut count: HashMap<u32, u32> = HashMap::new();
    let mut add = |task| *count.entry(task).or_default() += 1;
    ends.iter().for_each(&mut add);
    keyed.cancel_all().into_iter().for_each(|(_, task)| add(task));
    // Waits until the reaper has handed over what it is at.
    drop(timer.shutdown());
    expired.lock().unwrap().iter().copied().for_each(&mut add);
    assert_eq!(count.len() as u32, THREADS * TASKS, "no task is lost");
    assert!(count.values().all(|count| *count == 1), "none ends twice");
    assert!(keyed.is_empty());
    keyed.assert_invariants();
}
