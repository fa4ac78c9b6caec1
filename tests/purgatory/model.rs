//! The purgatory against a model that anybody can check by reading (`naive.rs`): random steps
//! (`steps.rs`) are done to both, and after each everything that can be seen is compared, the calls
//! of operations' code and their order included.

use crate::naive::{KEYS, Naive, State, Step, Then};
use crate::script::{Log, Script, What};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tickwheel::purgatory::{Cancelled, Pending, Purgatory, Watch};
use tickwheel::{ManualClock, Timer};

type Flags = Arc<Mutex<Vec<Arc<AtomicBool>>>>;

struct Run {
    purgatory: Purgatory<u32, Script>,
    timer: Timer,
    clock: ManualClock,
    log: Log,
    flags: Flags,
    handles: Vec<Option<Pending<u32, Script>>>,
    naive: Naive,
}

fn half_ms(number: u64) -> Duration {
    Duration::from_micros(500) * u32::try_from(number).expect("a short time")
}

impl Run {
    fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder().shards(1).clock(clock.clone()).build().expect("in range");
        let purgatory = Purgatory::new(&timer);
        let (log, flags) = (Log::default(), Flags::default());
        let (handles, naive) = (Vec::new(), Naive::default());
        Run { purgatory, timer, clock, log, flags, handles, naive }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Add { keys, timeout, holds, then } => self.add(keys, timeout, holds, then),
            Step::Set(nth, holds) => {
                if let Some(id) = self.naive.nth(nth) {
                    self.naive.operations[id].holds = holds;
                    self.flags.lock().unwrap()[id].store(holds, SeqCst);
                }
            }
            Step::Trigger(key) => {
                let expected = self.naive.trigger(key);
                assert_eq!(self.purgatory.check_and_complete(&key), expected);
            }
            Step::TriggerAll(keys) => {
                let expected = keys.iter().map(|key| self.naive.trigger(*key)).sum::<usize>();
                assert_eq!(self.purgatory.check_and_complete_all(&keys), expected);
            }
            Step::TriggerUpTo(key, limit) => {
                let expected = self.naive.trigger_up_to(key, limit);
                assert_eq!(self.purgatory.check_and_complete_up_to(&key, limit), expected);
            }
            Step::Force(nth) => self.force(nth),
            Step::Cancel(nth) => self.cancel(nth),
            Step::CancelForKey(key) => {
                let expected = self.naive.cancel_for_key(key);
                self.returned(self.purgatory.cancel_for_key(&key), expected);
            }
            Step::Advance(time) => self.advance(time),
            Step::DropHandle(nth) => drop(self.handle(nth)),
        }
        self.naive.forget_empty_lines();
        self.compare();
    }

    fn add(&mut self, keys: Vec<u32>, timeout: u64, holds: bool, then: Then) {
        let id = self.handles.len();
        let flag = Arc::new(AtomicBool::new(holds));
        self.flags.lock().unwrap().push(Arc::clone(&flag));
        let (log, flags, purgatory) =
            (self.log.clone(), self.flags.clone(), self.purgatory.clone());
        let trigger = move |key, limit| {
            let completed = match limit {
                None => purgatory.check_and_complete(&key),
                Some(limit) => purgatory.check_and_complete_up_to(&key, limit),
            };
            log.write(What::Returned, completed as u32);
        };
        let purgatory = self.purgatory.clone();
        let script = Script::new(id as u32, &self.log).when_set(&flag);
        let script = script.on_complete(move || match then {
            Then::Nothing => {}
            Then::Trigger(key) => trigger(key, None),
            Then::TriggerUpTo(key, limit) => trigger(key, Some(limit)),
            Then::CancelForKey(key) => drop(purgatory.cancel_for_key(&key)),
            Then::Enable(nth, key) => {
                let flags = flags.lock().unwrap().clone();
                flags[nth % flags.len()].store(true, SeqCst);
                trigger(key, None);
            }
        });
        let watch = self.purgatory.try_complete_else_watch(script, half_ms(timeout), &keys);
        self.naive.add(keys, timeout, holds, then);
        let watch = watch.expect("it has keys, and there is room");
        assert_eq!(matches!(watch, Watch::Completed), !self.naive.waits(id));
        self.handles.push(watch.pending());
    }

    /// Takes the handle of the nth operation, if there is one.
    fn handle(&mut self, nth: usize) -> Option<(usize, Pending<u32, Script>)> {
        let id = self.naive.nth(nth)?;
        Some((id, self.handles[id].take()?))
    }

    fn force(&mut self, nth: usize) {
        let Some((id, pending)) = self.handle(nth) else { return };
        let waits = self.naive.waits(id);
        if waits {
            self.naive.end(id, State::Forced);
        }
        assert_eq!(pending.force_complete(), waits, "force of {id}");
        self.handles[id] = Some(pending);
    }

    fn cancel(&mut self, nth: usize) {
        let Some((id, pending)) = self.handle(nth) else { return };
        match pending.cancel() {
            Cancelled::Returned(script) => {
                assert!(self.naive.waits(id), "cancel of {id}");
                self.naive.operations[id].state = State::Cancelled;
                self.returned(vec![script], vec![id as u32]);
            }
            Cancelled::Finished => assert!(!self.naive.waits(id), "cancel of {id}"),
            Cancelled::Deferred => panic!("nobody else is there"),
        }
        self.handles[id] = Some(pending);
    }

    /// Drops the operations that came back.
    fn returned(&mut self, scripts: Vec<Script>, expected: Vec<u32>) {
        assert_eq!(scripts.iter().map(|script| script.id).collect::<Vec<_>>(), expected);
        self.naive.log.extend(expected.into_iter().map(|id| (What::Dropped, id)));
    }

    /// Advances the time. Operations of one tick may expire in any order: the model follows the
    /// order that it sees, and knows what has to happen between two of them.
    fn advance(&mut self, time: u64) {
        self.clock.advance(half_ms(time));
        self.naive.now += time;
        let all = 0..self.handles.len();
        let due = all.clone().filter(|id| self.naive.due(*id).is_some()).count();
        let count = self.timer.advance_clock(Duration::ZERO);
        assert!(count <= due, "{count} timers of {due}");
        let (seen, mut tick) = (self.log.take(), 0);
        while let Some((what, id)) = seen.get(self.naive.log.len()).copied() {
            assert_eq!(what, What::Completed, "that is how an expiry begins");
            let next = self.naive.due(id as usize);
            assert!(next >= Some(tick), "{id} expires at {next:?} after {tick}");
            tick = next.unwrap_or(tick);
            self.naive.end(id as usize, State::Expired);
            assert!(seen.starts_with(&self.naive.log), "{seen:?}\n{:?}", self.naive.log);
        }
        assert!(all.into_iter().all(|id| self.naive.due(id).is_none()), "not all expired");
        self.naive.log.clear();
    }

    fn compare(&mut self) {
        assert_eq!(self.log.take(), std::mem::take(&mut self.naive.log));
        self.purgatory.assert_invariants();
        let naive = &self.naive;
        let mut watched = 0;
        for key in 0..KEYS {
            assert_eq!(self.purgatory.watched_for(&key), naive.watched_for(key), "key {key}");
            watched += naive.watched_for(key);
        }
        let delayed = naive.count(State::Waits);
        assert_eq!((self.purgatory.watched(), self.purgatory.delayed()), (watched, delayed));
        assert_eq!(self.timer.len(), delayed);
        let stats = self.purgatory.stats();
        assert_eq!((stats.watched, stats.delayed, stats.panicked), (watched, delayed, 0));
        let counts = [
            (State::AtOnce, stats.completed_at_once),
            (State::Triggered, stats.completed_by_trigger),
            (State::Forced, stats.completed_by_force),
            (State::Expired, stats.expired),
            (State::Cancelled, stats.cancelled),
        ];
        for (state, count) in counts {
            assert_eq!(count, naive.count(state) as u64, "{state:?}");
        }
        for (id, pending) in self.handles.iter().enumerate() {
            let Some(pending) = pending else { continue };
            let state = naive.operations[id].state;
            assert_eq!(pending.is_pending(), state == State::Waits, "{id} {state:?}");
        }
    }

    fn shut_down(mut self) {
        let mut returned = self.purgatory.shutdown();
        returned.sort_by_key(|script| script.id);
        let waiting = (0..self.handles.len()).filter(|id| self.naive.waits(*id));
        let expected: Vec<u32> = waiting.map(|id| id as u32).collect();
        for id in &expected {
            self.naive.operations[*id as usize].state = State::Cancelled;
        }
        self.returned(returned, expected);
        self.compare();
        self.timer.assert_invariants();
        assert!(self.purgatory.shutdown().is_empty());
    }
}

/// Does all this to a purgatory and to the model: also what `tests/lab/fuzz/` does.
pub(crate) fn property(steps: Vec<Step>) {
    let mut run = Run::new();
    steps.into_iter().for_each(|step| run.apply(step));
    run.shut_down();
}

#[test]
fn the_purgatory_does_what_the_model_says_after_every_step() {
    crate::quick::check(property as fn(Vec<Step>), 1500, 100);
}
