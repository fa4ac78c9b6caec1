//! Models of alarms that find their shard taken. In real time, because in virtual time they wait;
//! all is due before the timer is built, so the clock decides nothing.

use crate::harness::{all, explore};
use crate::limbo::KeyHasher;
use crate::stand::{Queue, run};
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::{Task, Timer, TimerEntry};

type Keyed = KeyedTimer<u64, (), KeyHasher>;

fn schedule(keyed: &Keyed, key: u64, at: Instant) {
    let entry = TimerEntry::at(at, ());
    assert!(keyed.schedule(key, entry).is_ok_and(|former| former.is_none()));
}

enum Event {
    Alarm(Task),
    Expired,
}

/// Two keys of one shard expire while a thread holds it. Every alarm that is put off comes again:
/// who sleeps when the last one is put off is woken.
///
/// Fails when an alarm that is put off wakes nobody, or a turn forgets those beyond a batch.
#[test]
fn alarms_against_a_holder() {
    explore("alarms_against_a_holder", 2, || {
        let ((sender, events), past) = (channel(), Instant::now());
        let (hand, tell) = (sender.clone(), sender);
        let executor = move |alarm| hand.send(Event::Alarm(alarm)).expect("it waits");
        let timer = Timer::builder().shards(1).executor(executor).start().expect("it can be built");
        let tell = move |_, ()| tell.send(Event::Expired).expect("it waits");
        let keyed = Keyed::with_hasher(&timer, KeyHasher::default(), tell);
        schedule(&keyed, 1, past);
        schedule(&keyed, 2, past);
        let holds = keyed.clone();
        let holder = thread::spawn(move || {
            let entry = holds.find_entry(&1);
            thread::yield_now();
            drop(entry);
        });
        let (mut alarms, mut expired) = (0, 0);
        while expired < 2 {
            match events.recv().expect("the timer lives") {
                Event::Alarm(alarm) => {
                    alarms += 1;
                    alarm.run();
                }
                Event::Expired => expired += 1,
            }
        }
        holder.join().expect("it does not panic");
        assert!(timer.shutdown().is_empty() && keyed.is_empty(), "something is left behind");
        format!("{}", alarms > 2)
    });
}

/// The last clone goes while an alarm finds its shard taken.
///
/// Fails when an alarm is put off although its keyed timer has gone.
#[test]
fn alarm_against_the_end_of_its_keyed_timer() {
    explore("alarm_against_the_end_of_its_keyed_timer", 2, || {
        let (queue, past) = (Arc::new(Queue::default()), Instant::now());
        let alarms = Arc::clone(&queue);
        let push = move |alarm| alarms.lock().unwrap().push(alarm);
        let timer = Timer::builder().shards(1).executor(push).build().expect("it can be built");
        let expired = Arc::new(std::sync::Mutex::new(0));
        let count = Arc::clone(&expired);
        let count = move |_, ()| *count.lock().unwrap() += 1;
        let keyed = Keyed::with_hasher(&timer, KeyHasher::default(), count);
        schedule(&keyed, 1, past);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        all(|| run(&queue), || drop(keyed), || timer.len());
        assert!(timer.is_empty() && timer.next_expiration().is_none(), "nothing is left behind");
        assert!(queue.lock().unwrap().is_empty());
        format!("{}", expired.lock().unwrap())
    });
}
