//! A hand: what one thread, or one task that calls back, has and does.

use crate::config::{Config, Ending, Mix, scatter};
use crate::futures::Sleeping;
use crate::ledger::{End, drop_as, progress};
use crate::random::Random;
use crate::world::{Handle, Ref, World, depth};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tickwheel::lease::Lease;
use tickwheel::periodic::Series;
use tickwheel::{CancelOnDrop, When};

pub(crate) struct Hand {
    pub(crate) random: Random,
    /// Handles that nobody else has.
    pub(crate) own: Vec<Handle>,
    pub(crate) guards: Vec<CancelOnDrop>,
    pub(crate) asleep: Vec<Sleeping>,
    pub(crate) series: Vec<Series>,
    pub(crate) leases: Vec<Lease<u32>>,
    /// A key that nobody else has, and when its task is due.
    pub(crate) own_key: Option<(u32, Arc<AtomicU64>)>,
}

impl Hand {
    pub(crate) fn new(random: Random) -> Self {
        Hand {
            random,
            own: Vec::new(),
            guards: Vec::new(),
            asleep: Vec::new(),
            series: Vec::new(),
            leases: Vec::new(),
            own_key: None,
        }
    }

    /// Does everything that a long-lived thread does in a round.
    pub(crate) fn work(&mut self, world: &Ref, thread: usize) {
        let Config { operations, ending, mix, .. } = world.config;
        for operation in 0..operations {
            if ending == Ending::Shutdown && thread == 0 && operation == operations / 2 {
                world.shut_down();
            }
            if mix != Mix::Timers && operation % 512 == 511 {
                self.short_lived_thread(world);
            }
            self.step(world);
        }
    }

    /// Makes one call of some kind.
    pub(crate) fn step(&mut self, world: &Ref) {
        progress();
        let kind = self.random.below(32);
        match world.config.mix {
            Mix::Timers => self.timer_step(world),
            Mix::Calls if kind < 28 => self.timer_step(world),
            Mix::Calls => self.rare_step(world),
            Mix::Everything => match kind {
                0..10 => self.timer_step(world),
                10..15 => self.key_step(world),
                15..21 => self.operation_step(world),
                21..26 => self.future_step(world),
                26..28 => self.lease_step(world),
                28 => self.series_step(world),
                _ => self.rare_step(world),
            },
        }
    }

    /// Returns when something has to be due, and not before how many nanoseconds of the ledger.
    pub(crate) fn when(&mut self, world: &World) -> (When, u64) {
        let now = world.ledger.now();
        let delay = world.config.delay(&mut self.random, now);
        let due = now.saturating_add(delay);
        match self.random.below(16) {
            0 => {
                let past = now.saturating_sub(delay);
                (When::At(world.ledger.instant(past)), past)
            }
            1..6 => (When::At(world.ledger.instant(due)), due),
            _ if delay == u64::MAX => (When::After(Duration::MAX), u64::MAX),
            _ => (When::After(Duration::from_nanos(delay)), due),
        }
    }

    pub(crate) fn advance(&mut self, world: &World) {
        // A turn inside a turn's task, but not without end.
        if depth() < 2 {
            let waits = self.random.is_rare(16);
            world.timer.advance_clock(Duration::from_micros(if waits { 30 } else { 0 }));
        }
    }

    pub(crate) fn move_clock(&mut self, world: &World) {
        let Some(clock) = &world.clock else { return };
        let next = if self.random.is_rare(4) { world.timer.next_expiration() } else { None };
        match next {
            // Not into the far future all the time: then all is in the past.
            Some(next) if world.ledger.nanos(next) < world.ledger.now() + (1 << 50) => {
                clock.advance_to(next);
            }
            _ => {
                let step = world.config.step(&mut self.random, world.ledger.now());
                clock.advance(Duration::from_nanos(step));
            }
        }
    }

    /// Makes a call that looks at everything, or is made once in a while.
    fn rare_step(&mut self, world: &Ref) {
        match self.random.below(16) {
            0..2 => drop(world.timer.snapshot()),
            2..4 => drop(world.timer.stats().to_string()),
            4..6 => drop(world.timer.next_expiration()),
            6..8 => drop(world.timer.downgrade().upgrade().map(|timer| timer.is_empty())),
            8 => drop(world.purgatory.stats()),
            9 => drop(world.keyed.len()),
            10 if world.config.ending == Ending::Shutdown && self.random.is_rare(50) => {
                world.shut_down();
            }
            11 if world.config.ending == Ending::Shutdown && self.random.is_rare(50) => {
                world.purgatory_shut.store(true, SeqCst);
                drop_as(End::Returned, world.purgatory.shutdown());
            }
            12 if self.random.is_rare(10) => drop_as(End::Cancelled, world.keyed.cancel_all()),
            _ => self.move_clock(world),
        }
    }

    fn short_lived_thread(&mut self, world: &Ref) {
        let mut hand = Hand::new(scatter(self.random.below(u64::MAX)));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..8).for_each(|_| hand.step(world));
                hand.finish(world);
            });
        });
    }

    /// Leaves what it has to the world.
    pub(crate) fn finish(mut self, world: &World) {
        let mut kept = world.kept.lock().unwrap();
        kept.extend(self.own.drain(..).map(Arc::new));
        drop(kept);
        world.asleep.lock().unwrap().append(&mut self.asleep);
        for series in self.series.drain(..) {
            series.cancel();
        }
        drop_as(End::Guarded, self.guards);
        drop(self.leases);
    }
}
