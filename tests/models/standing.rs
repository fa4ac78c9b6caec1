//! Models of keyed timers, which use a timer that others may share: their keys, and tasks of keys
//! that are on their way.

use crate::futures::{NANO, with_reaper};
use crate::harness::{all, both, explore};
use crate::limbo::KeyHasher;
use crate::stand::{Keyed, Queue, Stand, accepted, returned, run};
use crate::world::{Book, End, Job};
use shuttle::sync::mpsc::channel;
use shuttle::thread;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tickwheel::keyed::KeyedTimer;
use tickwheel::{AddError, Timer, TimerEntry};

/// A task is replaced as it falls due: it comes back or has expired, and the new one expires at its
/// own time.
///
/// Fails when `schedule` replaces the task without moving its deadline.
#[test]
fn replace_against_expiry() {
    explore("replace_against_expiry", 2, || {
        let stand = Stand::in_place();
        stand.schedule(1, 0, 2);
        let (replaced, _, _) = all(
            || stand.schedule(1, 1, 4),
            || stand.pass(2),
            || stand.turn(),
        );
        assert_eq!(stand.has_fired(0), !replaced);
        assert!(stand.ends(1).is_empty(), "it has time until 4");
        stand.finish(4)
    });
}

/// A task is on its way to the executor when two add their own: it expires, and takes neither of
/// them along.
///
/// Fails when the task of a key that was flushed looks for its key again.
#[test]
fn add_while_the_former_is_on_its_way() {
    explore("add_while_the_former_is_on_its_way", 2, || {
        let (stand, queue) = Stand::queued();
        stand.schedule(1, 0, 2);
        stand.pass(2);
        all(
            || {
                stand.cancel(1); // Too late for the former.
                stand.schedule(1, 1, 4)
            },
            || stand.schedule(1, 2, 4),
            || run(&queue),
        );
        assert!(stand.has_fired(0) && !(stand.has_fired(1) || stand.has_fired(2)));
        stand.assert_sound();
        stand.pass(2);
        run(&queue);
        stand.settle()
    });
}

/// The key expires and the timer is full again: a task that is refused leaves the former one as it
/// was.
///
/// Fails when `schedule` removes the former task before the timer has accepted the new one.
#[test]
fn refused_replace_against_expiry() {
    explore("refused_replace_against_expiry", 3, || {
        let stand = Stand::new(|builder| builder.max_pending(1));
        stand.schedule(1, 0, 2);
        let replace = |key, id| match stand.add(key, stand.entry(id, 4, || ())) {
            Ok(replaced) => returned(replaced),
            Err(AddError::Full(entry)) => {
                entry.into_inner().into_task().end(End::Refused);
                false
            }
            Err(error) => panic!("{error}"),
        };
        let (replaced, _, _) = all(|| replace(1, 1), || replace(2, 2), || stand.pass(2));
        assert_eq!(stand.has_fired(0), !replaced);
        stand.finish(4)
    });
}

/// Of two calls and the expiry one wins.
///
/// Fails when the flush finds a key due and takes it out under two holds of the lock.
#[test]
fn cancel_of_a_key_against_expiry() {
    explore("cancel_of_a_key_against_expiry", 3, || {
        let stand = Stand::in_place();
        stand.schedule(1, 0, 2);
        let (one, other, _) = all(|| stand.cancel(1), || stand.cancel(1), || stand.pass(2));
        let cancelled = [one, other];
        let won = cancelled.iter().filter(|cancelled| **cancelled).count();
        assert_eq!(won + usize::from(stand.has_fired(0)), 1);
        format!("{cancelled:?} {}", stand.finish(2))
    });
}

/// A key that was touched in time expires at its later deadline and not before.
///
/// Fails when the flush does not look at the deadline.
#[test]
fn touch_against_expiry() {
    explore("touch_against_expiry", 2, || {
        let stand = Stand::in_place();
        stand.schedule(1, 0, 2);
        let touch = |delay| {
            let from = stand.now();
            stand
                .keyed
                .touch(&1, Duration::from_nanos(delay))
                .then_some(from + delay)
        };
        let (one, other, _) = all(|| touch(4), || touch(3), || stand.pass(2));
        let touched = [one, other];
        let until = touched.into_iter().flatten().max().unwrap_or(2);
        stand.book.write(0, |record| record.earliest = until);
        assert_eq!(stand.has_fired(0), until == 2);
        assert_eq!(stand.keyed.contains(&1), until > 2);
        format!("{touched:?} {}", stand.finish(6))
    });
}

/// Two find the key without a task: one of them schedules its own.
///
/// Fails when the lock is released between looking for the key and adding it.
#[test]
fn absent_against_absent() {
    explore("absent_against_absent", 2, || {
        let stand = Stand::in_place();
        let scheduled = both(
            || stand.add_if_absent(1, 0, 2),
            || stand.add_if_absent(1, 1, 2),
        );
        assert!(scheduled.0 != scheduled.1, "{scheduled:?}");
        format!("{scheduled:?} {}", stand.finish(2))
    });
}

/// The same while the time of the key's task comes: at most one, and that task has expired or is
/// replaced.
///
/// Fails when the vacant entry of a key whose time is up adds the key a second time.
#[test]
fn absent_against_expiry() {
    explore("absent_against_expiry", 3, || {
        let stand = Stand::in_place();
        stand.schedule(1, 0, 2);
        let schedule = |id| {
            let scheduled = stand.add_if_absent(1, id, 4);
            assert!(stand.keyed.len() <= 1, "there is one key");
            scheduled
        };
        let (one, other, _) = all(|| schedule(1), || schedule(2), || stand.pass(2));
        let scheduled = [one, other];
        let replaced = matches!(stand.ends(0)[..], [End::Returned]);
        assert!(stand.has_fired(0) != replaced, "it ends once");
        assert!(
            scheduled != [true; 2] && (!replaced || scheduled != [false; 2]),
            "{scheduled:?}"
        );
        assert_eq!(stand.keyed.len(), usize::from(scheduled != [false; 2]));
        format!("{scheduled:?} {}", stand.finish(4))
    });
}

/// A task that expires schedules its key again, while another thread cancels it.
///
/// Fails when `expired` is called under the shard's lock.
#[test]
fn rearm_against_cancel() {
    explore("rearm_against_cancel", 3, || {
        let stand = Stand::in_place();
        let again = Arc::clone(&stand);
        let entry = stand.entry(0, 2, move || assert!(!again.schedule(1, 1, 4)));
        assert!(accepted(stand.add(1, entry)).is_none());
        let mut cancelled = [false; 2];
        both(|| cancelled.fill_with(|| stand.cancel(1)), || stand.pass(2));
        assert!(cancelled[0] || stand.has_fired(0));
        format!("{cancelled:?} {}", stand.finish(4))
    });
}

/// All that a key had before `cancel_all` began is gone when it returns.
///
/// Fails when the permits of what `cancel_all` takes are not given back.
#[test]
fn cancel_all_against_schedule() {
    explore("cancel_all_against_schedule", 4, || {
        let stand = Stand::in_place();
        (0..3).for_each(|id| assert!(!stand.schedule(id.into(), id, 2)));
        all(
            || {
                let taken = stand.keyed.cancel_all().into_iter();
                taken.for_each(|(_, job)| assert!(returned(Some(job))));
            },
            || (stand.schedule(1, 3, 4), stand.schedule(0, 4, 4)),
            || stand.pass(2),
        );
        (0..3).for_each(|id| assert_eq!(stand.ends(id).len(), 1, "task {id} is left"));
        stand.finish(4)
    });
}

/// The last keyed timer is dropped while keys expire: nothing is left, also not what `expired`
/// holds.
///
/// Fails when the drop leaves the keys in the timer.
#[test]
fn drop_of_keyed_against_expiry() {
    explore("drop_of_keyed_against_expiry", 3, || {
        let stand = Stand::in_place();
        let book = Arc::new(Book::default());
        let kept = Arc::clone(&book);
        let keyed = Keyed::with_hasher(&stand.timer, KeyHasher::default(), move |_, mut job| {
            assert!(Arc::ptr_eq(
                job.book.as_ref().expect("it has not ended"),
                &kept
            ));
            job.end(End::Fired {
                at: 2,
                by: thread::current().id(),
            });
        });
        for (key, at) in [(0, 2), (1, 2), (2, 9)] {
            let id = key as u32;
            book.write(id, |_| ());
            let job = Job {
                id,
                book: Some(Arc::clone(&book)),
                then: None,
            };
            let at = stand.start + Duration::from_nanos(at);
            assert!(accepted(keyed.add(key, at, job)).is_none());
        }
        both(|| drop(keyed), || stand.pass(2));
        stand.settle();
        assert_eq!(Arc::strong_count(&book), 1, "something keeps `expired`");
        book.settle().0
    });
}

/// The former deadline of a key that was touched comes, on a timer that has room for one.
///
/// Fails when the key's permit is given back while it waits for its later deadline.
#[test]
fn former_deadline_on_a_full_timer() {
    explore("former_deadline_on_a_full_timer", 1, || {
        let stand = Stand::new(|builder| builder.max_pending(1));
        stand.schedule(1, 0, 2);
        assert!(stand.keyed.touch(&1, Duration::from_nanos(4)));
        both(
            || stand.pass(2),
            || match stand.add(2, stand.entry(1, 4, || ())) {
                Ok(replaced) => panic!("there is no room, but it replaced {}", returned(replaced)),
                Err(error) => error.into_entry().into_task().end(End::Refused),
            },
        );
        assert!(!stand.has_fired(0));
        stand.finish(4)
    });
}

type Plain = KeyedTimer<u64, (), KeyHasher>;

fn schedule(keyed: &Plain, key: u64, at: Instant) {
    assert!(keyed.add(key, at, ()).is_ok_and(|former| former.is_none()));
}

/// Returns a timer of one shard, whose tasks go to a queue.
fn queued() -> (Timer, Arc<Queue>) {
    let queue = Arc::new(Queue::default());
    let tasks = Arc::clone(&queue);
    let push = move |task| tasks.lock().unwrap().push(task);
    let timer = Timer::builder()
        .shards(1)
        .executor(push)
        .build()
        .expect("it can be built");
    (timer, queue)
}

/// Two keys of one shard expire while a thread holds it: the reaper comes again.
///
/// Fails when a shard that a turn has passed over is forgotten.
#[test]
fn keys_against_a_holder() {
    explore("keys_against_a_holder", 1, || {
        let (sender, expired) = channel();
        let (timer, _) = with_reaper();
        let expire = move |_, ()| sender.send(()).expect("it waits");
        let keyed = Plain::with_hasher(&timer, KeyHasher::default(), expire);
        schedule(&keyed, 1, timer.now());
        schedule(&keyed, 2, timer.now());
        let holds = keyed.clone();
        let holder = thread::spawn(move || {
            let entry = holds.find(&1);
            thread::yield_now();
            drop(entry);
        });
        (0..2).for_each(|_| expired.recv().expect("the timer lives"));
        holder.join().expect("it does not panic");
        assert!(
            timer.shutdown().is_empty() && keyed.is_empty(),
            "something is left behind"
        );
        String::new()
    });
}

/// Two turns find a key due in a shard that a thread holds, and may both pass the shard over.
///
/// Fails when the second one finds that nothing is pending there.
#[test]
fn two_turns_against_a_holder() {
    explore("two_turns_against_a_holder", 2, || {
        let stand = Stand::in_place();
        stand.schedule(1, 0, 2);
        stand.clock.advance(2 * NANO);
        all(
            || stand.turn(),
            || stand.turn(),
            || {
                let held = stand.keyed.entry(1);
                thread::yield_now();
                drop(held);
            },
        );
        assert!(stand.has_fired(0), "it was forgotten");
        stand.finish(4)
    });
}

/// The last clone goes while a task runs, or is on its way: it expires its key.
///
/// Fails when a task needs its keyed timer.
#[test]
fn task_of_a_key_against_the_end_of_its_keyed_timer() {
    explore(
        "task_of_a_key_against_the_end_of_its_keyed_timer",
        1,
        || {
            let (timer, queue) = queued();
            let past = Instant::now();
            let expired = Arc::new(std::sync::Mutex::new(0));
            let count = Arc::clone(&expired);
            let count = move |_, ()| *count.lock().unwrap() += 1;
            let keyed = Plain::with_hasher(&timer, KeyHasher::default(), count);
            schedule(&keyed, 1, past);
            assert_eq!(timer.advance_clock(Duration::ZERO), 1);
            all(|| run(&queue), || drop(keyed), || timer.len());
            assert!(
                timer.is_empty() && timer.next_expiration().is_none(),
                "nothing is left behind"
            );
            assert_eq!(
                (*expired.lock().unwrap(), Arc::strong_count(&expired)),
                (1, 1)
            );
            String::new()
        },
    );
}

/// A key is kept while a thread holds its shard, and while it is added: it is there once.
///
/// Fails when a key that is kept is added without looking for it under the same lock.
#[test]
fn kept_key_against_add_and_a_holder() {
    explore("kept_key_against_add_and_a_holder", 2, || {
        let (timer, queue) = queued();
        let past = Instant::now();
        let keep = |key, ()| Some((key, TimerEntry::after(Duration::MAX, ())));
        let keyed = Plain::with_hasher(&timer, KeyHasher::default(), keep);
        schedule(&keyed, 1, past);
        assert_eq!(timer.advance_clock(Duration::ZERO), 1);
        let add = || {
            keyed
                .add(1, Duration::MAX, ())
                .is_ok_and(|former| former.is_some())
        };
        let (_, replaced, _) = all(|| run(&queue), add, || drop(keyed.entry(2)));
        assert!(keyed.contains(&1), "it is lost");
        keyed.assert_invariants();
        let stats = timer.stats();
        assert_eq!((stats.added, stats.expired, stats.pending), (2, 1, 1));
        format!("{replaced}")
    });
}
