//! A long chain of operations, each of which ends the next one, needs no deep stack.

use crate::{Fixture, HOUR, MS, Script, What};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::purgatory::{DelayedOperation, Pending, Purgatory};
use tickwheel::{ManualClock, Timer};

const LINKS: u32 = 100_000;
const STACK: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// `on_complete` makes the next one's condition true and triggers its key.
    Trigger,
    /// `on_complete` forces the next one.
    Force,
    /// `on_complete` watches the next one, which is completed at once.
    AtOnce,
    /// As `Trigger`, but when the operation is dropped.
    Drop,
}

struct Link {
    number: u32,
    how: How,
    /// Links that were completed: the condition of the next one.
    completed: Arc<AtomicU32>,
    purgatory: Purgatory<u32, Link>,
    next: Option<Pending<u32, Link>>,
}

impl Link {
    fn go_on(&mut self) {
        let next = self.number + 1;
        match self.how {
            How::Trigger | How::Drop => {
                let completed = self.purgatory.check_and_complete(&next);
                assert_eq!(completed, 0, "it is queued");
            }
            How::Force => {
                let forced = self.next.take().map(|next| next.force_complete());
                assert_eq!(forced, (next < LINKS).then_some(true));
            }
            How::AtOnce if next == LINKS => {}
            How::AtOnce => {
                let completed = self.completed.clone();
                let purgatory = self.purgatory.clone();
                let link = Link {
                    number: next,
                    how: self.how,
                    completed,
                    purgatory,
                    next: None,
                };
                let watch = self.purgatory.try_complete_else_watch(link, HOUR, &[next]);
                assert!(watch.is_ok_and(|watch| watch.is_completed()));
            }
        }
    }
}

impl DelayedOperation for Link {
    fn try_complete(&mut self) -> bool {
        self.completed.load(SeqCst) == self.number
    }

    fn on_complete(&mut self) {
        assert_eq!(self.completed.fetch_add(1, SeqCst), self.number);
        if self.how != How::Drop {
            self.go_on();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.how == How::Drop {
            self.go_on();
        }
    }
}

/// Watches all links, the last one first, and has the first one expire.
fn chain(how: How) {
    let clock = ManualClock::new();
    let timer = Timer::builder().clock(clock.clone()).build().unwrap();
    let purgatory = Purgatory::new(&timer);
    // One more than any link's number, until all are watched.
    let completed = Arc::new(AtomicU32::new(u32::MAX));
    let mut next = None;
    let links = if how == How::AtOnce { 1 } else { LINKS };
    for number in (0..links).rev() {
        let completed = Arc::clone(&completed);
        let link = Link {
            number,
            how,
            completed,
            purgatory: purgatory.clone(),
            next,
        };
        let timeout = if number == 0 { MS } else { HOUR };
        let watch = purgatory.try_complete_else_watch(link, timeout, &[number]);
        next = watch.ok().and_then(|watch| watch.pending());
        assert!(next.is_some());
    }
    completed.store(0, SeqCst);
    clock.advance(MS);
    assert_eq!(timer.advance_clock(Duration::ZERO), 1);
    assert_eq!(completed.load(SeqCst), LINKS, "{how:?}");
    let stats = purgatory.stats();
    let ends = (
        stats.completed_at_once,
        stats.completed_by_trigger,
        stats.completed_by_force,
    );
    let others = u64::from(LINKS - 1);
    let expected = match how {
        How::Trigger | How::Drop => (0, others, 0),
        How::Force => (0, 0, others),
        How::AtOnce => (others, 0, 0),
    };
    assert_eq!(
        (ends, stats.expired, stats.panicked),
        (expected, 1, 0),
        "{how:?}"
    );
    assert_eq!(
        (purgatory.stats().watched, purgatory.len(), timer.len()),
        (0, 0, 0)
    );
    purgatory.assert_invariants();
}

fn on_a_small_stack(call: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(call)
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_long_chain_needs_no_deep_stack() {
    for how in [How::Trigger, How::Force, How::AtOnce, How::Drop] {
        on_a_small_stack(move || chain(how));
    }
}

/// A thread-local value ends an operation as it is dropped, when the thread's list of postponed
/// callbacks is gone already. That operation ends another one, which has to be ended as well.
#[test]
fn what_a_thread_ends_as_its_own_last_act_is_ended() {
    struct Last(Option<Pending<u32, Script>>);
    impl Drop for Last {
        fn drop(&mut self) {
            assert!(self.0.take().is_some_and(|first| first.force_complete()));
        }
    }
    thread_local! {
        static LAST: RefCell<Last> = const { RefCell::new(Last(None)) };
    }
    let fixture = Fixture::new();
    let pairs = [(1, 2), (3, 4)].map(|(id, next)| {
        let next = fixture.watch(fixture.script(next), &[next]);
        let ends = move || assert!(next.force_complete());
        fixture.watch(fixture.script(id).on_complete(ends), &[id])
    });
    let [early, last] = pairs;
    let run = move || {
        // What was used first is dropped last.
        LAST.with(|own| own.borrow_mut().0 = Some(last));
        assert!(early.force_complete());
    };
    std::thread::spawn(run).join().unwrap();
    assert_eq!(fixture.purgatory.stats().completed_by_force, 4);
    assert_eq!(
        (fixture.counts(), fixture.purgatory.stats().panicked),
        ((0, 0, 0), 0)
    );
    let mut completed = fixture.log.of(What::Completed);
    completed.sort_unstable();
    assert_eq!(completed, [1, 2, 3, 4]);
}

/// Waiting operations are dropped in a row as well, when the last purgatory goes.
#[test]
fn very_many_are_dropped_with_the_purgatory_without_a_deep_stack() {
    on_a_small_stack(|| {
        let fixture = Fixture::new();
        for id in 0..LINKS {
            let _ = fixture.watch(fixture.script(id), &[id % 7, 8]);
        }
        let Fixture {
            purgatory,
            timer,
            log,
            ..
        } = fixture;
        log.take();
        drop(purgatory);
        assert_eq!(
            (log.take().len(), timer.len()),
            (LINKS as usize, 0),
            "only dropped"
        );
    });
}
