//! Ends that race, each held open or sought in many rounds: a storm meets them too seldom.

use crate::until::until;
use crate::{HANG, HOUR, Idle};
use std::hash::Hash;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self};
use std::time::Duration;
use tickwheel::Timer;
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{self, Purgatory};

const MILLI: Duration = Duration::from_millis(1);

/// Drops a purgatory while another thread visits what its timer has, and builds one on another
/// timer, which takes the shards over. An entry that is held stops the visit half-way. Returns
/// what the visit returned, and checks the new purgatory.
///
/// Each kind of visit has keys of its own, so that the shards of the pool go to nobody else.
fn taken_over_during<K>(visit: impl FnOnce(&Timer) -> usize + Send) -> usize
where
    K: From<u8> + Hash + Eq + Clone + Send + 'static,
{
    let [visited, other] = [(); 2].map(|()| Timer::builder().start().unwrap());
    let keyed = KeyedTimer::new(&visited, |_: u32, _: u32| ());
    let purgatory: Purgatory<K, Idle> = Purgatory::new(&visited);
    let held = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let entry = keyed.entry(1);
            held.wait();
            thread::sleep(15 * MILLI);
            drop(entry);
        });
        held.wait();
        let seen = scope.spawn(|| visit(&visited));
        thread::sleep(3 * MILLI);
        drop(purgatory);
        let next: Purgatory<K, Idle> = Purgatory::new(&other);
        assert_eq!(next.stats(), purgatory::Stats::default());
        let _first = next
            .try_complete_else_watch(Idle, HOUR, &[K::from(1)])
            .unwrap();
        let seen = seen.join().unwrap();
        let _second = next
            .try_complete_else_watch(Idle, HOUR, &[K::from(1)])
            .unwrap();
        let near = next
            .try_complete_else_watch(Idle, MILLI, &[K::from(2)])
            .unwrap();
        let near = near.pending();
        until("it expires", || {
            near.as_ref().is_none_or(|near| !near.is_pending())
        });
        assert_eq!((next.len(), next.stats().expired), (2, 1));
        seen
    })
}

/// Seen to fail at each round: the new purgatory answered that it was shut down.
#[test]
fn a_shutdown_ends_no_purgatory_of_another_timer() {
    for _ in 0..10 {
        assert_eq!(taken_over_during::<u8>(|timer| timer.shutdown().len()), 0);
    }
}

/// Seen to fail: the operation of another timer's purgatory was counted.
#[test]
fn a_timer_counts_what_is_its_own() {
    for _ in 0..3 {
        assert_eq!(taken_over_during::<u16>(Timer::len), 0);
        assert_eq!(
            taken_over_during::<u32>(|timer| timer.stats().added as usize),
            0
        );
        let entries = |timer: &Timer| timer.snapshot().levels.iter().map(|it| it.entries).sum();
        assert_eq!(taken_over_during::<u64>(entries), 0);
    }
}

/// Seen to fail: each reaper waited for the other one for ever.
#[test]
fn tasks_of_two_timers_may_end_both() {
    type Pair = Arc<[Mutex<Option<Timer>>; 2]>;
    let shuts_down = |pair: &Pair, _: usize| {
        for timer in pair.iter() {
            let timer = timer.lock().unwrap().clone();
            drop(timer.map(|timer| timer.shutdown()));
        }
    };
    let drops_the_other = |pair: &Pair, own: usize| {
        let timer = pair[1 - own].lock().unwrap().take();
        drop(timer);
    };
    let ends: [fn(&Pair, usize); 2] = [shuts_down, drops_the_other];
    for end in ends.repeat(10) {
        let pair: Pair = Arc::new([(); 2].map(|()| Mutex::new(Timer::builder().start().ok())));
        let both = Arc::new(Barrier::new(2));
        let (sender, ended) = channel();
        for own in 0..2 {
            let pair = Arc::clone(&pair);
            let both = Arc::clone(&both);
            let sender = sender.clone();
            let timer = pair[own].lock().unwrap().clone().expect("it has started");
            let task = move || {
                both.wait();
                end(&pair, own);
                sender.send(()).unwrap();
            };
            timer.after(5 * MILLI, task).unwrap();
        }
        for _ in 0..2 {
            ended.recv_timeout(HANG).expect("they wait for each other");
        }
    }
}
