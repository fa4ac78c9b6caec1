//! Keyed queues in virtual time.

#[path = "../common/delta.rs"]
mod delta;
mod delay_queue;
mod early;
mod model;
#[path = "../common/quick.rs"]
mod quick;
#[allow(dead_code)] // A queue has no options of a timer.
#[path = "../common/times.rs"]
mod times;
#[path = "../common/wakes.rs"]
mod wakes;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tickwheel::queue::{Entry, Expired, KeyedQueue};
use tickwheel::{ManualClock, When};
use wakes::Wakes;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A queue on a manual clock, whose sleeps say until when they last.
struct Fixture<K, V> {
    queue: KeyedQueue<K, V>,
    clock: ManualClock,
    sleeps: Arc<Mutex<Vec<Instant>>>,
    wakes: Arc<Wakes>,
}

/// Completes at a time of a clock, if it is polled then.
struct SleepUntil(ManualClock, Instant);

impl Future for SleepUntil {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0.now() >= self.1 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl<K: std::hash::Hash + Eq, V> Fixture<K, V> {
    fn new() -> Self {
        let clock = ManualClock::new();
        let of = clock.clone();
        Self::with_sleeps(clock, move |until| SleepUntil(of.clone(), until))
    }

    fn with_sleeps<F: Future + Send + 'static>(
        clock: ManualClock,
        mut sleep_until: impl FnMut(Instant) -> F + Send + 'static,
    ) -> Self {
        let sleeps = Arc::<Mutex<Vec<_>>>::default();
        let asked = Arc::clone(&sleeps);
        let queue = KeyedQueue::new(clock.clone(), move |until| {
            asked.lock().unwrap().push(until);
            sleep_until(until)
        });
        Fixture {
            queue,
            clock,
            sleeps,
            wakes: Arc::default(),
        }
    }

    fn poll(&mut self) -> Poll<Option<Expired<K, V>>> {
        let waker = Waker::from(Arc::clone(&self.wakes));
        self.queue.poll_expired(&mut Context::from_waker(&waker))
    }

    /// Returns what is due, until the queue waits or is empty.
    fn expired(&mut self) -> Vec<V> {
        let mut expired = Vec::new();
        while let Poll::Ready(Some(Expired { value, .. })) = self.poll() {
            expired.push(value);
        }
        expired
    }

    fn woken(&self) -> usize {
        self.wakes.take()
    }

    fn asked(&self) -> Vec<Instant> {
        std::mem::take(&mut self.sleeps.lock().unwrap())
    }
}

#[test]
fn nothing_expires_before_its_deadline_and_all_in_the_order_of_their_ticks() {
    let mut fixture = Fixture::new();
    let start = fixture.clock.now();
    for (key, ms) in [(1, 7), (2, 3), (3, 5), (4, 3)] {
        assert_eq!(fixture.queue.insert(key, ms * MS, key), None);
    }
    assert!(fixture.poll().is_pending());
    assert_eq!(fixture.asked(), [start + 3 * MS]);
    fixture.clock.advance(3 * MS - Duration::from_nanos(1));
    assert!(fixture.poll().is_pending());
    fixture.clock.advance(3 * MS);
    assert_eq!(fixture.expired(), [2, 4, 3]);
    fixture.clock.advance(HOUR);
    let expired = Expired {
        key: 1,
        value: 1,
        deadline: start + 7 * MS,
    };
    assert_eq!(fixture.poll(), Poll::Ready(Some(expired)));
    assert_eq!(
        (fixture.poll(), fixture.asked().len()),
        (Poll::Ready(None), 1)
    );
}

/// Also one that was before the queue, or that is more than 584 years away.
#[test]
fn a_deadline_comes_back_exactly_as_it_was_given() {
    let clock = ManualClock::new();
    clock.advance(HOUR);
    let mut fixture = Fixture::with_sleeps(clock, |_| std::future::pending::<()>());
    let start = fixture.clock.now();
    let nanos = [
        0,
        1,
        999_999,
        1_000_000,
        1_000_001,
        999_999_999,
        1_000_000_000,
    ];
    let offsets = nanos.map(Duration::from_nanos);
    let early = offsets
        .iter()
        .filter_map(|offset| start.checked_sub(*offset));
    let late = offsets.iter().map(|offset| start + *offset);
    let far = start.checked_add(Duration::from_secs(1 << 40));
    let all: Vec<Instant> = early.chain(late).chain(far).collect();
    for (key, deadline) in all.iter().enumerate() {
        fixture.queue.insert(key, *deadline, *deadline);
        assert_eq!(fixture.queue.deadline(&key), Some(*deadline));
    }
    assert!(
        fixture
            .queue
            .iter()
            .all(|(_, given, at)| at == Some(*given))
    );
    fixture.queue.retain(|_, given, at| at == Some(*given));
    fixture.clock.advance(HOUR);
    let mut expired = 0;
    while let Poll::Ready(Some(Expired {
        value, deadline, ..
    })) = fixture.poll()
    {
        assert_eq!(deadline, value);
        expired += 1;
    }
    assert_eq!(expired, all.len() - usize::from(far.is_some()));
    assert!(
        fixture
            .queue
            .drain()
            .all(|(_, given, at)| at == Some(given))
    );
}

/// Whatever their ticks: a touch by a nanosecond counts.
#[test]
fn deadlines_of_one_tick_are_told_apart() {
    let mut fixture = Fixture::new();
    let start = fixture.clock.now() + MS;
    let at = |nanos| start + Duration::from_nanos(nanos);
    fixture.queue.insert(1, at(500), ());
    for (deadline, hastened, touched) in [
        (at(501), at(500), at(501)),
        (at(499), at(499), at(500)),
        (at(0), at(0), at(500)),
        (at(1_000_001), at(500), at(1_000_001)),
    ] {
        fixture.queue.reschedule(&1, at(500));
        fixture.queue.hasten(&1, deadline);
        assert_eq!(fixture.queue.deadline(&1), Some(hastened));
        fixture.queue.reschedule(&1, at(500));
        fixture.queue.touch(&1, deadline);
        assert_eq!(fixture.queue.deadline(&1), Some(touched));
    }
}

/// `peek` names it first, although keys of later ticks come before it.
#[test]
fn a_key_that_is_inserted_too_late_comes_before_those_of_the_next_tick() {
    let mut fixture = Fixture::new();
    let start = fixture.clock.now();
    for ms in [1, 5, 8, 11] {
        fixture.queue.insert(ms, ms * MS, ms);
    }
    fixture.clock.advance(10 * MS);
    assert!(matches!(
        fixture.poll(),
        Poll::Ready(Some(Expired { key: 1, .. }))
    ));
    fixture.queue.insert(2, start + 2 * MS, 2);
    assert_eq!(fixture.queue.peek(), Some((&2, &2, Some(start + 2 * MS))));
    fixture.clock.advance(HOUR);
    let expired = fixture.expired();
    let in_time: Vec<_> = expired.iter().filter(|key| **key != 2).collect();
    assert_eq!(in_time, [&5, &8, &11]);
    assert_ne!(expired.last(), Some(&2), "{expired:?}");
}

#[test]
fn an_inserted_key_replaces_its_value_and_deadline() {
    let mut fixture = Fixture::new();
    fixture.queue.insert("a", HOUR, 1);
    assert_eq!(fixture.queue.insert("a", MS, 2), Some(1));
    assert_eq!((fixture.queue.len(), fixture.queue.get("a")), (1, Some(&2)));
    fixture.clock.advance(MS);
    assert_eq!(fixture.expired(), [2]);
    assert_eq!(fixture.queue.insert("a", MS, 3), None, "it was gone");
    assert_eq!(fixture.queue.insert("a", HOUR, 4), Some(3));
    fixture.clock.advance(MS);
    assert_eq!(fixture.expired(), []);
}

#[test]
fn a_key_that_is_not_there_is_no_error() {
    let mut fixture = Fixture::new();
    let queue = &mut fixture.queue;
    queue.insert(1, MS, 1);
    assert_eq!(
        (queue.remove(&1), queue.remove(&1), queue.remove(&2)),
        (Some(1), None, None)
    );
    assert!(!queue.touch(&1, MS) && !queue.hasten(&1, MS) && !queue.reschedule(&1, MS));
    assert_eq!((queue.get(&1), queue.deadline(&1)), (None, None));
    assert_eq!(queue.get_mut(&1), None);
    assert!(queue.peek().is_none() && queue.iter().next().is_none() && queue.is_empty());
}

#[test]
fn a_poll_that_waits_is_woken_by_an_earlier_deadline_and_by_nothing_else() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.poll(), Poll::Ready(None));
    fixture.queue.insert(1, 5 * MS, ());
    assert_eq!(fixture.woken(), 1, "it slept for ever");
    assert!(fixture.poll().is_pending());
    fixture.queue.insert(2, 5 * MS, ());
    fixture.queue.insert(3, HOUR, ());
    fixture.queue.touch(&3, 2 * HOUR);
    fixture.queue.remove(&2);
    assert_eq!(fixture.woken(), 0);
    fixture.queue.insert(4, 4 * MS, ());
    assert_eq!(fixture.woken(), 1);
    assert!(fixture.poll().is_pending());
    fixture.queue.reschedule(&3, MS);
    assert_eq!(fixture.woken(), 1);
}

#[test]
fn what_is_retained_may_be_changed_and_keeps_its_deadline() {
    let mut fixture = Fixture::new();
    let start = fixture.clock.now();
    for key in 1..=100 {
        fixture.queue.insert(key, key * MS, 0);
    }
    fixture.queue.retain(|key, value, deadline| {
        assert_eq!(deadline, Some(start + *key * MS));
        *value = *key;
        key % 10 == 0
    });
    assert_eq!(fixture.queue.len(), 10);
    fixture.clock.advance(100 * MS);
    let kept: Vec<_> = (1..=10).map(|nth| nth * 10).collect();
    assert_eq!(fixture.expired(), kept);
}

/// Who waits for the end of the queue learns of it.
#[test]
fn a_poll_that_waits_is_woken_when_the_queue_becomes_empty() {
    let empty: [fn(&mut KeyedQueue<u32, ()>); 4] = [
        |queue| assert!(queue.remove(&1).is_some()),
        |queue| queue.clear(),
        |queue| queue.retain(|_, (), _| false),
        |queue| match queue.entry(1) {
            Entry::Occupied(entry) => entry.remove(),
            Entry::Vacant(_) => unreachable!("it is there"),
        },
    ];
    for empty in empty {
        let mut fixture = Fixture::new();
        fixture.queue.insert(1, HOUR, ());
        assert!(fixture.poll().is_pending());
        empty(&mut fixture.queue);
        assert_eq!((fixture.woken(), fixture.poll()), (1, Poll::Ready(None)));
    }
}

/// The former deadline may wake the task, once.
#[test]
fn moving_a_deadline_to_a_later_time_costs_one_wake_up_at_most() {
    let mut fixture = Fixture::new();
    let start = fixture.clock.now();
    fixture.queue.insert(1, 10 * MS, ());
    assert!(fixture.poll().is_pending());
    for _ in 0..9 {
        fixture.clock.advance(MS);
        fixture.queue.touch(&1, 10 * MS);
        assert!(fixture.poll().is_pending());
    }
    fixture.clock.advance(MS);
    assert!(fixture.poll().is_pending(), "ten times it was extended");
    assert_eq!(fixture.asked(), [start + 10 * MS, start + 19 * MS]);
}

#[test]
fn what_never_expires_is_there_and_wakes_nobody() {
    let mut fixture = Fixture::new();
    fixture.queue.insert(1, When::Never, 1);
    fixture.queue.insert(2, Duration::MAX, 2);
    assert!(fixture.poll().is_pending());
    fixture.clock.advance(Duration::from_secs(1 << 33));
    assert!(fixture.poll().is_pending());
    assert_eq!(
        (fixture.queue.deadline(&1), fixture.queue.deadline(&2)),
        (None, None)
    );
    assert_eq!(
        fixture.queue.peek().map(|(_, _, deadline)| deadline),
        Some(None)
    );
    assert!(fixture.queue.reschedule(&2, MS) && fixture.queue.touch(&2, When::Never));
    assert_eq!(fixture.queue.deadline(&2), None);
}

/// A struct has it as a field, and its task is moved to another thread, or looks at it while it
/// waits.
#[test]
fn a_queue_is_send_and_sync_if_its_values_are_and_they_need_not_be() {
    struct Calls(KeyedQueue<u64, String>);
    fn is_shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let calls = Calls(KeyedQueue::new(ManualClock::new(), |_| {
        std::future::pending::<()>()
    }));
    assert!(is_shared(calls).0.is_empty());
    let mut local = KeyedQueue::new(ManualClock::new(), |_| std::future::pending::<()>());
    local.insert(1, MS, std::rc::Rc::new(1));
    assert_eq!(local.iter().map(|(_, value, _)| **value).sum::<i32>(), 1);
}

#[test]
fn what_is_drained_comes_in_the_order_of_its_ticks_and_is_gone_at_once() {
    let mut fixture = Fixture::new();
    let start = fixture.clock.now();
    for (key, ms) in [(1, 70), (2, 3), (3, 5_000)] {
        fixture.queue.insert(key, ms * MS, "value");
    }
    fixture.queue.insert(4, When::Never, "value");
    let drained: Vec<_> = fixture
        .queue
        .drain()
        .map(|(key, _, deadline)| (key, deadline))
        .collect();
    let at = |ms: u32| Some(start + ms * MS);
    assert_eq!(
        drained,
        [(2, at(3)), (1, at(70)), (3, at(5_000)), (4, None)]
    );
    fixture.queue.insert(1, MS, "another");
    drop(fixture.queue.drain());
    assert_eq!((fixture.queue.len(), fixture.queue.get(&1)), (0, None));
}

#[test]
fn the_index_gives_its_memory_back() {
    let mut fixture = Fixture::new();
    (0..10_000).for_each(|key| _ = fixture.queue.insert(key, HOUR, ()));
    assert!(fixture.queue.capacity() >= 10_000);
    (8..10_000).for_each(|key| _ = fixture.queue.remove(&key));
    fixture.queue.shrink_to_fit();
    assert!((8..1_000).contains(&fixture.queue.capacity()));
    fixture.queue.clear();
    assert_eq!((fixture.queue.len(), fixture.queue.capacity()), (0, 0));
    fixture.queue.insert(1, MS, ());
    fixture.clock.advance(MS);
    assert_eq!(fixture.expired(), [()]);
}

#[cfg(target_pointer_width = "64")]
#[test]
fn a_queue_is_as_large_as_its_page_says() {
    assert_eq!(size_of::<KeyedQueue<u64, u64>>(), 576);
    assert_eq!(size_of::<KeyedQueue<String, [u64; 9]>>(), 576);
}
