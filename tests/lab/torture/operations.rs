//! Delayed operations, which call back into everything from inside their purgatory.

use crate::config::scatter;
use crate::hand::Hand;
use crate::ledger::{End, Kind, Ticket, drop_as};
use crate::random::Random;
use crate::world::{KEYS, Ref, World, act};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use tickwheel::purgatory::{Cancelled, DelayedOperation, Watch, WatchError};

pub(crate) struct Operation {
    ticket: Option<Ticket>,
    id: u64,
    weak: Weak<World>,
    random: Random,
    /// The check at which its condition holds.
    holds_at: u64,
    checks: u64,
    /// In a check; still so when it is dropped if that has panicked.
    checking: bool,
    completed: bool,
    expired: bool,
}

impl Operation {
    fn new(world: &World, random: &mut Random, due: u64) -> Self {
        let ticket = world.ledger.ticket(Kind::Operation, Arc::new(AtomicU64::new(due)));
        let id = ticket.id;
        Operation {
            id,
            weak: Weak::clone(&world.weak),
            random: scatter(random.below(u64::MAX)),
            holds_at: random.one(&[1, 2, 3, 3, 4, 5, 8, u64::MAX, u64::MAX]),
            checks: 0,
            checking: false,
            completed: false,
            expired: false,
            ticket: Some(ticket),
        }
    }
}

impl DelayedOperation for Operation {
    fn try_complete(&mut self) -> bool {
        assert!(!self.completed && self.ticket.is_some(), "checked after its end");
        self.checks += 1;
        self.checking = true;
        // Once: it may trigger a key of its own, and would be checked again each time.
        if self.checks == 2 {
            act(&self.weak, self.random.below(u64::MAX));
        }
        assert!(!self.random.is_rare(64), "planted");
        self.checking = false;
        self.checks >= self.holds_at
    }

    fn on_complete(&mut self) {
        assert!(!self.completed && self.ticket.is_some(), "completed after its end");
        self.completed = true;
        act(&self.weak, self.id);
    }

    fn on_expiration(&mut self) {
        assert!(self.completed && !self.expired, "expired once, and after it was completed");
        self.expired = true;
        self.ticket.iter().for_each(Ticket::check_not_early);
    }

    fn on_cancellation(&mut self) {
        assert!(!self.completed, "cancelled after its end");
        if let Some(ticket) = self.ticket.take() {
            ticket.end(End::Cancelled);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let end = if self.completed { End::Fired } else { End::Panicked };
        if let Some(ticket) = self.ticket.take_if(|_| self.completed || self.checking) {
            ticket.end(end);
        }
    }
}

/// Checks whether an operation may be refused like this.
pub(crate) fn check_refusal<O>(world: &World, error: &WatchError<O>, keys: &[u32]) {
    assert!(match error {
        WatchError::NoKeys(_) => keys.is_empty(),
        WatchError::Full(_) => world.config.max_pending.is_some(),
        _ => world.shut.load(SeqCst) || world.purgatory_shut.load(SeqCst),
    });
}

impl Hand {
    pub(crate) fn keys(&mut self) -> Vec<u32> {
        let count = self.random.one(&[0, 1, 1, 1, 1, 2, 2, 3, 5]);
        (0..count).map(|_| self.random.below(KEYS) as u32).collect()
    }

    pub(crate) fn operation_step(&mut self, world: &Ref) {
        let purgatory = &world.purgatory;
        let key = self.random.below(KEYS) as u32;
        match self.random.below(16) {
            0..6 => self.watch(world),
            6..9 => drop(purgatory.check_and_complete(&key)),
            9 => drop(purgatory.check_and_complete_all(&self.keys())),
            10 => drop_as(End::Cancelled, purgatory.cancel_for_key(&key)),
            11 => drop((purgatory.watched(), purgatory.delayed(), purgatory.watched_for(&key))),
            12 => self.trigger_waits(world),
            _ => self.end_one(world),
        }
    }

    fn watch(&mut self, world: &Ref) {
        let ((when, due), keys) = (self.when(world), self.keys());
        let operation = Operation::new(world, &mut self.random, due);
        match world.purgatory.try_complete_else_watch(operation, when, &keys) {
            Ok(Watch::Completed) => {}
            Ok(Watch::Pending(pending)) => {
                let mut pendings = world.pendings.lock().unwrap();
                pendings.push(pending);
                if pendings.len() > 64 {
                    pendings.swap_remove(0);
                }
            }
            Err(error) => {
                check_refusal(world, &error, &keys);
                drop_as(End::Refused, error);
            }
        }
    }

    fn end_one(&mut self, world: &World) {
        let pending = self.random.take(&mut world.pendings.lock().unwrap());
        let Some(pending) = pending else { return };
        match self.random.below(4) {
            0 => assert!(!pending.force_complete() || !pending.is_pending()),
            1 => drop_as(End::Guarded, pending.cancel_on_drop()),
            2 => {
                let cancelled = pending.cancel();
                let ended = !matches!(cancelled, Cancelled::Deferred);
                drop_as(End::Cancelled, cancelled);
                assert!(!ended || matches!(pending.cancel(), Cancelled::Finished));
            }
            _ => {} // Nobody has its handle any more.
        }
    }
}
