//! Exactly once, on real threads and the real clock.
//!
//! Long-lived threads are released together, round after round. In each round they add, cancel,
//! reschedule and touch timers of their own and of each other, while a reaper and another thread
//! advance the clock; in some rounds `shutdown` races with them. A ledger says for each timer what
//! became of it: exactly one of expired once, cancelled, returned by `shutdown`, refused by `add`.
//!
//! `TICKWHEEL_STRESS_OPS` is the number of operations: 200 000 unless set.

#[path = "../common/random.rs"]
mod random;
mod round;
#[path = "../common/until.rs"]
mod until;

use round::Round;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

pub(crate) const THREADS: usize = 4;
/// Of one thread, in one round.
pub(crate) const OPERATIONS: usize = 4000;

/// Ends the process when a thread panics: the others would wait for it at the barrier forever.
struct EndAll;

impl Drop for EndAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Where the threads of the test meet.
struct Meeting {
    current: Mutex<Option<Arc<Round>>>,
    /// Those who work, the one who advances the clock, and the one who checks.
    all: Barrier,
    /// The same without the one who advances the clock.
    worked: Barrier,
}

impl Meeting {
    /// Does `work` in each of so many rounds, all threads at once.
    fn rounds(&self, rounds: u64, work: impl Fn(&Round)) {
        let _end_all = EndAll;
        for _ in 0..rounds {
            self.all.wait();
            let round = self.current.lock().unwrap().clone().expect("the round is there");
            self.all.wait();
            work(&round);
            self.all.wait();
        }
    }

    /// Makes the rounds, ends each, and checks it. Returns how many met each end.
    fn lead(&self, rounds: u64) -> [u64; 4] {
        let _end_all = EndAll;
        let mut sums = [0; 4];
        for number in 0..rounds {
            let round = Arc::new(Round::new(number));
            *self.current.lock().unwrap() = Some(Arc::clone(&round));
            self.all.wait();
            self.all.wait();
            self.worked.wait();
            if number % 4 == 0 {
                round.settle();
            }
            round.stop.store(true, SeqCst);
            self.all.wait();
            round.shut_down();
            let ends = round.check();
            (0..4).for_each(|end| sums[end] += ends[end]);
        }
        sums
    }
}

#[test]
fn every_timer_meets_exactly_one_end() {
    let wanted: usize = std::env::var("TICKWHEEL_STRESS_OPS")
        .map_or(200_000, |ops| ops.parse().expect("TICKWHEEL_STRESS_OPS is a number"));
    let rounds = wanted.div_ceil(THREADS * OPERATIONS) as u64;
    let (all, worked) = (Barrier::new(THREADS + 2), Barrier::new(THREADS + 1));
    let meeting = Meeting { current: Mutex::new(None), all, worked };
    let ends = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let meeting = &meeting;
            scope.spawn(move || {
                meeting.rounds(rounds, |round| {
                    round.work(thread);
                    meeting.worked.wait();
                });
            });
        }
        scope.spawn(|| {
            meeting.rounds(rounds, |round| {
                while !round.stop.load(SeqCst) {
                    round.timer.advance_clock(Duration::from_micros(200));
                }
            });
        });
        meeting.lead(rounds)
    });
    println!("{} operations in {rounds} rounds", rounds as usize * THREADS * OPERATIONS);
    println!("expired, cancelled, returned, refused: {ends:?}");
    assert!(rounds < 8 || ends.iter().all(|end| *end > 0), "not all of it was tried: {ends:?}");
}
