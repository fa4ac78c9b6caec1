//! Structures on the timer that have keys, or continue by themselves: keyed timers, series.

use crate::hand::{Hand, refused};
use crate::ledger::{End, Kind, Ticket, drop_as};
use crate::world::{KEYS, Ref, act};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tickwheel::When;
use tickwheel::keyed::{Entry, KeyedTimer};
use tickwheel::periodic::{MissedTick, Periodic};

/// Runs of a series, at most: one that catches up would never end.
const RUNS: u64 = 12;

impl Hand {
    fn key(&mut self) -> u32 {
        self.random.below(KEYS) as u32
    }

    /// Uses a key that no other thread uses, so when it is due is known.
    fn own_key_step(&mut self, world: &Ref) {
        let (when, due) = self.when(world);
        let keyed = &world.keyed;
        let ledger = &world.ledger;
        let (key, bound) = self
            .own_key
            .get_or_insert_with(|| (ledger.next_key(), Arc::default()));
        let there = match self.random.below(8) {
            0..2 => {
                *bound = Arc::new(AtomicU64::new(due));
                let ticket = ledger.ticket(Kind::Keyed, Arc::clone(bound));
                return match keyed.add(*key, when, ticket) {
                    Ok(former) => drop_as(End::Replaced, former),
                    Err(error) => {
                        // The former one is as it was, and nobody knows its deadline any more.
                        self.own_key = None;
                        refused(world, error);
                    }
                };
            }
            2..6 => keyed.touch(key, when),
            _ => {
                bound.fetch_min(due, SeqCst);
                keyed.reschedule(key, when)
            }
        };
        if let Some(deadline) = keyed.deadline(key).filter(|_| there) {
            bound.store(ledger.nanos(deadline), SeqCst);
        }
    }

    /// Uses a shared key. Odd keys are moved to earlier deadlines as well, so it is unknown when
    /// they are early.
    pub(crate) fn key_step(&mut self, world: &Ref) {
        if self.random.is_rare(3) {
            return self.own_key_step(world);
        }
        let key = self.key();
        let (when, due) = self.when(world);
        let moves = key % 2 == 1;
        let ticket = || {
            let bound = Arc::new(AtomicU64::new(if moves { 0 } else { due }));
            world.ledger.ticket(Kind::Keyed, bound)
        };
        let keyed = &world.keyed;
        match self.random.below(20) {
            19 => drop_as(End::Cancelled, keyed.cancel_if(&key, |_, at| at.is_some())),
            0..6 => match keyed.add(key, when, ticket()) {
                Ok(former) => drop_as(End::Replaced, former),
                Err(error) => refused(world, error),
            },
            8..10 => drop_as(End::Cancelled, keyed.cancel(&key)),
            10..12 => drop(keyed.touch(&key, when)),
            12..15 if moves => drop((keyed.reschedule(&key, when), keyed.hasten(&key, when))),
            15..19 => self.entry_step(world, key, when, ticket()),
            _ => drop((keyed.contains(&key), keyed.deadline(&key), keyed.len())),
        }
    }

    /// Looks at a key, and changes what is there under one lock; or has keys of its own for a
    /// moment.
    fn entry_step(&mut self, world: &Ref, key: u32, when: When, ticket: Ticket) {
        if self.random.is_rare(4) {
            let keyed = KeyedTimer::new(&world.timer, |_: u32, ticket: Ticket| {
                drop_as(End::Cancelled, Some(ticket));
            });
            return match keyed.add(key, when, ticket) {
                Ok(former) => {
                    world.timer.advance_clock(Duration::ZERO);
                    drop_as(End::Cancelled, (former, keyed.cancel_all()));
                }
                Err(error) => refused(world, error),
            };
        }
        match world.keyed.entry(key) {
            Entry::Vacant(vacant) => match vacant.add(when, ticket) {
                Ok(former) => drop_as(End::Replaced, former),
                Err(error) => refused(world, error),
            },
            Entry::Occupied(mut occupied) if self.random.is_rare(2) => {
                occupied.touch(Duration::from_micros(50));
                drop(occupied);
                drop_as(End::Replaced, ticket);
            }
            Entry::Occupied(occupied) => drop_as(End::Cancelled, (occupied.cancel(), ticket)),
        }
    }

    pub(crate) fn series_step(&mut self, world: &Ref) {
        if self.series.len() > 4 {
            let series = self.series.swap_remove(0);
            let runs = series.runs();
            // It may have ended in another way.
            assert!(!series.cancel() || series.is_cancelled());
            assert!(!series.cancel() && series.runs() >= runs);
        }
        let now = world.ledger.now();
        let period = Duration::from_nanos(world.config.delay(&mut self.random, now));
        let policy = self
            .random
            .one(&[MissedTick::Burst, MissedTick::Skip, MissedTick::Delay]);
        let overlaps = self.random.is_rare(3);
        let mut periodic = match self.random.below(4) {
            0 => Periodic::with_delay(period),
            _ if overlaps => Periodic::every(period).missed_tick(policy).overlapping(),
            _ => Periodic::every(period).missed_tick(policy),
        };
        if self.random.is_rare(4) {
            let jitter = world.config.delay(&mut self.random, now);
            periodic = periodic
                .jitter(Duration::from_nanos(jitter))
                .first_after(Duration::ZERO);
        }
        // Dropped with the series, however it ends.
        let ticket = world.ledger.ticket(Kind::Series, Arc::default());
        let weak = Weak::clone(&world.weak);
        let busy = AtomicBool::new(false);
        let started = periodic.start(&world.timer, move |run| {
            let due = run.due().map(|due| ticket.ledger.nanos(due));
            assert!(
                due.is_some_and(|due| due <= ticket.ledger.now()),
                "a run is early: {due:?}"
            );
            assert!(!busy.swap(true, SeqCst) || overlaps, "runs overlap");
            let is_last = weak.upgrade().is_none_or(|world| world.calm.load(SeqCst));
            if is_last || run.number() >= RUNS {
                run.cancel();
            }
            // Not where it may panic: then it would stay busy.
            busy.store(false, SeqCst);
            act(&weak, ticket.id << 8 | run.number());
        });
        match started {
            Ok(series) => self.series.push(series),
            Err(error) => refused(world, error),
        }
    }
}
